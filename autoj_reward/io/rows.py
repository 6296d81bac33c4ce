"""Input rows read into checked records, all at once or while they are worked on; every malformed
row is named and left out."""

from __future__ import annotations

import copy
import shutil
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from tempfile import NamedTemporaryFile
from typing import Any, Generic, TypeVar, cast

from tqdm import tqdm

from autoj_reward.conversation import (
    NOTHING,
    BadMessages,
    Context,
    ContextColumn,
    Turn,
    before_response,
    content_text,
    plain,
)
from autoj_reward.errors import InputError
from autoj_reward.io import checks as check
from autoj_reward.io.checks import BadField
from autoj_reward.io.sources import CONVERSATIONS, numbered
from autoj_reward.types import Asking, BadRow

T = TypeVar("T")
S = TypeVar("S")
LISTED = 20
KEPT = 1000
"""Bad rows that are kept with what is wrong with them; all are counted, and named as they come."""


@dataclass(frozen=True, slots=True)
class Rows(Generic[T]):
    """The usable rows and the bad ones that were left out, both in input order."""

    rows: tuple[T, ...]
    bad: tuple[BadRow, ...] = ()


@dataclass(frozen=True, slots=True)
class TextRow:
    """The texts and the context of a row that were asked for; `fields` holds all the row's own
    fields in their order."""

    line: int
    texts: tuple[str, ...]
    fields: dict[str, Any]
    context: Context = NOTHING


