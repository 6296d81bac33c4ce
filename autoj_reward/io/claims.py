"""Locks on outputs: an output belongs to one process at a time, and to one judge.

A claim is a hidden file in the run's output folder, or beside its output file. It is locked while
its process lives, however the process ends. It names that process, and the command and the judge
whose results the output holds, and it records the files that they have written there: only these
are replaced. Creating it also tests whether the output can be written.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import stat
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from autoj_reward.config import Vote
from autoj_reward.errors import ConfigError, OutputError
from autoj_reward.io.files import StrPath, cannot_write, watching_writes, write_text

CLAIM = ".claim"
"""File name of a folder's claim, and suffix of a file's."""
MAX_CLAIM_BYTES = 2**16
"""Maximum bytes read from a claim."""
START = b'{"judge": '
"""First bytes of a claim."""
LOCK = "hhqqi4x"
"""Layout of Linux' `struct flock`."""
Identity = list[int]
"""Size and time of the last change of a file that a run has written, in bytes and nanoseconds. A
copy that keeps the time is the same file."""
_HELD_CLAIMS: dict[Path, int] = {}
"""Claims that this process holds until it ends, with their file descriptors."""


def claim(folder: Path, config: BaseModel, changeable: set[str]) -> None:
    """Lock a run's folder for this process until it ends, and save the run's config there.

    changeable: config keys that may differ when the run is resumed. Raises ConfigError if the
    folder holds a run with another config.
    """
    path = claim_path(folder, in_folder=True)
    # Among several training processes, rank 0 holds the claim for all.
    if path not in _HELD_CLAIMS and os.environ.get("RANK", "0") == "0":
        _HELD_CLAIMS[path] = _open_locked(path, folder)
    config_path = folder / "config.json"
    config_text = config.model_dump_json(indent=1, exclude=changeable)
    if config_path.is_file() and config_path.read_bytes() != config_text.encode():
        changed = _name_changes(config_path.read_bytes(), config_text)
        raise ConfigError(
            f"{folder} holds a run of another config{changed}: name another output, or move it away"
        )
    write_text(config_path, config_text)


def _name_changes(old: bytes, new: str) -> str:
    """Return the keys of a config that differ, to be said in an error; "" for an unreadable one."""
    try:
        before = json.loads(old)
    except (ValueError, RecursionError):
        return ""
    after = json.loads(new)
    if not isinstance(before, dict):
        return ""
    names = []
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            names.append(name)
    return f" ({', '.join(names)} changed)" if names else ""


def finish(folder: Path) -> None:
    """Mark the run of a folder that this process has claimed as finished. Another rank's claim is
    left to that rank."""
    path = claim_path(folder, in_folder=True)
    if path in _HELD_CLAIMS:
        _mark_finished(_HELD_CLAIMS[path], path)


@contextmanager
def judged_by(
    judge: str,
    output: Path,
    result: Path,
    *,
    command: str,
    total: int = 0,
    journal: Path | None = None,
    scored_by: str | None = None,
    vote: Vote = "mean",
    panel: bool = False,
    files: Iterable[StrPath] = (),
) -> Iterator[None]:
    """Lock an output folder or file for this judge's results within this context.

    judge: its fingerprint; empty for a command that asks none. output: the folder or file.
    result: the file that exists once there are results. command: its name, such as `autoj score`.
    total: number of inputs of each judge, for progress displays. journal: its path if it is not
    beside the results. scored_by: what scores responses in place of a view; `total` then counts
    comparisons too. vote: how the ratings of several critiques make one. panel: whether several
    judges rate each response. files: further files that the run writes.

    Raises ConfigError if another process writes there, or if the results are another judge's or
    another command's. Raises OutputError if nothing can be written, or if the run would replace a
    file that no run has written.
    """
    path = claim_path(output, in_folder=output != result)
    places = {_name_file(file, path): Path(file) for file in (result, *files)}
    if not path.exists():
        # A refusal leaves no claim, which would stand beside somebody's own file.
        _require_own(places, {})
    descriptor = _open_locked(path, output)
    try:
        old = _read(descriptor, path)
        written = _read_identities(old)
        _require_own(places, written)
        _require_same_results(old, output, judge, result, command, path)
        content: dict[str, Any] = {
            **_describe_run(judge),
            "command": command,
            "total": total,
            **({"scored_by": scored_by} if scored_by else {}),
            **({"vote": vote} if vote != "mean" else {}),
            **({"panel": True} if panel else {}),
            **({"journal": str(journal.absolute())} if journal else {}),
            "files": written,
        }
        _replace_content(descriptor, path, content)

        def note_file(target: Path, status: os.stat_result) -> None:
            """Record a file before it is put in its place, where it may be the last thing done."""
            name = _name_file(target, path)
            if name in places:
                standing = [known for known in written.get(name, []) if _stands(target, known)]
                written[name] = [*standing, _identify(status)]
                _replace_content(descriptor, path, content)

        with watching_writes(note_file):
            yield
        for name, place in places.items():
            if place.is_file():
                written[name] = [_identify(place.stat())]
        _replace_content(descriptor, path, content | {"finished": True})
    finally:
        os.close(descriptor)


