"""Input rows as validated records, read all at once or as a stream; bad rows are named and left
out."""

from __future__ import annotations

import copy
import shutil
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from tempfile import NamedTemporaryFile
from typing import Any, Generic, TypeVar

from tqdm import tqdm

from autoj_reward.conversation import EMPTY_CONTEXT, Context, Prompt, Response
from autoj_reward.errors import InputError
from autoj_reward.io.checks import BadField
from autoj_reward.io.sources import number_rows
from autoj_reward.io.splits import RowSplit
from autoj_reward.rubric_items import RubricItem
from autoj_reward.types import BadRow

T = TypeVar("T")
S = TypeVar("S")
Records = Iterator[tuple[int, Any]]
"""(line, record or BadRow) pairs."""
LISTED = 20
"""Maximum bad rows listed in an error message."""
KEPT = 1000
"""Maximum bad rows kept with their reasons. All are counted, and named when they are read."""


@dataclass(frozen=True, slots=True)
class Rows(Generic[T]):
    """Usable rows and bad rows of a source, both in input order."""

    rows: tuple[T, ...]
    bad: tuple[BadRow, ...] = ()


@dataclass(frozen=True, slots=True)
class TextRow:
    """Requested texts and context of an input row."""

    line: int
    """Number of the row, from 1."""
    prompt: Prompt
    responses: tuple[Response, ...]
    """The requested responses, in the order requested."""
    fields: dict[str, Any]
    """All fields of the row, in order."""
    context: Context = EMPTY_CONTEXT
    rubric: tuple[RubricItem, ...] = ()


@dataclass(frozen=True, slots=True)
class QueryRow:
    """One input row of a best-of-N job."""

    line: int
    """Number of the row, from 1."""
    prompt: Prompt
    responses: tuple[Response, ...] | None = None
    """Responses to rate; None if a policy must sample them."""
    logprobs: tuple[float, ...] | None = None
    """Log-probability of each response under the policy."""
    extra: dict[str, Any] = field(default_factory=dict)
    """The row's other fields, including context fields, which are copied to the output."""
    context: Context = EMPTY_CONTEXT
    rubric: tuple[RubricItem, ...] = ()


class Stream(Generic[T]):
    """Rows of a source in order, read anew on each iteration; a bad row is yielded as a BadRow.

    Iterating raises InputError if the source as a whole cannot be read, or has no row.
    """

    def __init__(self, source: str, build: Callable[[int, Any], T]) -> None:
        """Open a source for streaming; `-` copies standard input to a temporary file.

        build: makes the record from a row's number and value; raises BadField.
        """
        self.name = "<stdin>" if source == "-" else source
        self._source = source
        self._build = build
        self._stages: tuple[Callable[[Records], Records], ...] = ()
        self._first = 0
        self._last = sys.maxsize
        self._split: RowSplit | None = None
        self._original: Stream[Any] | None = None
        if source == "-":
            stdin_copy = NamedTemporaryFile(suffix=".jsonl")  # noqa: SIM115, it lives as long as this
            weakref.finalize(self, stdin_copy.close)
            shutil.copyfileobj(sys.stdin.buffer, stdin_copy)
            stdin_copy.flush()
            self._source = stdin_copy.name

    def __iter__(self) -> Iterator[T | BadRow]:
        rows = self._read()
        for stage in self._stages:
            rows = stage(rows)
        return (row for _, row in rows)

    def _read(self) -> Iterator[tuple[int, Any]]:
        """Yield (line, record or BadRow) of every row."""
        empty = True
        for line, load in islice(number_rows(self._source), self._first, self._last):
            empty = False
            row: T | BadRow
            try:
                value = load()
                if self._split is not None and not self._split.takes(value):
                    continue
                row = self._build(line, value)
            except BadField as why:
                row = self._bad(line, why)
            yield line, row
        if empty:
            raise InputError(f"{self.name} has no rows; give it at least one")

    def _bad(self, line: int, why: BadField) -> BadRow:
        return BadRow(self.name, line, why.field, why.reason, why.layout)

    def part(self, first: int, last: int) -> Stream[T]:
        """Return a stream of rows first..last-1, counted from 0."""
        stream = self._copy()
        stream._first, stream._last = first, last
        return stream

    def within(self, split: RowSplit | None) -> Stream[T]:
        """Return a stream of the rows that a split takes; None takes all."""
        stream = self._copy()
        stream._split = split
        return stream

    def mapped(self, transform: Callable[[T], S]) -> Stream[S]:
        """Return a stream with `transform` applied to each usable row. It may raise BadField."""

        def stage(rows: Records) -> Records:
            for line, row in rows:
                if isinstance(row, BadRow):
                    yield line, row
                    continue
                try:
                    record: Any = transform(row)
                except BadField as why:
                    record = self._bad(line, why)
                yield line, record

        return self.staged(stage)

    def expanded(self, expand: Callable[[T], Iterable[S]]) -> Stream[S]:
        """Return a stream of all records that `expand` makes of each usable row."""

        def stage(rows: Records) -> Records:
            for line, row in rows:
                if isinstance(row, BadRow):
                    yield line, row
                    continue
                try:
                    for record in expand(row):
                        yield line, record
                except BadField as why:
                    yield line, self._bad(line, why)

        return self.staged(stage)

    def staged(self, stage: Callable[[Records], Records]) -> Stream[Any]:
        """Return a stream whose records go through a stage, which may join several of them.

        A stage gets and yields (line, record or BadRow) pairs.
        """
        stream: Stream[Any] = self._copy()
        stream._stages = (*self._stages, stage)
        return stream

    def _copy(self) -> Stream[T]:
        stream = copy.copy(self)
        stream._original = self  # keeps the temporary file that both read
        return stream

    def usable(self) -> Iterator[T]:
        """Return an iterator over the usable rows only."""
        return (row for row in self if not isinstance(row, BadRow))


