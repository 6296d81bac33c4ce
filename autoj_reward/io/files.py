"""Result files: whole or absent, and a clear error when they cannot be written."""

from __future__ import annotations

import errno
import json
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

from autoj_reward.errors import OutputError
from autoj_reward.io.plain import plain, to_json

_REMEDY = {
    errno.ENOSPC: "free some space or name an output folder on another disk",
    errno.EDQUOT: "free some of this user's quota or name an output folder on another disk",
    errno.EROFS: "name an output folder on a disk that can be written",
    errno.EACCES: "give this user write permission there or name another output folder",
    errno.EPERM: "give this user write permission there or name another output folder",
    errno.EISDIR: "a folder stands in the file's place: move it or name another output folder",
    errno.ENOTDIR: "a file stands where a folder is needed: move it or name another output folder",
    errno.EEXIST: "a file stands where a folder is needed: move it or name another output folder",
    errno.EFBIG: "raise the file size limit (ulimit -f) or split the job",
    errno.ENAMETOOLONG: "name an output folder with a shorter path",
}


def write_jsonl(path: str | os.PathLike[str], records: Iterable[Any]) -> None:
    """Write one JSON object a line, atomically. Raises OutputError."""
    _write(path, map(_line, records))


class Output:
    """A file that is being written."""

    def __init__(self, path: str | os.PathLike[str], file: BinaryIO) -> None:
        self._path, self._file = path, file

    def add(self, data: bytes) -> None:
        with _explained(self._path):
            self._file.write(data)

    def line(self, record: Any) -> None:
        """Add a record as a JSON line."""
        self.add(_line(record))

    def size(self) -> int:
        """Bytes so far, all of them on disk."""
        with _explained(self._path):
            self._file.flush()
            os.fsync(self._file.fileno())
            return self._file.tell()


@contextmanager
def filling(path: str | os.PathLike[str], kept: int = 0) -> Iterator[Output]:
    """A file that is there, whole, once the block has ended without an error. For one process at a
    time.

    kept: so many bytes of what a process that was killed has left begin the file; the rest is
    overwritten. Raises OutputError.
    """
    target = _target(path)
    temporary = target.with_name(f".{target.name}.part")
    with _replacing(path, temporary, "r+b" if kept else "wb") as file:
        with _explained(path):
            file.truncate(kept)
            file.seek(kept)
        yield Output(path, file)


def write_kept(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file of one process's own, whole, over what it was. Raises OutputError."""
    with filling(path) as file:
        file.add(data)


def write_json(path: str | os.PathLike[str], obj: Any) -> None:
    """Write one indented JSON document, atomically. Raises OutputError."""
    text = json.dumps(plain(obj), ensure_ascii=True, allow_nan=False, indent=2)
    _write(path, (text.encode("ascii"), b"\n"))


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write UTF-8 text, atomically; lone surrogates as `\\udXXX`. Raises OutputError."""
    _write(path, (text.encode("utf-8", "backslashreplace"),))


def cannot_write(path: str | os.PathLike[str], error: OSError) -> OutputError:
    """What the system said against writing there, and what to do."""
    remedy = _REMEDY.get(error.errno or 0, "name another output folder")
    return OutputError(f"cannot write {os.fspath(path)}: {error.strerror or str(error)}: {remedy}")


def _line(record: Any) -> bytes:
    try:
        # What JSON writes as it stands is not copied first, which takes longer than the writing.
        text = _WRITTEN.encode(record) if isinstance(record, dict) else ""
    except (TypeError, ValueError):  # NaN, or keys that are no text
        text = ""
    text = text or json.dumps(to_json(record), ensure_ascii=True, allow_nan=False)
    return f"{text}\n".encode("ascii")


_WRITTEN = json.JSONEncoder(ensure_ascii=True, allow_nan=False, default=plain)


def _target(path: str | os.PathLike[str]) -> Path:
    # A link is followed: replacing it would cut it off from the file that it names.
    return Path(os.path.realpath(path))


def _write(path: str | os.PathLike[str], chunks: Iterable[bytes]) -> None:
    temporary = _target(path).with_name(f".{secrets.token_hex(6)}.tmp")
    with _replacing(path, temporary, "xb") as file:
        for chunk in chunks:
            with _explained(path):
                file.write(chunk)


@contextmanager
def _replacing(path: str | os.PathLike[str], temporary: Path, mode: str) -> Iterator[BinaryIO]:
    """Write beside the target, flush to disk, then take the target's place."""
    target = _target(path)
    with _explained(path):
        target.parent.mkdir(parents=True, exist_ok=True)
        _refuse_special(target)
        file = cast(BinaryIO, temporary.open(mode))
    try:
        yield file
        with _explained(path):
            file.flush()
            os.fsync(file.fileno())
            file.close()
            temporary.replace(target)
    except BaseException:
        with suppress(OSError):  # of what it could not write either
            file.close()
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def _explained(path: str | os.PathLike[str]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error) from error


def _refuse_special(target: Path) -> None:
    """Keep a device or pipe from being replaced by a regular file."""
    if not target.exists():
        return
    mode = target.stat().st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file", str(target))