def _require_same_results(
    old: Mapping[str, Any], output: Path, judge: str, result: Path, command: str, path: Path
) -> None:
    """Raise ConfigError if another judge's or another command's results stand at an output.

    old: content of the claim at `path`.
    """
    recorded_command = old.get("command")
    standing = any((path.parent / name).exists() for name in _read_identities(old))
    if recorded_command and recorded_command != command and standing:
        raise ConfigError(
            f"{output} holds the results of {recorded_command}, and this run's are of {command}: "
            "name another output, or move this one away"
        )
    recorded_judge = old.get("judge")
    if recorded_judge and recorded_judge != judge and result.exists():
        raise ConfigError(
            f"{output} holds the results of {recorded_judge}, and this run's are of "
            f"{judge}: name another output, or move this one away"
        )


def claim_path(output: Path, in_folder: bool) -> Path:
    """Return the claim's path for a folder or a file.

    Links are resolved, so that one output has one claim.
    """
    real = Path(os.path.realpath(output))
    return real / CLAIM if in_folder else real.with_name(f".{real.name}{CLAIM}")


def holder(path: Path) -> int | None:
    """Return the id of another process on this machine that holds a claim, or None.

    A process that holds the claim itself must not call this: closing the file would release its
    lock.
    """
    question = struct.pack(LOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, question)
        finally:
            os.close(descriptor)
    except OSError:
        return None
    kind, *_, process = struct.unpack(LOCK, answer)
    return None if kind == fcntl.F_UNLCK else process


def _name_file(file: StrPath, claim_file: Path) -> str:
    """Return a file's name in a claim: its path from the claim's folder, which may be moved."""
    return os.path.relpath(os.path.realpath(file), claim_file.parent)


def _identify(status: os.stat_result) -> Identity:
    return [status.st_size, status.st_mtime_ns]


def _stands(place: Path, identity: Identity) -> bool:
    return place.is_file() and _identify(place.stat()) == identity


def _read_identities(content: Mapping[str, Any]) -> dict[str, list[Identity]]:
    """Return the files that a claim records, without what no run has recorded so."""
    files = content.get("files")
    if not isinstance(files, dict):
        return {}
    return {name: known for name, known in files.items() if isinstance(known, list)}


def _require_own(places: Mapping[str, Path], written: Mapping[str, list[Identity]]) -> None:
    """Raise OutputError for a file that is not as a run of this package has left it.

    An empty file is replaced: tools make one to reserve a name. written: as a claim records it.
    """
    for name, place in places.items():
        if not place.is_file() or not place.stat().st_size:
            continue
        if not any(_stands(place, identity) for identity in written.get(name, [])):
            raise OutputError(
                f"{place} exists, and no run of autoj has written it as it is now: name another "
                "output, or move that file away"
            )


def _open_locked(path: Path, output: Path) -> int:
    """Return the file descriptor of a claim, locked for this process."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A link's target must not be overwritten, and opening a pipe must not block.
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if os.path.lexists(path) and error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise _make_claim_error(path) from error
        raise cannot_write(output, error) from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            raise _make_claim_error(path)
        _lock(descriptor, path, output)
        # This run may be refused yet, so that the results are still those of the last one.
        old = _read(descriptor, path)
        kept = {name: old[name] for name in ("command", "files") if name in old}
        _replace_content(descriptor, path, _describe_run(old.get("judge", "")) | kept)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _lock(descriptor: int, path: Path, output: Path) -> None:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            content = _read(descriptor, path)
            other_run = f"process {content.get('pid', '?')} on {content.get('host', '?')}"
            raise ConfigError(
                f"{output}: another run is at work there ({other_run}): wait for its end, or name "
                "another output"
            ) from error
        print(
            f"{output}: no locks there ({error.strerror}): see that no other run writes to it",
            file=sys.stderr,
        )


def _read(descriptor: int, path: Path) -> dict[str, Any]:
    """Return a claim's content; {} if it is new, or was cut off on a full disk."""
    text = os.pread(descriptor, MAX_CLAIM_BYTES, 0).rstrip(b"\0")
    if not text.startswith(START) and not START.startswith(text):
        raise _make_claim_error(path)
    try:
        content: dict[str, Any] = json.loads(text)
    except ValueError:
        return {}
    except RecursionError as error:
        raise _make_claim_error(path) from error
    return content


def _make_claim_error(path: Path) -> OutputError:
    return OutputError(
        f"{path}: this is no claim of a run, which is a small file of its own: move it away, or "
        "name another output"
    )


def _describe_run(judge: str) -> dict[str, Any]:
    """Return the first fields of a claim: the judge, and this process."""
    return {"judge": judge, "pid": os.getpid(), "host": socket.gethostname()}


def _mark_finished(descriptor: int, path: Path) -> None:
    _replace_content(descriptor, path, _read(descriptor, path) | {"finished": True})


def _replace_content(descriptor: int, path: Path, content: dict[str, Any]) -> None:
    text = json.dumps(content)
    try:
        os.pwrite(descriptor, text.encode(), 0)
        os.truncate(descriptor, len(text))
    except OSError as error:
        raise cannot_write(path, error) from error