@dataclass(frozen=True, slots=True)
class QueryRow:
    """One input row of a best-of-N job; `extra` holds the row's other fields, passed through, those
    of the context among them."""

    line: int
    query: str
    responses: tuple[str, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    context: Context = NOTHING

    @property
    def asked(self) -> Asking:
        """The prompt of the policy: the conversation, or the query alone."""
        return self.context.turns or self.query


class Stream(Generic[T]):
    """The rows of a source in their order, read anew each time; a bad one as a BadRow.

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
        """Return the rows from one place up to another, which is left out; the first has place
        0."""
        own = self._again()
        own._first, own._last = first, last
        return own

    def mapped(self, made: Callable[[T], S]) -> Stream[S]:
        """Return a stream of what is made of each usable row."""
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
    """Count of the bad rows, and the first KEPT of them."""

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

    each: called with every usable row. Raises InputError if none is usable, or if strict and one is
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


def read_queries(source: str, asked: Sequence[ContextColumn] = ()) -> Rows[QueryRow]:
    """Read all rows of `queries` at once."""
    return gathered(queries(source, asked))


def queries(
    source: str, asked: Sequence[ContextColumn] = (), answered: bool = False
) -> Stream[QueryRow]:
    """Stream queries, each with its responses and their log-probabilities where the row has them,
    and the context that is asked for.

    source: a `.jsonl`, `.ndjson` or `.json` file of one JSON object a line (also with `.gz`, and
        `.json` also as one array, whose items are then the lines), `-` for lines on standard
        input, a `.parquet` file, a folder written by `save_to_disk`, or a hub dataset
        `hf://owner/name?split=train&config=main&revision=main` (split defaults to train).
    `query` is a text that is not blank; without one the row's conversation is asked: see
    `with_query`. `responses`, unless absent or null, are 1 to
    MAX_RESPONSES texts, "" among them; `logprobs` are as many finite numbers.
    answered: a row without responses is bad, since nobody is there to give them.
    All rows may turn out bad. Reading raises InputError if the source as a whole cannot be read,
    lacks a required column, or has no row at all.
    """

    def build(line: int, value: Any) -> QueryRow:
        fields = check.own_fields(value)
        read, turns = with_query(fields)
        query = check.text(read, "query", blank=False)
        responses = check.responses(fields)
        if answered and responses is None:
            raise BadField("responses", "none given, and the config has no policy")
        logprobs = check.numbers(fields, "logprobs", None if responses is None else len(responses))
        extra = {k: v for k, v in fields.items() if k not in ("query", "responses", "logprobs")}
        known = check.context(fields, asked).after(turns)
        return QueryRow(line, query, responses, logprobs, extra, known)

    return Stream(source, build, ("query",))


def group_rows(source: str, asked: Sequence[ContextColumn] = ()) -> Stream[TextRow]:
    """Stream groups. The texts of a row are its `query`, then its two or more `responses`.

    Sources and errors are as for `queries`.
    """

    def build(line: int, value: Any) -> TextRow:
        fields = check.own_fields(value)
        read, turns = with_query(fields)
        query = check.text(read, "query", blank=False)
        responses = check.responses(fields) or ()
        if len(responses) < 2:
            raise BadField("responses", f"{len(responses)} given: a group has two or more")
        context = check.context(fields, asked).after(turns)
        return TextRow(line, (query, *responses), fields, context)

    return Stream(source, build, ("responses",))


def text_rows(source: str, *names: str, asked: Sequence[ContextColumn] = ()) -> Stream[TextRow]:
    """Stream the texts of these names of every row, a `query` not blank, and the context that is
    asked for; else as for `queries`. Of `messages`, the assistant's last turn is the `response`
    where the row has none.

    Where one name is asked for, a row may also be that text alone.
    """

    def build(line: int, value: Any) -> TextRow:
        alone = len(names) == 1 and isinstance(value, str)
        fields = check.own_fields({names[0]: value} if alone else value)
        read, turns = with_query(fields, "response" in names) if "query" in names else (fields, ())
        found = tuple(check.text(read, name, blank=name != "query") for name in names)
        return TextRow(line, found, fields, check.context(fields, asked).after(turns))

    return Stream(source, build, names)


def with_query(
    fields: dict[str, Any], rated: bool = False
) -> tuple[dict[str, Any], tuple[Turn, ...]]:
    """Return the fields of a row with its query as a text, and the turns that make this text.

    Without `query` it is the conversation of `messages`, or of `prompt` where that holds messages:
    all turns up to the response, which is a last turn of the assistant's. rated: that turn is
    `response` where the row has no own; a `completion`, as TRL has it, is a response too. BadField
    names the message.
    """
    name = next((one for one in CONVERSATIONS if fields.get(one) is not None), "")
    if fields.get("query") is not None or not isinstance(fields.get(name), list):
        return fields, ()
    own = _completion(fields) if rated else None
    try:
        turns, said = before_response(fields[name], not rated or own is not None)
    except BadMessages as error:
        raise BadField(f"{name}{error.where}", error.reason) from None
    for n, turn in enumerate(turns):
        check.text({f"{name}[{n}].content": turn.text}, f"{name}[{n}].content")
    response = {"response": said if own is None else own} if rated else {}
    return fields | {"query": plain(turns)} | response, turns


def _completion(fields: dict[str, Any]) -> Any:
    """The row's own response, if it has one."""
    if fields.get("response") is not None:
        return fields["response"]
    given = fields.get("completion")
    if not isinstance(given, list):
        return given
    if len(given) != 1 or not isinstance(given[0], dict) or given[0].get("role") != "assistant":
        raise BadField("completion", f"not one turn of the assistant's: {check.show(given)}")
    try:
        return content_text(given[0])
    except BadMessages as error:
        raise BadField(f"completion[0]{error.where}", error.reason) from None


def require_clean(rows: Rows[Any]) -> None:
    """Raise InputError with the count of bad rows and the first 20 of them, if there are any."""
    require_none(LeftOut(len(rows.bad), list(rows.bad)), len(rows.rows))


def read_rows(source: str, build: Callable[[int, Any], T], required: tuple[str, ...]) -> Rows[T]:
    """Read a record of every row; one whose loading or building raises BadField is left out.

    build: from the row's number and its value. required: columns that a table must have.
    Raises InputError if the source as a whole cannot be read, or has no row.
    """
    return gathered(Stream(source, build, required))


def gathered(stream: Stream[T]) -> Rows[T]:
    """Read a stream whole."""
    rows: list[T] = []
    bad: list[BadRow] = []
    for row in stream:
        if isinstance(row, BadRow):
            bad.append(row)
        else:
            rows.append(row)
    return Rows(tuple(rows), tuple(bad))


def require_usable(rows: Rows[Any], source: str, strict: bool = False) -> None:
    """Name every bad row on the terminal; InputError if no row is left, or if strict and one is
    bad."""
    if strict:
        require_clean(rows)
    for bad in rows.bad:
        tqdm.write(f"left out {bad}")
    if not rows.rows:
        raise InputError(f"{source}: no usable row; {len(rows.bad)} left out, each named above")


def join_fields(fields: dict[str, Any], added: dict[str, Any]) -> dict[str, Any]:
    """Return a row of an output: the input's own fields in their order, then what was found.

    A name that both have belongs to what was found; the row's own value is kept under
    `overwritten`, a key that only such rows have.
    """
    clash = {k: v for k, v in fields.items() if k in added}
    if clash and "overwritten" in fields:
        clash["overwritten"] = fields["overwritten"]
    own = {k: v for k, v in fields.items() if k not in clash}
    return own | ({"overwritten": clash} if clash else {}) | added
