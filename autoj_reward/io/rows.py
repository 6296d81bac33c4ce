"""Input rows as validated records, read all at once or as a stream; bad rows are named and left
out."""

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
    EMPTY_CONTEXT,
    BadMessages,
    Context,
    ContextColumn,
    Prompt,
    Response,
    before_response,
)
from autoj_reward.errors import InputError
from autoj_reward.io import checks as check
from autoj_reward.io.checks import BadField
from autoj_reward.io.sources import CONVERSATIONS, number_rows
from autoj_reward.rubric_items import RubricItem
from autoj_reward.types import BadRow

T = TypeVar("T")
S = TypeVar("S")
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

    def __init__(
        self, source: str, build: Callable[[int, Any], T], required: Sequence[str] = ()
    ) -> None:
        """Open a source for streaming; `-` copies standard input to a temporary file.

        build: makes the record from a row's number and value; raises BadField. required: columns
        that a table must have.
        """
        self.name = "<stdin>" if source == "-" else source
        self._source, self._build, self._required = source, build, tuple(required)
        self._first, self._last = 0, sys.maxsize
        self._original: Stream[Any] | None = None
        if source == "-":
            stdin_copy = NamedTemporaryFile(suffix=".jsonl")  # noqa: SIM115, it lives as long as this
            weakref.finalize(self, stdin_copy.close)
            shutil.copyfileobj(sys.stdin.buffer, stdin_copy)
            stdin_copy.flush()
            self._source = stdin_copy.name

    def __iter__(self) -> Iterator[T | BadRow]:
        empty = True
        rows = number_rows(self._source, self._required)
        for line, load in islice(rows, self._first, self._last):
            empty = False
            try:
                row: T | BadRow = self._build(line, load())
            except BadField as why:
                row = BadRow(self.name, line, why.field, why.reason)
            yield row
        if empty:
            needed = f" with {', '.join(self._required)}" if self._required else ""
            raise InputError(f"{self.name} has no rows; give it at least one{needed}")

    def part(self, first: int, last: int) -> Stream[T]:
        """Return a stream of rows first..last-1, counted from 0."""
        stream = self._copy()
        stream._first, stream._last = first, last
        return stream

    def mapped(self, transform: Callable[[T], S]) -> Stream[S]:
        """Return a stream with `transform` applied to each usable row."""
        stream, build = cast("Stream[S]", self._copy()), self._build
        stream._build = lambda line, value: transform(build(line, value))
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


def read_queries(source: str, context_columns: Sequence[ContextColumn] = ()) -> Rows[QueryRow]:
    """Read all rows of `queries` at once."""
    return read_all(queries(source, context_columns))


def queries(
    source: str, context_columns: Sequence[ContextColumn] = (), answered: bool = False
) -> Stream[QueryRow]:
    """Stream queries with their responses, log-probabilities and requested context, if the row has
    them.

    source: a `.jsonl`, `.ndjson` or `.json` file with one JSON object per line; also with `.gz`,
    and `.json` also as one array, whose items then count as lines. Or `-` for JSON lines on
    standard input, a `.parquet` file, a folder written by `save_to_disk`, or a hub dataset
    `hf://owner/name?split=train&config=main&revision=main` (split defaults to train).

    `query` is a text that is not blank. Without it, the row's conversation is the query: see
    `read_prompt`. `responses`, unless absent or null, are 1 to MAX_RESPONSES texts, which may be
    "", or lists of messages. `logprobs` are as many finite numbers.

    context_columns: those to read. answered: whether a row without responses is bad, since no
    policy can sample them. Reading raises InputError if the source as a whole cannot be read, lacks
    a required column, or has no row. All rows may turn out bad.
    """

    def build(line: int, value: Any) -> QueryRow:
        fields = check.own_fields(value)
        prompt, _ = read_prompt(fields)
        responses = check.responses(fields)
        if answered and responses is None:
            raise BadField("responses", "none given, and the config has no policy")
        logprobs = check.numbers(fields, "logprobs", None if responses is None else len(responses))
        extra = {k: v for k, v in fields.items() if k not in ("query", "responses", "logprobs")}
        return QueryRow(
            line, prompt, responses, logprobs, extra, *check.context(fields, context_columns)
        )

    return Stream(source, build, ("query",))


