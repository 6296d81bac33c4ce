"""Locks on outputs: an output belongs to one process at a time, and to one judge.

A claim is a hidden file in the run's output folder, or beside its output file. It is locked while
its process lives, however the process ends. It names that process, and the judge whose results the
output holds. Creating it also tests whether the output can be written.
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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from autoj_reward.errors import ConfigError, OutputError
from autoj_reward.io.files import cannot_write, write_text

CLAIM = ".claim"
"""File name of a folder's claim, and suffix of a file's."""
MAX_CLAIM_BYTES = 2**16
"""Maximum bytes read from a claim."""
START = b'{"judge": '
"""First bytes of a claim."""
LOCK = "hhqqi4x"
"""Layout of Linux' `struct flock`."""
_KEPT: dict[Path, int] = {}
"""Claims that this process holds until it ends, with their file descriptors."""


def claim(folder: Path, config: BaseModel, changeable: set[str]) -> None:
    """Lock a run's folder for this process until it ends, and save the run's config there.

    changeable: config keys that may differ when the run is resumed. Raises ConfigError if the
    folder holds a run with another config.
    """
    path = claim_path(folder, in_folder=True)
    # Among several training processes, rank 0 holds the claim for all.
    if path not in _KEPT and os.environ.get("RANK", "0") == "0":
        _KEPT[path] = _locked(path, folder)
    kept = folder / "config.json"
    own = config.model_dump_json(indent=1, exclude=changeable)
    if kept.is_file() and kept.read_bytes() != own.encode():
        raise ConfigError(
            f"{folder} holds a run of another config: name another output, or move it away"
        )
    write_text(kept, own)


@contextmanager
def judged_by(
    judge: str,
    output: Path,
    result: Path,
    total: int = 0,
    journal: Path | None = None,
    scored_by: str | None = None,
) -> Iterator[None]:
    """Lock an output folder or file for this judge's results within this context.

    output: the folder or file. result: the file that exists once there are results. total: number
    of judge inputs, for progress displays. journal: its path if it is not beside the results.
    scored_by: what scores responses in place of a view; `total` then counts comparisons too.

    Raises ConfigError if another process writes there, or if the results are another judge's.
    Raises OutputError if nothing can be written.
    """
    path = claim_path(output, in_folder=output != result)
    held = _locked(path, output)
    try:
        known = _read(held, path).get("judge")
        if known and known != judge and result.exists():
            raise ConfigError(
                f"{output} holds the results of the judge {known}, and this run's is {judge}: name "
                "another output, or move this one away"
            )
        _write(held, path, judge, total, journal, scored_by)
        yield
    finally:
        os.close(held)


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
        looked_at = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            answer = fcntl.fcntl(looked_at, fcntl.F_GETLK, question)
        finally:
            os.close(looked_at)
    except OSError:
        return None
    kind, *_, process = struct.unpack(LOCK, answer)
    return None if kind == fcntl.F_UNLCK else process


def _locked(path: Path, output: Path) -> int:
    """Return the file descriptor of a claim, locked for this process."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A link's target must not be overwritten, and opening a pipe must not block.
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        held = os.open(path, flags, 0o666)
    except OSError as error:
        if os.path.lexists(path) and error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise _odd(path) from error
        raise cannot_write(output, error) from error
    try:
        found = os.fstat(held)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            raise _odd(path)
        _lock(held, path, output)
        _write(held, path, _read(held, path).get("judge", ""))
    except BaseException:
        os.close(held)
        raise
    return held


def _lock(held: int, path: Path, output: Path) -> None:
    try:
        fcntl.lockf(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            holder = _read(held, path)
            who = f"process {holder.get('pid', '?')} on {holder.get('host', '?')}"
            raise ConfigError(
                f"{output}: another run is at work there ({who}): wait for its end, or name "
                "another output"
            ) from error
        print(
            f"{output}: no locks there ({error.strerror}): see that no other run writes to it",
            file=sys.stderr,
        )


def _read(held: int, path: Path) -> dict[str, Any]:
    """Return a claim's content; {} if it is new, or was cut off on a full disk."""
    text = os.pread(held, MAX_CLAIM_BYTES, 0).rstrip(b"\0")
    if not text.startswith(START) and not START.startswith(text):
        raise _odd(path)
    try:
        found: dict[str, Any] = json.loads(text)
    except ValueError:
        return {}
    except RecursionError as error:
        raise _odd(path) from error
    return found


def _odd(path: Path) -> OutputError:
    return OutputError(
        f"{path}: this is no claim of a run, which is a small file of its own: move it away, or "
        "name another output"
    )


def _write(
    held: int,
    path: Path,
    judge: str,
    total: int = 0,
    journal: Path | None = None,
    scored_by: str | None = None,
) -> None:
    own = {"judge": judge, "pid": os.getpid(), "host": socket.gethostname(), "total": total}
    own |= {"scored_by": scored_by} if scored_by else {}
    own |= {"journal": str(journal.absolute())} if journal else {}
    text = json.dumps(own)
    try:
        os.pwrite(held, text.encode(), 0)
        os.truncate(held, len(text))
    except OSError as error:
        raise cannot_write(path, error) from error
