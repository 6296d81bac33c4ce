"""Input rows read into checked records; every malformed row is named and left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tqdm import tqdm

from autoj_reward.errors import InputError
from autoj_reward.io import checks as check
from autoj_reward.io.checks import BadField, Limits
from autoj_reward.io.sources import numbered
from autoj_reward.types import BadRow, QueryRow

__all__ = [
    "Limits",
    "PairRow",
    "Rows",
    "SingleRow",
    "TextRow",
    "read_pairs",
    "read_queries",
    "read_rows",
    "read_singles",
    "read_texts",
    "require_clean",
    "require_usable",
]

T = TypeVar("T")
DEFAULT = Limits()
LISTED = 20


@dataclass(frozen=True, slots=True)
class Rows(Generic[T]):
    """The usable rows and the bad ones that were left out, both in input order."""

    rows: tuple[T, ...]
    bad: tuple[BadRow, ...] = ()


@dataclass(frozen=True, slots=True)
class SingleRow:
    """One response to rate; `fields` holds all the row's own fields in their order."""

    line: int
    query: str
    response: str
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class PairRow:
    """Two responses to compare; `fields` holds all the row's own fields in their order."""

    line: int
    query: str
    response_1: str
    response_2: str
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class TextRow:
    """One judge text to parse; `fields` holds all the row's own fields in their order."""

    line: int
    text: str
    fields: dict[str, Any]


def read_queries(source: str, *, limits: Limits = DEFAULT) -> Rows[QueryRow]:
    """Queries, each with its responses and their log-probabilities where the row has them.

    source: a `.jsonl`, `.ndjson` or `.json` file of one JSON object a line (also with `.gz`, and
        `.json` also as one array, whose items are then the lines), `-` for lines on standard
        input, a `.parquet` file, a folder written by `save_to_disk`, or a hub dataset
        `hf://owner/name?split=train&config=main&revision=main` (split defaults to train).
    `query` is a text that is not blank. `responses`, unless absent or null, are 1 to
    `max_responses` texts, "" among them; `logprobs` are as many finite numbers.
    All rows may turn out bad. Raises InputError if the source as a whole cannot be read, lacks
    a required column, or has no row at all.
    """

    def build(line: int, value: Any) -> QueryRow:
        fields = check.own_fields(value)
        query = check.text(fields, "query", limits, blank=False)
        responses = check.responses(fields, limits)
        logprobs = check.logprobs(fields, None if responses is None else len(responses))
        extra = {k: v for k, v in fields.items() if k not in ("query", "responses", "logprobs")}
        return QueryRow(line, query, responses, logprobs, extra)

    return read_rows(source, build, ("query",))


def read_singles(source: str, *, limits: Limits = DEFAULT) -> Rows[SingleRow]:
    """Rows of `query` (not blank) and `response`; sources and errors as for `read_queries`."""

    def build(line: int, value: Any) -> SingleRow:
        fields = check.own_fields(value)
        query = check.text(fields, "query", limits, blank=False)
        return SingleRow(line, query, check.text(fields, "response", limits), fields)

    return read_rows(source, build, ("query", "response"))


def read_pairs(source: str, *, limits: Limits = DEFAULT) -> Rows[PairRow]:
    """Rows of `query` (not blank), `response_1`, `response_2`; else as for `read_queries`."""

    def build(line: int, value: Any) -> PairRow:
        fields = check.own_fields(value)
        query = check.text(fields, "query", limits, blank=False)
        first = check.text(fields, "response_1", limits)
        second = check.text(fields, "response_2", limits)
        return PairRow(line, query, first, second, fields)

    return read_rows(source, build, ("query", "response_1", "response_2"))


def read_texts(source: str, *, limits: Limits = DEFAULT) -> Rows[TextRow]:
    """Judge texts: rows of `text`, or bare JSON strings; else as for `read_queries`."""

    def build(line: int, value: Any) -> TextRow:
        fields = check.own_fields({"text": value} if isinstance(value, str) else value)
        return TextRow(line, check.text(fields, "text", limits), fields)

    return read_rows(source, build, ("text",))


def require_clean(rows: Rows[Any]) -> None:
    """Raise InputError with the count of bad rows and the first 20 of them, if there are any."""
    if rows.bad:
        total = len(rows.rows) + len(rows.bad)
        lines = [f"{len(rows.bad)} of {total} rows are bad; correct or remove them:"]
        lines += [f"  {bad}" for bad in rows.bad[:LISTED]]
        if len(rows.bad) > LISTED:
            lines.append(f"  and {len(rows.bad) - LISTED} more")
        raise InputError("\n".join(lines))


def read_rows(source: str, build: Callable[[int, Any], T], required: tuple[str, ...]) -> Rows[T]:
    """A record of every row; one whose loading or building raises BadField is left out.

    build: from the row's number and its value. required: columns that a table must have.
    Raises InputError if the source as a whole cannot be read, or has no row.
    """
    name = "<stdin>" if source == "-" else source
    rows: list[T] = []
    bad: list[BadRow] = []
    for line, load in numbered(source, required):
        try:
            rows.append(build(line, load()))
        except BadField as why:
            bad.append(BadRow(name, line, why.field, why.reason))
    if not rows and not bad:
        wanted = f" with {', '.join(required)}" if required else ""
        raise InputError(f"{name} has no rows; give it at least one{wanted}")
    return Rows(tuple(rows), tuple(bad))


def require_usable(rows: Rows[Any], source: str) -> None:
    """Name every bad row on the terminal; InputError if no row is left."""
    for bad in rows.bad:
        tqdm.write(f"left out {bad}")
    if not rows.rows:
        raise InputError(f"{source}: no usable row; {len(rows.bad)} left out, each named above")
