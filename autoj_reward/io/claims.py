"""Claims on outputs: an output belongs to one process at a time, and to one judge.

The claim is a hidden file in the folder, or beside the file, that the run writes. It is locked as
long as its process lives, however that ends, and says which one it is and which judge's results
are there. To make it is also to try whether anything can be written there at all.
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
MAX_CLAIM_BYTES = 2**16
"""Most bytes that are read of a claim."""
START = b'{"judge": '
"""How a claim begins."""
LOCK = "hhqqi4x"
"""Linux' `struct flock`."""
_KEPT: dict[Path, int] = {}
"""Claims of this process until it ends, and their open files."""


def claim(folder: Path, config: BaseModel, changeable: set[str]) -> None:
    """Claim a run's folder for this process until it ends, and for this config, which is kept
    there.

    changeable: keys that may differ when a run goes on. Raises ConfigError for another run's.
    """
    path = claim_path(folder, in_folder=True)
    # Of several training processes the first one speaks for all.
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
    judge: str, output: Path, result: Path, total: int = 0, journal: Path | None = None
) -> Iterator[None]:
    """Hold a folder, or a file, that the results of this judge go to.

    result: the file that is there once there are results. For those who watch, total: judge inputs
    to come; journal: where it is, if not beside the results. Raises ConfigError while another
    process is at work there, or for results of another judge; OutputError where nothing can be
    written.
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
        _write(held, path, judge, total, journal)
        yield
    finally:
        os.close(held)


def claim_path(output: Path, in_folder: bool) -> Path:
    """Return where the claim of a folder, or of a file, is: beside what its links lead to, so that
    one output has one claim."""
    real = Path(os.path.realpath(output))
    return real / CLAIM if in_folder else real.with_name(f".{real.name}{CLAIM}")


def holder(path: Path) -> int | None:
    """Return the id of another process of this machine that holds a claim, or None.

    A process that holds the claim itself must not call it: closing the file ends its lock.
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
    """Return the open file of a claim that no other process holds."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # What a link leads to is not ours to write, and a pipe is not waited for.
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
    """Return what a claim says: nothing if it is new, or was cut off when its disk was full."""
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


def _write(held: int, path: Path, judge: str, total: int = 0, journal: Path | None = None) -> None:
    own = {"judge": judge, "pid": os.getpid(), "host": socket.gethostname(), "total": total}
    own |= {"journal": str(journal.absolute())} if journal else {}
    text = json.dumps(own)
    try:
        os.pwrite(held, text.encode(), 0)
        os.truncate(held, len(text))
    except OSError as error:
        raise cannot_write(path, error) from error
