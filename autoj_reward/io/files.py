"""File output: atomic writes, conversion of records to JSON, and temporary record storage."""

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

import pydantic_core

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
"""Name patterns of a file's related files: itself, its unfinished part, its claim, and SQLite's two
journal files."""
StrPath = str | os.PathLike[str]
WriteWatcher = Callable[[Path, os.stat_result], object]
"""Function that gets a file's real path and status before the file is put in its place."""
_WATCHERS: list[WriteWatcher] = []


def require_apart(
    inputs: Iterable[StrPath | None],
    outputs: Iterable[StrPath | None] = (),
    folder: StrPath | None = None,
) -> None:
    """Raise OutputError if a command would overwrite its inputs, under any of their names and
    links.

    inputs: input files and folders; None and names that do not exist here are skipped. outputs:
    output files. folder: output folder, in which no input may lie. No file is opened.
    """
    files = [name for path in outputs if path is not None for name in _list_companions(path)]
    real_folder, entries = os.path.realpath(folder) if folder is not None else None, list[Path]()
    with suppress(OSError):
        entries += Path(real_folder).iterdir() if real_folder else ()
    for path in inputs:
        source = "/dev/stdin" if path == "-" else path
        if not source or not os.path.exists(source):
            continue
        real = os.path.realpath(source)
        if real_folder and Path(real).is_relative_to(real_folder):
            raise OutputError(
                f"{folder}: the input {path} lies in this output folder, whose files the run "
                "replaces: move the input, or name another output"
            )
        names = _list_companions(source)
        for output in (*files, *entries):
            inside = output in files and Path(os.path.realpath(output)).is_relative_to(real)
            if inside or any(_is_same(name, output) for name in names):
                raise OutputError(
                    f"{output}: the run would write over its input {path}: name another output"
                )


def _list_companions(path: StrPath) -> list[Path]:
    base = Path(path)
    return [base.with_name(form.format(base.name)) for form in COMPANIONS] if base.name else [base]


def _is_same(first: Path, second: Path) -> bool:
    with suppress(OSError):
        return first.samefile(second)
    return os.path.realpath(first) == os.path.realpath(second)


def write_jsonl(path: StrPath, records: Iterable[Any]) -> None:
    """Write one JSON object per line, atomically. Raises OutputError."""
    _write(path, map(_format_line, records))


class OutputFile:
    """Result file that is being written; created by `filling`."""

    def __init__(self, path: StrPath, file: BinaryIO) -> None:
        self._path, self._file = path, file

    def add(self, data: bytes) -> None:
        with _explain_errors(self._path):
            self._file.write(data)

    def line(self, record: Any) -> None:
        """Append a record as a JSON line."""
        self.add(_format_line(record))


@contextmanager
def filling(path: StrPath) -> Iterator[OutputFile]:
    """Yield a file to write, which replaces the target only when the context ends without an error.

    Only one process may write a target at a time. Raises OutputError.
    """
    target = _resolve_target(path)
    part = target.with_name(f".{target.name}.part")

    def open_part() -> BinaryIO:
        part.unlink(missing_ok=True)  # left by a killed process, or a link to another file
        return part.open("xb")

    with _replace_file(path, part, open_part) as file:
        yield OutputFile(path, file)


def write_json(path: StrPath, obj: Any) -> None:
    """Write one indented JSON document, atomically. Raises OutputError."""
    text = json.dumps(to_plain(obj), ensure_ascii=False, allow_nan=False, indent=2)
    _write(path, (text.encode("utf-8", "backslashreplace"), b"\n"))


def write_text(path: StrPath, text: str) -> None:
    """Write UTF-8 text, atomically; lone surrogates as `\\udXXX`. Raises OutputError."""
    _write(path, (text.encode("utf-8", "backslashreplace"),))


def cannot_write(path: StrPath, error: OSError) -> OutputError:
    """Return an OutputError with the system's reason and a remedy."""
    remedy = _REMEDY.get(error.errno or 0, "name another output folder")
    return OutputError(f"cannot write {os.fspath(path)}: {error.strerror or str(error)}: {remedy}")


