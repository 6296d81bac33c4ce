"""Rows that are read while they are worked on, so that an input may be of any size, and records
that wait on disk for a second pass."""

from __future__ import annotations

import copy
import pickle
import shutil
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from tempfile import NamedTemporaryFile, TemporaryFile
from typing import Any, Generic, TypeVar, cast

from tqdm import tqdm

from autoj_reward.errors import InputError
from autoj_reward.io.checks import BadField
from autoj_reward.io.sources import numbered
from autoj_reward.types import BadRow

T = TypeVar("T")
S = TypeVar("S")
LISTED = 20
KEPT = 1000
"""Bad rows that are kept with what is wrong with them; all are counted, and named as they come."""


class Stream(Generic[T]):
    """The rows of a source in their order, read anew each time; a bad one as what is wrong with it.

    build: from a row's number and its value; raises BadField. required: columns that a table must
    have. Lines on standard input are copied to a temporary file. Iterating raises InputError if the
    source as a whole cannot be read, or has no row.
    """

    def __init__(
        self, source: str, build: Callable[[int, Any], T], required: Sequence[str] = ()
    ) -> None:
        self.name = "<stdin>" if source == "-" else source
        self._source, self._build, self._required = source, build, tuple(required)
        self._first, self._last = 0, sys.maxsize
        self._of: Stream[Any] | None = None
        if source == "-":
            copy = NamedTemporaryFile(suffix=".jsonl")  # noqa: SIM115, it lives as long as this
            weakref.finalize(self, copy.close)
            shutil.copyfileobj(sys.stdin.buffer, copy)
            copy.flush()
            self._source = copy.name

    def __iter__(self) -> Iterator[T | BadRow]:
        empty = True
        rows = numbered(self._source, self._required)
        for line, load in islice(rows, self._first, self._last):
            empty = False
            try:
                row: T | BadRow = self._build(line, load())
            except BadField as why:
                row = BadRow(self.name, line, why.field, why.reason)
            yield row
        if empty:
            wanted = f" with {', '.join(self._required)}" if self._required else ""
            raise InputError(f"{self.name} has no rows; give it at least one{wanted}")

    def part(self, first: int, last: int) -> Stream[T]:
        """The rows from one place up to another, which is left out; the first has place 0."""
        own = self._again()
        own._first, own._last = first, last
        return own

    def mapped(self, made: Callable[[T], S]) -> Stream[S]:
        """What is made of each usable row."""
        own, build = cast("Stream[S]", self._again()), self._build
        own._build = lambda line, value: made(build(line, value))
        return own

    def _again(self) -> Stream[T]:
        own = copy.copy(self)
        own._of = self  # whose temporary file it reads
        return own

    def usable(self) -> Iterator[T]:
        return (row for row in self if not isinstance(row, BadRow))


@dataclass(slots=True)
class LeftOut:
    """Bad rows: how many, and the first of them."""

    count: int = 0
    first: list[BadRow] = field(default_factory=list)

    def add(self, bad: BadRow) -> None:
        self.count += 1
        if len(self.first) < KEPT:
            self.first.append(bad)

    def extend(self, others: LeftOut) -> None:
        self.count += others.count
        self.first += others.first[: KEPT - len(self.first)]


def look_through(
    rows: Stream[T], strict: bool = False, each: Callable[[T], None] = lambda row: None
) -> LeftOut:
    """Read every row once, before anything is started for them, and name the bad ones.

    each: is told of every usable row. Raises InputError if none is usable, or if strict and one is
    bad.
    """
    usable, left_out = 0, LeftOut()
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


def require_none(left_out: LeftOut, usable: int) -> None:
    """Raise InputError with the count of bad rows and the first 20 of them, if there are any."""
    if left_out.count:
        total = usable + left_out.count
        lines = [f"{left_out.count} of {total} rows are bad; correct or remove them:"]
        lines += [f"  {bad}" for bad in left_out.first[:LISTED]]
        if left_out.count > LISTED:
            lines.append(f"  and {left_out.count - LISTED} more")
        raise InputError("\n".join(lines))


class Spool(Generic[T]):
    """Records in a temporary file: read, once all are there, anew each time and in their order."""

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
