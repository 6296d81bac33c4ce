"""Rows that train and measure judges: rated responses and human-labelled pairs.

Reads the published forms as they are: Auto-J's training files (`usrmsg`, `target_output`,
`pred_score` or `gt_label`), Eval-P (`prompt`, `response 1`, `response 2`, `label`), PandaLM
(three annotators), Anthropic HH (`chosen`, `rejected`) and this project's own (`query`,
`response` and `rating`, or `response_1`, `response_2` and `label`).
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import Field

from autoj_reward.config import Block
from autoj_reward.data.graded import GradedData
from autoj_reward.errors import InputError
from autoj_reward.formats.read import ParseFailure
from autoj_reward.formats.schema import PLACEHOLDER, JudgeFormat, parse_comparison, parse_rating
from autoj_reward.io import checks as check
from autoj_reward.io.checks import BadField
from autoj_reward.io.rows import Rows, Stream, read_all, read_rows
from autoj_reward.types import Verdict

LABELS = (Verdict.FIRST, Verdict.SECOND, Verdict.TIE)
"""Verdicts for the labels 0, 1 and 2 of the authors' files."""
LAST_TURN = "\n\nAssistant:"


class JudgeData(Block):
    """Training and validation rows."""

    folder: Path | None = None
    """Where relative paths start, except those from ./, which start in the working directory; null
    takes the environment variable AUTOJ_DATA."""
    rated: tuple[str, ...] = ()
    """Files of responses with a reference rating."""
    compared: tuple[str, ...] = ()
    """Files of human-labelled pairs."""
    held_out: float = Field(0.0, ge=0, lt=1)
    """Share of all queries that are kept for validation."""
    exclude: tuple[str, ...] = ()
    """Files of pairs that measure the judge: rows with one of their queries are left out."""
    graded: GradedData = GradedData()
    """Outputs of systems with a grade that orders them."""


@dataclass(frozen=True, slots=True)
class Rated:
    """Response with its reference rating."""

    source: str
    line: int
    query: str
    response: str
    rating: float
    judgement: str = ""
    """The critique that ends in this rating, or ""."""


@dataclass(frozen=True, slots=True)
class Compared:
    """Pair of responses to one query with the human label."""

    source: str
    line: int
    query: str
    responses: tuple[str, str]
    label: Verdict
    """FIRST, SECOND or TIE."""
    judgement: str = ""
    """The text of a comparison that ends in this verdict, or ""."""
    margin: float | None = None
    """How much better the better response is, in units of the reward, 0 or more. None if the row
    has no margin or margins were not read."""


def data_path(data: JudgeData, name: str) -> str:
    """Return the path of a data file; a relative one starts in the data folder.

    Paths from `hf://` or `./` and absolute ones are returned unchanged. Raises InputError if a
    relative path needs the folder and none is set.
    """
    if name.startswith(("hf://", "./")) or Path(name).is_absolute():
        return name
    folder = data.folder or os.environ.get("AUTOJ_DATA")
    if not folder:
        raise InputError(
            f"no folder for the data file {name!r}: set the environment variable AUTOJ_DATA, "
            "or data.folder in the config, to where the data is"
        )
    return str(Path(folder) / name)


def data_files(data: JudgeData, *more: str) -> list[str]:
    """Return the paths of all data files and folders of the config, and of `more`.

    Raises InputError as `data_path` does.
    """
    graded = [data.graded.folder] if data.graded.folder else []
    names = [*data.rated, *data.compared, *data.exclude, *graded, *more]
    return [data_path(data, name) for name in names]


def excluded_queries(data: JudgeData, fmt: JudgeFormat) -> set[str]:
    """Return the queries in the files of `exclude`; rows with one of them are not trained on."""
    return {row.query for row in pairs_of(data, data.exclude, fmt)}


def pairs_of(data: JudgeData, names: Iterable[str], fmt: JudgeFormat) -> list[Compared]:
    """Read the well-formed pairs of files of the data."""
    return [row for name in names for row in read_compared(data_path(data, name), fmt).rows]


