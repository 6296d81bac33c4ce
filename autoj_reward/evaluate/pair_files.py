"""Labelled pairs in the forms of the benchmarks that publish them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autoj_reward.context import NOTHING, Asked, Context
from autoj_reward.data.labelled import LABELS, Compared, compared
from autoj_reward.errors import ConfigError, did_you_mean
from autoj_reward.evaluate.rows import (
    NAMING,
    Fields,
    Measured,
    Unique,
    choice,
    group,
    measured,
    row_id,
    strictly,
)
from autoj_reward.formats.schema import load_format
from autoj_reward.io.checks import context, text
from autoj_reward.types import Verdict


@dataclass(frozen=True, slots=True)
class Pair:
    """Two responses with the label FIRST, SECOND or TIE; group: what figures are reported by.

    fields: those of the row that name it, to check files of answers against. context: of the row,
    for a judge that shows it.
    """

    line: int
    query: str
    responses: tuple[str, str]
    label: Verdict
    group: str
    id: str | int | None
    fields: Fields
    context: Context = NOTHING


@dataclass(frozen=True, slots=True)
class Form:
    """Which fields of a row hold what. label: what its values mean; without, the first response is
    the better one. group: the field, `scenario` for the group of the scenario; without, the
    row's own `subset`, if it has one."""

    query: str
    responses: tuple[str, str]
    label: dict[Any, Verdict] | None
    group: str = ""
    id: str = "id"


FORMS = {
    "eval-p": Form("prompt", ("response 1", "response 2"), dict(enumerate(LABELS)), "scenario"),
    "rewardbench": Form("prompt", ("chosen", "rejected"), None, "subset"),
    "judgebench": Form(
        "question",
        ("response_A", "response_B"),
        {"A>B": Verdict.FIRST, "B>A": Verdict.SECOND, "A=B": Verdict.TIE},
        "source",
        "pair_id",
    ),
    "llmbar": Form("input", ("output_1", "output_2"), {1: Verdict.FIRST, 2: Verdict.SECOND}),
}
OTHER = "labelled"
"""Any form that training reads: PandaLM, Anthropic HH, and this project's own."""


def read_pairs(source: str, form: str, asked: Sequence[Asked] = ()) -> Measured[Pair]:
    """The pairs of a file of one of the `FORMS`, or `labelled`, which brings no context.

    RewardBench's chosen response stands first, which both orders of a comparison make up for.
    Bad rows of `labelled`, of which published files have some, are named and left out; otherwise
    raises InputError naming every bad row: missing fields, unknown labels and scenarios, ids that
    stand twice. ConfigError for an unknown form.
    """
    if form == OTHER:
        rows = compared(source, load_format("autoj-en"))
        return measured(rows.mapped(_labelled), strict=False)
    if form not in FORMS:
        names = [*FORMS, OTHER]
        raise ConfigError(
            f"--format {form!r} is unknown{did_you_mean(form, names)} (known: {', '.join(names)})"
        )
    seen, known = Unique(), FORMS[form]

    def build(line: int, row: Fields) -> Pair:
        first, second = (text(row, name) for name in known.responses)
        label = choice(row, "label", known.label) if known.label else Verdict.FIRST
        seen.check(line, known.id, name := row_id(row, known.id))
        kept = {key: value for key, value in row.items() if key in NAMING}
        query = text(row, known.query, blank=False)
        about, title = context(row, asked), _group(row, known.group)
        return Pair(line, query, (first, second), label, title, name, kept, about)

    return measured(strictly(source, build))


def _labelled(row: Compared) -> Pair:
    return Pair(row.line, row.query, row.responses, row.label, "all", None, {})


def _group(row: Fields, field: str) -> str:
    if field == "scenario":
        return group(row)
    if field:
        return text(row, field, blank=False)
    return text(row, "subset") if "subset" in row else "all"
