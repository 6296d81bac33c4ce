"""Files of a run: results that are whole or absent, records as JSON holds them, and records that
wait on disk for a second pass."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import pickle
import secrets
import stat
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO, Generic, TypeVar

from autoj_reward.errors import OutputError

T = TypeVar("T")
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


class OutputFile:
    """A result file that is being written; see `filling`."""

    def __init__(self, path: StrPath, file: BinaryIO) -> None:
        self._path, self._file = path, file

    def add(self, data: bytes) -> None:
        with _explained(self._path):
            self._file.write(data)

    def line(self, record: Any) -> None:
        """Add a record as a JSON line."""
        self.add(_line(record))


@contextmanager
def filling(path: StrPath) -> Iterator[OutputFile]:
    """Yield a file that is there, whole, once the block has ended without an error. For one process
    at a time. Raises OutputError."""
    target = _target(path)
    part = target.with_name(f".{target.name}.part")

    def opened() -> BinaryIO:
        part.unlink(missing_ok=True)  # what a killed process left, or a link to another's file
        return part.open("xb")

    with _replacing(path, part, opened) as file:
        yield OutputFile(path, file)


def write_json(path: StrPath, obj: Any) -> None:
    """Write one indented JSON document, atomically. Raises OutputError."""
    text = json.dumps(to_plain(obj), ensure_ascii=True, allow_nan=False, indent=2)
    _write(path, (text.encode("ascii"), b"\n"))


def write_text(path: StrPath, text: str) -> None:
    """Write UTF-8 text, atomically; lone surrogates as `\\udXXX`. Raises OutputError."""
    _write(path, (text.encode("utf-8", "backslashreplace"),))


def cannot_write(path: StrPath, error: OSError) -> OutputError:
    """Return an error with the reason that the system gives and what to do about it."""
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


class Spool(Generic[T]):
    """Records kept in a temporary file, so that a second pass over them needs no memory. Iterate
    once all are added, as often as needed: they come in their order."""

    def __init__(self) -> None:
        self._file, self._count = TemporaryFile(), 0  # noqa: SIM115, it lives as long as this
        weakref.finalize(self, self._file.close)

    def add(self, record: T) -> None:
        pickle.dump(record, self._file, pickle.HIGHEST_PROTOCOL)
        self._count += 1

    def __iter__(self) -> Iterator[T]:
        at = 0
        for _ in range(self._count):
            self._file.seek(at)  # another reader may be elsewhere
            record = pickle.load(self._file)
            at = self._file.tell()
            yield record


def to_plain(value: Any) -> Any:
    """Return the value as JSON can hold it: records to dicts, enums to their values, tuples to
    lists.

    Numbers that JSON lacks (NaN, infinity) become null. Array scalars and arrays become numbers
    and lists; anything else that is foreign to JSON becomes its text.
    """
    if isinstance(value, Enum):
        return to_plain(value.value)
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(to_plain(key)): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return to_plain(value.tolist())
    return str(value)


def to_json(record: Any) -> dict[str, Any]:
    """Return a record (dataclass or mapping) as a dict that `json` can write.

    Lone surrogates stay in the text; the writers here escape everything outside ASCII, so they
    survive the file.
    """
    result = to_plain(record)
    if not isinstance(result, dict):
        raise TypeError(f"{type(record).__name__} is not a record: pass a dataclass or a mapping")
    return result


def as_json(value: Any) -> Any:
    """Return a record, or a tuple of them, as `json.dumps` takes it: by its own `record` method if
    it has one, else `dataclasses.asdict` without its deep copies, which cost more than all the rest
    of an answer."""
    kind = type(value)
    if hasattr(kind, "record"):
        return value.record()
    if names := _names(kind):
        return {name: as_json(getattr(value, name)) for name in names}
    if kind is tuple and value and _names(type(value[0])):
        return [as_json(one) for one in value]
    return value


def _names(kind: type) -> tuple[str, ...]:
    if kind not in _FIELDS:
        _FIELDS[kind] = tuple(f.name for f in fields(kind)) if is_dataclass(kind) else ()
    return _FIELDS[kind]


_FIELDS: dict[type, tuple[str, ...]] = {}
_WRITTEN = json.JSONEncoder(ensure_ascii=True, allow_nan=False, default=to_plain)


def encoded(text: str) -> bytes:
    """Encode a text as UTF-8 that holds lone surrogates too."""
    return text.encode("utf-8", "surrogatepass")


def text_digest(text: str) -> bytes:
    """Return the SHA-256 of a text, lone surrogates included."""
    return hashlib.sha256(encoded(text)).digest()
