"""Result files: whole or absent, and a clear error when they cannot be written."""

from __future__ import annotations

import errno
import json
import os
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

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
    errno.ELOOP: "a link stands in the place of a file of the run's own: remove it",
}
COMPANIONS = ("{}", ".{}.part", ".{}.claim", "{}-wal", "{}-shm")
"""Files of a file: itself, what is written of it so far, its claim, and the log of a journal."""
StrPath = str | os.PathLike[str]


def require_apart(
    read: Iterable[StrPath | None],
    written: Iterable[StrPath | None] = (),
    folder: StrPath | None = None,
) -> None:
    """Refuse a command that would write over what it reads, by whatever names and links.

    read: files and folders; None, and what is on no disk here, is left out. written: files. folder:
    the output of a run, in which nothing that it reads may lie. Raises OutputError; nothing is
    opened.
    """
    files = [name for one in written if one is not None for name in _companions(one)]
    own, entries = os.path.realpath(folder) if folder is not None else None, list[Path]()
    with suppress(OSError):
        entries += Path(own).iterdir() if own else ()
    for given in read:
        source = "/dev/stdin" if given == "-" else given
        if not source or not os.path.exists(source):
            continue
        real = os.path.realpath(source)
        if own and Path(real).is_relative_to(own):
            raise OutputError(
                f"{folder}: the input {given} lies in this output folder, whose files the run "
                "replaces: move the input, or name another output"
            )
        names = _companions(source)
        for output in (*files, *entries):
            inside = output in files and Path(os.path.realpath(output)).is_relative_to(real)
            if inside or any(_is_same(name, output) for name in names):
                raise OutputError(
                    f"{output}: the run would write over its input {given}: name another output"
                )


def _companions(path: StrPath) -> list[Path]:
    own = Path(path)
    return [own.with_name(form.format(own.name)) for form in COMPANIONS] if own.name else [own]


def _is_same(one: Path, other: Path) -> bool:
    with suppress(OSError):
        return one.samefile(other)
    return os.path.realpath(one) == os.path.realpath(other)


def write_jsonl(path: StrPath, records: Iterable[Any]) -> None:
    """Write one JSON object a line, atomically. Raises OutputError."""
    _write(path, map(_line, records))


class Output:
    """A file that is being written."""

    def __init__(self, path: StrPath, file: BinaryIO) -> None:
        self._path, self._file = path, file

    def add(self, data: bytes) -> None:
        with _explained(self._path):
            self._file.write(data)

    def line(self, record: Any) -> None:
        """Add a record as a JSON line."""
        self.add(_line(record))


@contextmanager
def filling(path: StrPath) -> Iterator[Output]:
    """Yield a file that is there, whole, once the block has ended without an error. For one process
    at a time. Raises OutputError."""
    target = _target(path)
    part = target.with_name(f".{target.name}.part")

    def opened() -> BinaryIO:
        part.unlink(missing_ok=True)  # what a killed process left, or a link to another's file
        return part.open("xb")

    with _replacing(path, part, opened) as file:
        yield Output(path, file)


def write_json(path: StrPath, obj: Any) -> None:
    """Write one indented JSON document, atomically. Raises OutputError."""
    text = json.dumps(plain(obj), ensure_ascii=True, allow_nan=False, indent=2)
    _write(path, (text.encode("ascii"), b"\n"))


def write_text(path: StrPath, text: str) -> None:
    """Write UTF-8 text, atomically; lone surrogates as `\\udXXX`. Raises OutputError."""
    _write(path, (text.encode("utf-8", "backslashreplace"),))


def cannot_write(path: StrPath, error: OSError) -> OutputError:
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


def _target(path: StrPath) -> Path:
    # A link is followed: replacing it would cut it off from the file that it names.
    return Path(os.path.realpath(path))


def _write(path: StrPath, chunks: Iterable[bytes]) -> None:
    temporary = _target(path).with_name(f".{secrets.token_hex(6)}.tmp")
    with _replacing(path, temporary, lambda: temporary.open("xb")) as file:
        for chunk in chunks:
            with _explained(path):
                file.write(chunk)


@contextmanager
def _replacing(
    path: StrPath, temporary: Path, opened: Callable[[], BinaryIO]
) -> Iterator[BinaryIO]:
    """Write beside the target, flush to disk, then take the target's place."""
    target = _target(path)
    with _explained(path):
        target.parent.mkdir(parents=True, exist_ok=True)
        _refuse_special(target)
        file = opened()
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
def _explained(path: StrPath) -> Iterator[None]:
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