def group_rows(source: str, context_columns: Sequence[ContextColumn] = ()) -> Stream[TextRow]:
    """Stream groups: a prompt with its two or more `responses`.

    Sources and errors are as for `queries`.
    """

    def build(line: int, value: Any) -> TextRow:
        fields = check.own_fields(value)
        prompt, _ = read_prompt(fields)
        responses = check.responses(fields) or ()
        if len(responses) < 2:
            raise BadField("responses", f"{len(responses)} given: a group has two or more")
        return TextRow(line, prompt, responses, fields, *check.context(fields, context_columns))

    return Stream(source, build, ("responses",))


def text_rows(source: str, *names: str, asked: Sequence[ContextColumn] = ()) -> Stream[TextRow]:
    """Stream the prompt and the named responses of every row, with the requested context.

    `query` must not be blank. A response is a text, or messages. If a row has `messages` and no
    `response`, the last assistant turn is the response. Sources and errors are those of
    `queries`.
    """

    def build(line: int, value: Any) -> TextRow:
        fields = check.own_fields(value)
        prompt, last_turn = read_prompt(fields, "response" in names)
        answered_fields = fields if last_turn is None else fields | {"response": last_turn}
        responses = tuple(check.response(answered_fields, name) for name in names)
        return TextRow(line, prompt, responses, fields, *check.context(fields, asked))

    return Stream(source, build, ("query", *names))


def read_prompt(fields: dict[str, Any], rated: bool = False) -> tuple[Prompt, Any]:
    """Return the prompt of a row, and the response to it if `rated`; None where `response` has it.

    Without `query`, the prompt is the conversation in `messages`, or in `prompt` if that holds
    messages. It ends before the response: a final assistant turn, or, if `rated` and the row has no
    response of its own, the last assistant turn. TRL's `completion` counts as a response. Raises
    BadField for a blank query, and with the index of a bad message.
    """
    name = next((column for column in CONVERSATIONS if fields.get(column) is not None), "")
    if fields.get("query") is not None or not isinstance(fields.get(name), list):
        return Prompt(check.text(fields, "query", blank=False)), None
    row_response = own_response(fields) if rated else None
    try:
        prompt, last_turn = before_response(fields[name], not rated or row_response is not None)
    except BadMessages as error:
        raise BadField(f"{name}{error.where}", error.reason) from None
    for n, turn in enumerate(prompt.as_turns):
        check.text({f"{name}[{n}].content": turn.text}, f"{name}[{n}].content")
    if not rated:
        return prompt, None
    return prompt, last_turn if row_response is None else row_response


def own_response(fields: dict[str, Any]) -> Any:
    """Return a row's own response: its `response`, else TRL's `completion`; None without one.

    Raises BadField for a completion that is not one turn of the assistant's.
    """
    if fields.get("response") is not None:
        return fields["response"]
    completion = fields.get("completion")
    return check.response(fields, "completion") if isinstance(completion, list) else completion


def require_clean(rows: Rows[Any]) -> None:
    """Raise InputError with the count and the first 20 bad rows, if there are any."""
    require_none(BadRows(len(rows.bad), list(rows.bad)), len(rows.rows))


def read_rows(source: str, build: Callable[[int, Any], T], required: tuple[str, ...]) -> Rows[T]:
    """Read a record of every row. A row whose loading or building raises BadField is bad.

    build: makes the record from a row's number and value. required: columns that a table must have.
    Raises InputError if the source as a whole cannot be read, or has no row.
    """
    return read_all(Stream(source, build, required))


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