def _format_line(record: Any) -> bytes:
    return to_compact_json(record, finite=True, readable=True) + b"\n"


def _resolve_target(path: StrPath) -> Path:
    # Links are followed: replacing one would detach it from its target.
    return Path(os.path.realpath(path))


def _write(path: StrPath, chunks: Iterable[bytes]) -> None:
    temporary = _resolve_target(path).with_name(f".{secrets.token_hex(6)}.tmp")
    with _replace_file(path, temporary, lambda: temporary.open("xb")) as file:
        for chunk in chunks:
            with _explain_errors(path):
                file.write(chunk)


@contextmanager
def _replace_file(
    path: StrPath, temporary: Path, open_file: Callable[[], BinaryIO]
) -> Iterator[BinaryIO]:
    """Yield a temporary file beside the target, which then is flushed to disk and replaces the
    target."""
    target = _resolve_target(path)
    with _explain_errors(path):
        target.parent.mkdir(parents=True, exist_ok=True)
        _refuse_special(target)
        file = open_file()
    try:
        yield file
        with _explain_errors(path):
            file.flush()
            os.fsync(file.fileno())
            status = os.fstat(file.fileno())
            file.close()
            for on_write in _WATCHERS:
                on_write(target, status)
            temporary.replace(target)
    except BaseException:
        with suppress(OSError):  # closing flushes, which may fail again
            file.close()
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def watching_writes(on_write: WriteWatcher) -> Iterator[None]:
    """Call a function, within this context, before each file is put in its place.

    It is called with the file's real path and its status, which the file keeps at its place.
    """
    _WATCHERS.append(on_write)
    try:
        yield
    finally:
        _WATCHERS.remove(on_write)


@contextmanager
def _explain_errors(path: StrPath) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error) from error


def _refuse_special(target: Path) -> None:
    """Raise OSError if the target is a folder, device or pipe, which a file must not replace."""
    if not target.exists():
        return
    mode = target.stat().st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file", str(target))


class Spool(Generic[T]):
    """Records kept in a temporary file, so that further passes over them need no memory.

    Add all records first, then iterate over them as often as needed; they keep their order.
    """

    def __init__(self) -> None:
        self._file, self._count = TemporaryFile(), 0  # noqa: SIM115, it lives as long as this
        weakref.finalize(self, self._file.close)

    def add(self, record: T) -> None:
        pickle.dump(record, self._file, pickle.HIGHEST_PROTOCOL)
        self._count += 1

    def __iter__(self) -> Iterator[T]:
        at = 0
        for _ in range(self._count):
            self._file.seek(at)  # another iterator may have moved the position
            record = pickle.load(self._file)
            at = self._file.tell()
            yield record


def to_plain(value: Any) -> Any:
    """Return a value as plain JSON types: records become dicts, enums their values, tuples lists.

    NaN and infinity become null. Array scalars and arrays become numbers and lists. Any other value
    becomes its text. Lone surrogates stay in the text. They survive in a file because the writers
    of this module escape everything outside ASCII.
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


def to_compact_json(data: Any, *, finite: bool = False, readable: bool = False) -> bytes:
    """Return JSON data as ASCII without white space, several times faster than `json.dumps`.

    Records become objects, and enums their values. finite: write NaN and infinity as null.
    readable: write UTF-8 instead, with lone surrogates escaped.
    """
    try:
        return pydantic_core.to_json(
            data,
            ensure_ascii=not readable,
            inf_nan_mode="null" if finite else "constants",
            fallback=to_plain,
        )
    except ValueError:  # a lone surrogate, which only `json` escapes
        plain = to_plain(data) if finite else data
        separators = ",", ":"
        text = json.dumps(plain, separators=separators, default=to_plain, ensure_ascii=not readable)
        return text.encode("utf-8", "backslashreplace")


def encoded(text: str) -> bytes:
    """Return a text as UTF-8 bytes, including lone surrogates."""
    return text.encode("utf-8", "surrogatepass")


def text_digest(text: str) -> bytes:
    """Return the SHA-256 digest of a text, including lone surrogates."""
    return hashlib.sha256(encoded(text)).digest()
