"""Sources of input rows: JSON lines or arrays, CSV, Parquet, a saved dataset, or a hub dataset.

A source yields each row's number, from 1, and a function that loads the row. That function raises
BadField if only this row cannot be read. InputError means that the source as a whole cannot be
read.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast
from urllib.parse import unquote

from autoj_reward.errors import InputError
from autoj_reward.io.checks import BadField, show

DAMAGED = (OSError, ValueError, EOFError, zlib.error)
"""Errors of a text file that is truncated, wrongly encoded, or damaged within its compression."""
# Table readers pass on exceptions of their dependencies: codecs, cache, network.
ANY = (Exception,)
Numbered = Iterator[tuple[int, Callable[[], Any]]]
"""(row number, function that loads the row) pairs."""
TEXT_SUFFIXES = (".jsonl", ".ndjson", ".json")
TABLE_SUFFIXES = {".csv": ",", ".tsv": "\t"}
"""Suffixes of tables of texts, with what stands between two columns."""
MAX_CELL = 2**27
"""Longest cell of such a table, in characters."""
BATCH_ROWS = 256
"""Rows of a table that are read at a time."""
HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)
SPACE = re.compile(r"[ \t\n\r]*")


def number_rows(source: str) -> Numbered:
    """Yield the number and the loading function of each row.

    Raises InputError if the source is missing, unreadable or of an unknown format.
    """
    suffix = Path(source.lower().removesuffix(".gz")).suffix
    if source.startswith("hf://"):
        return _read_dataset(source, hub_dataset(source).load)
    if Path(source).is_dir():
        return _read_dataset(source, partial(_load_saved, source))
    if suffix == ".parquet":
        return _read_parquet(source)
    if suffix in TABLE_SUFFIXES:
        return _read_table(source, TABLE_SUFFIXES[suffix])
    if suffix == ".json" and _is_array(source):
        return _read_array(source)
    if source == "-" or suffix in TEXT_SUFFIXES:
        return _read_lines(source)
    suffixes = ", ".join((*TEXT_SUFFIXES, *TABLE_SUFFIXES))
    raise InputError(
        f"cannot tell the format of {source!r}; give a {suffixes} (also with .gz) or .parquet file,"
        " a saved dataset's folder, hf://owner/name?split=train, or - for JSON lines on stdin"
    )


@dataclass(slots=True)
class _Place:
    """Number of the last line that was read completely; 0 if none was, or if the source has no
    lines."""

    line: int = 0


@contextmanager
def _explain_errors(source: str, errors: tuple[type[Exception], ...]) -> Iterator[_Place]:
    """Turn these exceptions of opening and reading a source into InputError."""
    place = _Place()
    try:
        yield place
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"{source} cannot be found; check the path: {error}") from error
    except ImportError as error:
        raise InputError(f"{source} needs pyarrow and datasets; install them: {error}") from error
    except errors as error:
        after = f" after line {place.line}" if place.line else ""
        message = f"{type(error).__name__}: {error}"
        raise InputError(f"{source} cannot be read{after}; check what it is: {message}") from error


def _read_lines(source: str) -> Numbered:
    """Yield every line that is not blank; the first may begin with a byte order mark."""
    with (
        _explain_errors(source, DAMAGED) as place,
        nullcontext(sys.stdin.buffer) if source == "-" else _open_source(source) as stream,
    ):
        for number, raw in enumerate(stream, 1):
            place.line = number
            line = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
            if line.strip():
                yield number, partial(_decode, line.rstrip(b"\r\n"))


def _read_table(source: str, separator: str) -> Numbered:
    """Yield the rows of a table of texts, by the line that each begins on; its first row names the
    columns."""
    with _explain_errors(source, (*DAMAGED, csv.Error)) as place, _open_source(source) as raw:
        csv.field_size_limit(MAX_CELL)
        text = io.TextIOWrapper(raw, encoding="utf-8-sig", newline="")
        separator = _find_separator(text.readline(), separator)
        text.seek(0)
        rows = csv.reader(text, delimiter=separator, strict=True)
        names = next(rows, [])
        if len(set(names)) < len(names):
            listed = ", ".join(names)
            raise InputError(f"{source} has columns of the same name: {listed}; rename one")
        place.line = rows.line_num
        for cells in rows:
            number = place.line + 1
            place.line = rows.line_num
            if cells:
                yield number, partial(_join_cells, names, cells)


def _find_separator(header: str, usual: str) -> str:
    """Return what stands between columns: spreadsheets write semicolons where numbers have a
    decimal comma."""
    return usual if usual in header else next((mark for mark in ";\t" if mark in header), usual)


def _join_cells(names: list[str], cells: list[str]) -> dict[str, Any]:
    if len(cells) != len(names):
        raise BadField("", f"{len(cells)} cells in a table of {len(names)} columns")
    return dict(zip(names, cells, strict=True))


def _open_source(source: str) -> BinaryIO:
    if source.lower().endswith(".gz"):
        return cast(BinaryIO, gzip.open(source, "rb"))
    return open(source, "rb")


def _is_array(source: str) -> bool:
    with _explain_errors(source, DAMAGED), _open_source(source) as stream:
        return stream.read(64).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")


def _read_array(source: str) -> Numbered:
    """Yield the items of one JSON array, numbered from 1."""
    with _explain_errors(source, DAMAGED):
        with _open_source(source) as stream:
            text = stream.read().decode("utf-8-sig")
        at = _skip(text, text.index("[") + 1)
        number, more = 0, text[at : at + 1] != "]"
        while more:
            number += 1
            try:
                load, at = _parse_item(text, at)
            except RecursionError as error:
                where = f"{source}:{_find_line_number(text, at)}"
                raise InputError(f"{where}: row {number} is nested too deeply") from error
            yield number, load
            at = _skip(text, at)
            if text[at : at + 1] not in (",", "]"):
                raise json.JSONDecodeError("Expecting ',' delimiter", text, at)
            more = text[at] == ","
            at = _skip(text, at + 1) if more else at
        if (end := _skip(text, at + 1)) < len(text):
            raise json.JSONDecodeError("Extra data", text, end)


def _parse_item(text: str, at: int) -> tuple[Callable[[], Any], int]:
    """Return (loading function, end position) of the JSON value that begins at `at`."""
    try:
        item, end = _UNIQUE.raw_decode(text, at)
    except BadField as error:
        _, end = _PLAIN.raw_decode(text, at)
        reason = f"{error.reason}, in the row that begins on line {_find_line_number(text, at)}"
        return partial(_refuse, error.field, reason), end
    return partial(_return_item, item), end


def _skip(text: str, at: int) -> int:
    match = SPACE.match(text, at)
    return match.end() if match else at


def _find_line_number(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _return_item(item: Any) -> Any:
    return item


def _refuse(field: str, reason: str) -> Any:
    raise BadField(field, reason)


def _decode(line: bytes) -> Any:
    try:
        return _UNIQUE.decode(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise BadField("", f"not UTF-8: byte 0x{byte:02x} at byte {error.start + 1}") from None
    except json.JSONDecodeError as error:
        raise BadField("", f"invalid JSON at column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise BadField("", "invalid JSON: nested too deeply") from None
    except ValueError as error:  # an integer with more digits than Python converts
        raise BadField("", f"invalid JSON: {error}") from None


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    whole = dict(pairs)
    if len(whole) == len(pairs):
        return whole
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise BadField(key, f"duplicate key: first {show(result[key])}, then {show(value)}")
        result[key] = value
    return result


_PLAIN, _UNIQUE = json.JSONDecoder(), json.JSONDecoder(object_pairs_hook=_reject_duplicates)


def _read_parquet(source: str) -> Numbered:
    with _explain_errors(source, ANY):
        from pyarrow.parquet import ParquetFile

        with ParquetFile(source) as file:
            _check_columns(source, file.schema_arrow)
            yield from _read_batches(file.iter_batches(batch_size=BATCH_ROWS))


def _read_dataset(source: str, load: Callable[[], Any]) -> Numbered:
    with _explain_errors(source, ANY):
        dataset = load()
        if isinstance(dataset, dict):
            splits = ", ".join(dataset)
            raise InputError(f"{source} holds the splits {splits}; name one: {source}/SPLIT")
        _check_columns(source, dataset.features.arrow_schema)
        yield from _read_batches(dataset.with_format("arrow").iter(batch_size=BATCH_ROWS))


def _load_saved(source: str) -> Any:
    import datasets

    return datasets.load_from_disk(source)


@dataclass(frozen=True, slots=True)
class HubDataset:
    """Dataset on the hub; its own loading code is never run."""

    path: str
    split: str
    config: str | None
    revision: str | None

    def load(self) -> Any:
        import datasets

        # Without the `hf://` prefix, a local folder of that name would be loaded instead.
        return datasets.load_dataset(
            f"hf://datasets/{self.path}",
            name=self.config,
            split=self.split,
            revision=self.revision,
        )


def hub_dataset(source: str) -> HubDataset:
    """Parse `hf://owner/name?split=...&config=...&revision=...`.

    split defaults to train, the others to the hub's own defaults. Raises InputError for any other
    parameter, a repeated one, or an address that is not an owner and a name.
    """
    address, _, parameters = source.removeprefix("hf://").partition("?")
    pairs = [part.partition("=") for part in parameters.split("&")] if parameters else []
    values = {unquote(key): unquote(value) for key, _, value in pairs}
    has_known_keys = set(values) <= {"split", "config", "revision"} and len(values) == len(pairs)
    if not has_known_keys or not all(values.values()) or not HUB_NAME.fullmatch(address):
        raise InputError(
            f"bad dataset address {source!r};"
            " write hf://owner/name?split=train&config=main&revision=main"
        )
    split = values.get("split", "train")
    return HubDataset(address, split, values.get("config"), values.get("revision"))


def _check_columns(source: str, schema: Any) -> None:
    """Raise InputError if two columns of a table have the same name."""
    columns = schema.names
    if len(set(columns)) < len(columns):
        raise InputError(f"{source} has columns of the same name: {', '.join(columns)}; rename one")


def _read_batches(batches: Any) -> Numbered:
    number = 0
    for batch in batches:
        for index in range(batch.num_rows):
            number += 1
            yield number, partial(_read_row, batch, index)


def _read_row(batch: Any, index: int) -> dict[str, Any]:
    """Return one row of an Arrow table. NaN cells become None, since pandas writes missing values
    so."""
    try:
        (row,) = batch.slice(index, 1).to_pylist()
    except (ValueError, OverflowError) as error:  # text that is not UTF-8, a date out of range
        raise BadField("", f"a value cannot be read: {error}") from None
    return {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in row.items()}