def is_held_out(query: str, share: float) -> bool:
    """Return whether a query is validation data. A hash decides, so every file agrees."""
    digest = hashlib.sha256(query.encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def read_rated(source: str, fmt: JudgeFormat) -> Rows[Rated]:
    """Read the rated responses of a file. The result lists the bad rows, by line, apart.

    A row is also bad if its rating is off the format's scale, or differs from the rating in its
    judgement. Raises InputError if the source as a whole cannot be read.
    """

    def build(line: int, value: Any) -> Rated:
        row, judgement = check.own_fields(value), ""
        if message := _find_message_field(row):
            query, response = message_parts(row, message, fmt, "single")
            judgement = check.text(row, "target_output", blank=False)
            parsed = parse_rating(judgement, fmt)
            if isinstance(parsed, ParseFailure):
                raise BadField("target_output", f"no rating at its end: {parsed.reason}")
            rating = _read_rating(row, "pred_score", fmt) if "pred_score" in row else parsed.rating
            if parsed.rating != rating:
                raise BadField("pred_score", f"{rating:g}, but the text rates {parsed.rating:g}")
        else:
            query = check.text(row, "query", blank=False)
            response = check.text(row, "response")
            rating = _read_rating(row, "rating", fmt)
        return Rated(source, line, query, response, rating, judgement)

    return read_rows(source, build, ())


def read_compared(source: str, fmt: JudgeFormat, *, margins: bool = False) -> Rows[Compared]:
    """Read all rows of `compared` at once."""
    return read_all(compared(source, fmt, margins=margins))


def compared(source: str, fmt: JudgeFormat, *, margins: bool = False) -> Stream[Compared]:
    """Stream the human-labelled pairs of a file. Malformed rows are reported by line.

    margins: read the field `margin` of the rows that have it.
    """

    def build(line: int, value: Any) -> Compared:
        row, judgement = check.own_fields(value), ""
        if message := _find_message_field(row):
            query, *responses = message_parts(row, message, fmt, "pairwise")
            label = label_of(row, "gt_label")
            judgement = check.text(row, "target_output", blank=False)
            parsed = parse_comparison(judgement, fmt)
            if isinstance(parsed, ParseFailure):
                raise BadField("target_output", f"no verdict at its end: {parsed.reason}")
            if parsed.verdict != label:
                raise BadField("gt_label", f"{label}, but the text decides {parsed.verdict}")
        elif "annotator1" in row:
            query = check.text(row, "instruction", blank=False)
            if extra := check.text(row, "input"):
                query += "\n" + extra
            responses = [check.text(row, f"response{n}") for n in (1, 2)]
            label = _find_majority([_read_vote(row, f"annotator{n}") for n in (1, 2, 3)])
        elif "chosen" in row:
            query, responses, label = _read_dialogue(row)
        else:
            spaced = "response 1" in row
            query = check.text(row, "prompt" if spaced else "query", blank=False)
            names = ("response 1", "response 2") if spaced else ("response_1", "response_2")
            responses = [check.text(row, name) for name in names]
            label = label_of(row, "label")
        first, second = responses
        margin = _read_margin(row) if margins and "margin" in row else None
        return Compared(source, line, query, (first, second), label, judgement, margin)

    return Stream(source, build)


def swapped(row: Compared, fmt: JudgeFormat) -> Compared:
    """Return the pair in the other order, with "Response 1" and "Response 2" exchanged in its text.

    Raises InputError where the format's two labels have no word in common to exchange them by.
    """
    first, second = row.responses
    judgement = row.judgement
    if judgement:
        assert fmt.pairwise is not None  # the row was read by it
        first_label, second_label = (
            fmt.pairwise.labels["first"][0],
            fmt.pairwise.labels["second"][0],
        )
        word = os.path.commonprefix([first_label, second_label])  # noqa: RUF071 (characters are meant)
        if not word.strip():
            raise InputError(
                f"format {fmt.name}: cannot exchange {first_label!r} and {second_label!r} in a text"
            )
        ends = {
            first_label[len(word) :]: second_label[len(word) :],
            second_label[len(word) :]: first_label[len(word) :],
        }
        pattern = re.compile(
            f"({re.escape(word)})({'|'.join(map(re.escape, ends))})(?!\\w)", re.IGNORECASE
        )
        judgement = pattern.sub(lambda m: m[1] + ends[m[2]], judgement)
    return replace(row, responses=(second, first), label=row.label.swapped(), judgement=judgement)


def _find_message_field(row: dict[str, Any]) -> str | None:
    return next((name for name in ("usrmsg", "usermsg") if name in row), None)


def message_parts(row: dict[str, Any], field: str, fmt: JudgeFormat, kind: str) -> list[str]:
    """Split a row's rendered user message into query and responses, by the format's template.

    Raises BadField for a message of another template, or one that its texts make ambiguous.
    """
    message = check.text(row, field, blank=False)
    slot = fmt.protocol(kind)
    pieces = PLACEHOLDER.split(fmt.texts[slot.template])
    literals, names = pieces[::2], [slot.fields.get(name) for name in pieces[1::2]]
    if not (message.startswith(literals[0]) and message.endswith(literals[-1])):
        raise BadField(field, f"not the {kind} input of format {fmt.name}: {check.show(message)}")
    rest = message[len(literals[0]) : len(message) - len(literals[-1])]
    values = []
    for literal in literals[1:-1]:
        if rest.count(literal) != 1:
            raise BadField(
                field, f"{check.show(literal)} occurs {rest.count(literal)} times: not to be split"
            )
        value, _, rest = rest.partition(literal)
        values.append(value)
    parts = dict(zip(names, [*values, rest], strict=True))
    order = ["query", "response"] if kind == "single" else ["query", "response_1", "response_2"]
    if not parts["query"].strip():
        raise BadField(field, "the query is blank")
    return [parts[name] for name in order]


def _read_rating(row: dict[str, Any], field: str, fmt: JudgeFormat) -> float:
    value = row.get(field)
    try:
        rating = float(value) if not isinstance(value, bool) else None  # type: ignore[arg-type]
    except (TypeError, ValueError):
        rating = None
    if rating is None or not fmt.scale.admits(rating):
        scale = f"{fmt.scale.low} to {fmt.scale.high}"
        raise BadField(field, f"{check.show(value)} is no rating of the scale {scale}")
    return rating


def _read_margin(row: dict[str, Any]) -> float:
    margin = check.number(row["margin"], "margin")
    if margin < 0:
        raise BadField("margin", f"{check.show(margin)} is no margin: a number, 0 or more")
    return margin


def label_of(row: dict[str, Any], field: str) -> Verdict:
    """Read the label of a row, the authors' number or its name."""
    value = row.get(field)
    if type(value) is int and 0 <= value < len(LABELS):
        return LABELS[value]
    if isinstance(value, str) and value in LABELS:
        return Verdict(value)
    raise BadField(field, f"{check.show(value)} is no label: 0 or first, 1 or second, 2 or tie")


def _read_vote(row: dict[str, Any], field: str) -> Verdict:
    value = row.get(field)
    if type(value) is int and value in (0, 1, 2):
        return (Verdict.TIE, Verdict.FIRST, Verdict.SECOND)[value]
    raise BadField(field, f"{check.show(value)} is no vote: 0 tie, 1 first, 2 second")


def _find_majority(votes: list[Verdict]) -> Verdict:
    return next((v for v in votes if votes.count(v) >= 2), Verdict.TIE)


def _read_dialogue(row: dict[str, Any]) -> tuple[str, list[str], Verdict]:
    """Read query, responses and label from a row of two dialogues that differ in the last turn.

    The order is drawn from the text, since the files always put the better response first. A query
    of several turns keeps the speakers' names.
    """
    ends = []
    for field in ("chosen", "rejected"):
        head, mark, response = check.text(row, field, blank=False).rpartition(LAST_TURN)
        if not mark:
            raise BadField(field, "the dialogue has no Assistant turn")
        ends.append((head, response.strip()))
    (head, chosen), (other, rejected) = ends
    if head != other:
        raise BadField("rejected", "the dialogues differ before their last turn")
    query = head.strip()
    if query.count("\n\nHuman:") == 0:
        query = query.removeprefix("Human:").strip()
    if not query:
        raise BadField("chosen", "the dialogue has no query")
    responses, label = in_drawn_order(chosen, rejected)
    return query, list(responses), label


def in_drawn_order(chosen: str, rejected: str) -> tuple[tuple[str, str], Verdict]:
    """Return two responses in an order drawn from their texts, with the label of the chosen one."""
    if is_held_out(chosen + rejected, 0.5):
        return (rejected, chosen), Verdict.SECOND
    return (chosen, rejected), Verdict.FIRST