@dataclass(slots=True)
class BadRows:
    """Count of bad rows, and the first KEPT of them."""

    count: int = 0
    first: list[BadRow] = field(default_factory=list)

    def add(self, bad: BadRow) -> None:
        self.count += 1
        if len(self.first) < KEPT:
            self.first.append(bad)

    def extend(self, others: BadRows) -> None:
        self.count += others.count
        self.first += others.first[: KEPT - len(self.first)]


def look_through(
    rows: Stream[T], strict: bool = False, each: Callable[[T], None] = lambda row: None
) -> BadRows:
    """Read every row once before any work starts, and print the bad ones.

    each: called with every usable row. Raises InputError if no row is usable, or if `strict` is set
    and any row is bad.
    """
    usable, left_out = 0, BadRows()
    for row in rows:
        if isinstance(row, BadRow):
            left_out.add(row)
            if not strict:
                tqdm.write(f"left out {row}")
        else:
            usable += 1
            each(row)
    if strict:
        require_none(left_out, usable)
    if not usable:
        raise InputError(f"{rows.name}: no usable row; {left_out.count} left out, each named above")
    return left_out


def require_none(left_out: BadRows, usable: int) -> None:
    """Raise InputError with the count and the first 20 bad rows, if there are any."""
    if left_out.count:
        total = usable + left_out.count
        lines = [f"{left_out.count} of {total} rows are bad; correct or remove them:"]
        lines += [f"  {bad}" for bad in left_out.first[:LISTED]]
        if left_out.count > LISTED:
            lines.append(f"  and {left_out.count - LISTED} more")
        raise InputError("\n".join(lines))


def require_clean(rows: Rows[Any]) -> None:
    """Raise InputError with the count and the first 20 bad rows, if there are any."""
    require_none(BadRows(len(rows.bad), list(rows.bad)), len(rows.rows))


def read_rows(source: str, build: Callable[[int, Any], T]) -> Rows[T]:
    """Read a record of every row. A row whose loading or building raises BadField is bad.

    build: makes the record from a row's number and value. Raises InputError if the source as a
    whole cannot be read, or has no row.
    """
    return read_all(Stream(source, build))


def read_all(stream: Stream[T]) -> Rows[T]:
    """Read a whole stream into memory."""
    rows: list[T] = []
    bad: list[BadRow] = []
    for row in stream:
        if isinstance(row, BadRow):
            bad.append(row)
        else:
            rows.append(row)
    return Rows(tuple(rows), tuple(bad))


def require_usable(rows: Rows[Any], source: str, strict: bool = False) -> None:
    """Print every bad row. Raises InputError if no row is usable, or if `strict` is set and any is
    bad."""
    if strict:
        require_clean(rows)
    for bad in rows.bad:
        tqdm.write(f"left out {bad}")
    if not rows.rows:
        raise InputError(f"{source}: no usable row; {len(rows.bad)} left out, each named above")


def join_fields(fields: dict[str, Any], added: dict[str, Any]) -> dict[str, Any]:
    """Return an output row: the input's own fields in order, then the added ones.

    An added field replaces an input field of the same name. The input's value is then kept under
    `overwritten`, a key that only such rows have.
    """
    clash = {k: v for k, v in fields.items() if k in added}
    if clash and "overwritten" in fields:
        clash["overwritten"] = fields["overwritten"]
    input_fields = {k: v for k, v in fields.items() if k not in clash}
    return input_fields | ({"overwritten": clash} if clash else {}) | added
