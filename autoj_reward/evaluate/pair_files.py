"""Labelled pairs in the forms of the benchmarks that publish them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autoj_reward.errors import ConfigError
from autoj_reward.evaluate.labelled import LABELS, read_compared
from autoj_reward.evaluate.rows import (
    NAMING,
    Fields,
    Unique,
    choice,
    group,
    read_strict,
    row_id,
    text,
)
from autoj_reward.io.rows import require_usable
from autoj_reward.prompts.format import load_format
from autoj_reward.types import Verdict

LETTERS = {"A>B": Verdict.FIRST, "B>A": Verdict.SECOND, "A=B": Verdict.TIE}
NUMBERS = {1: Verdict.FIRST, 2: Verdict.SECOND}


@dataclass(frozen=True, slots=True)
class Pair:
    """Two responses with the label FIRST, SECOND or TIE; group: what figures are reported by.

    fields: those of the row that name it, to check files of answers against.
    """

    line: int
    query: str
    responses: tuple[str, str]
    label: Verdict
    group: str
    id: str | int | None
    fields: Fields

    @property
    def orders(self) -> tuple[tuple[str, str], tuple[str, str]]:
        return self.responses, (self.responses[1], self.responses[0])


def _eval_p(row: Fields) -> tuple[str, str, str, Verdict, str, str | int | None]:
    label = choice(row, "label", dict(enumerate(LABELS)))
    first, second = (text(row, f"response {n}") for n in (1, 2))
    return text(row, "prompt", blank=False), first, second, label, group(row), row_id(row, "id")


def _rewardbench(row: Fields) -> tuple[str, str, str, Verdict, str, str | int | None]:
    query = text(row, "prompt", blank=False)
    chosen, rejected = text(row, "chosen"), text(row, "rejected")
    subset = text(row, "subset", blank=False)
    return query, chosen, rejected, Verdict.FIRST, subset, row_id(row, "id")


def _judgebench(row: Fields) -> tuple[str, str, str, Verdict, str, str | int | None]:
    query = text(row, "question", blank=False)
    first, second = text(row, "response_A"), text(row, "response_B")
    label = choice(row, "label", LETTERS)
    return query, first, second, label, text(row, "source", blank=False), row_id(row, "pair_id")


def _llmbar(row: Fields) -> tuple[str, str, str, Verdict, str, str | int | None]:
    query = text(row, "input", blank=False)
    first, second = text(row, "output_1"), text(row, "output_2")
    subset = text(row, "subset") if "subset" in row else "all"
    return query, first, second, choice(row, "label", NUMBERS), subset, row_id(row, "id")


FORMS: dict[str, Callable[[Fields], tuple[str, str, str, Verdict, str, str | int | None]]] = {
    "eval-p": _eval_p,
    "rewardbench": _rewardbench,
    "judgebench": _judgebench,
    "llmbar": _llmbar,
}
ID_FIELDS = {"judgebench": "pair_id"}
OTHER = "labelled"
"""Any form that training reads: PandaLM, Anthropic HH, and this project's own."""


def read_pairs(source: str, form: str) -> tuple[Pair, ...]:
    """The pairs of a file of one of the `FORMS`, or `labelled`.

    RewardBench's chosen response stands first, which both orders of a comparison make up for.
    Bad rows of `labelled`, of which published files have some, are named and left out; otherwise
    raises InputError naming every bad row: missing fields, unknown labels and scenarios, ids that
    stand twice. ConfigError for an unknown form.
    """
    if form == OTHER:
        rows = read_compared(source, load_format("autoj-en"))
        require_usable(rows, source)
        return tuple(
            Pair(row.line, row.query, row.responses, row.label, "all", None, {})
            for row in rows.rows
        )
    if form not in FORMS:
        raise ConfigError(f"--format {form}: name one of {', '.join([*FORMS, OTHER])}")
    seen, build_row = Unique(), FORMS[form]
    field = ID_FIELDS.get(form, "id")

    def build(line: int, row: Fields) -> Pair:
        query, first, second, label, name, number = build_row(row)
        seen.check(line, field, number)
        kept = {key: value for key, value in row.items() if key in NAMING}
        return Pair(line, query, (first, second), label, name, number, kept)

    return read_strict(source, build)
