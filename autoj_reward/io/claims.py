"""Who writes where: the output of a run is one process's at a time, and one judge's.

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
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from autoj_reward.errors import ConfigError
from autoj_reward.io.files import cannot_write, write_text

CLAIM = ".claim"
LOCK = "hhqqi4x"
"""Linux' `struct flock`."""
_KEPT: dict[Path, int] = {}
"""Claims of this process until it ends, and their open files."""


def claim(folder: Path, config: BaseModel, changeable: set[str]) -> None:
    """Make a run's folder this process's until it ends, and this config's: keep it there, or find
    the same one.

    changeable: keys that may differ when a run goes on. Raises ConfigError for another run's.
    """
    path = (folder / CLAIM).absolute()
    # Of several training processes the first one speaks for all.
    if path not in _KEPT and os.environ.get("RANK", "0") == "0":
        _KEPT[path] = _locked(path, folder)
    kept = folder / "config.json"
    own = config.model_dump_json(indent=1, exclude=changeable)
    if kept.is_file() and kept.read_text(encoding="utf-8") != own:
        raise ConfigError(
            f"{folder} holds a run of another config: name another output, or remove it"
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
    in_folder = output != result
    path = output / CLAIM if in_folder else output.with_name(f".{output.name}{CLAIM}")
    held = _locked(path, output)
    try:
        known = _read(held).get("judge")
        if known and known != judge and result.exists():
            raise ConfigError(
                f"{output} holds the results of the judge {known}, and this run's is {judge}: name "
                "another output, or remove it"
            )
        _write(held, path, judge, total, journal)
        yield
    finally:
        os.close(held)


@contextmanager
def alone(result: Path) -> Iterator[None]:
    """Hold a file that no other process is to write meanwhile; errors as of `judged_by`."""
    held = _locked(result.with_name(f".{result.name}{CLAIM}"), result)
    try:
        yield
    finally:
        os.close(held)


def holder(path: Path) -> int | None:
    """The process of this machine that holds a claim: another one than this, or None. It only
    looks; a process that holds a claim itself must not, since any close ends its locks."""
    question = struct.pack(LOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    try:
        with path.open("rb") as file:
            answer = fcntl.fcntl(file, fcntl.F_GETLK, question)
    except OSError:
        return None
    kind, *_, process = struct.unpack(LOCK, answer)
    return None if kind == fcntl.F_UNLCK else process


def _locked(path: Path, output: Path) -> int:
    """The open file of a claim that no other process holds."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise cannot_write(output, error) from error
    try:
        fcntl.lockf(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = _read(held)
        if error.errno in (errno.EACCES, errno.EAGAIN):
            os.close(held)
            who = f"process {holder.get('pid', '?')} on {holder.get('host', '?')}"
            raise ConfigError(
                f"{output}: another run is at work there ({who}): wait for its end, or name "
                "another output"
            ) from error
        print(
            f"{output}: no locks there ({error.strerror}): see that no other run writes to it",
            file=sys.stderr,
        )
    _write(held, path, _read(held).get("judge", ""))
    return held


def _read(held: int) -> dict[str, Any]:
    try:
        found = json.loads(os.pread(held, 1 << 16, 0))
    except ValueError:  # new, or its disk was full
        return {}
    return found if isinstance(found, dict) else {}


def _write(held: int, path: Path, judge: str, total: int = 0, journal: Path | None = None) -> None:
    own = {"judge": judge, "pid": os.getpid(), "host": socket.gethostname(), "total": total}
    own |= {"journal": str(journal.absolute())} if journal else {}
    text = json.dumps(own)
    try:
        os.pwrite(held, text.encode(), 0)
        os.truncate(held, len(text))
    except OSError as error:
        raise cannot_write(path, error) from error
