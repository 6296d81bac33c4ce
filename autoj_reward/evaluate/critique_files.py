"""Responses with their critiques, and a grader's votes on them, in the authors' form (Eval-C)."""

from __future__ import annotations

from dataclasses import dataclass

from autoj_reward.errors import ConfigError
from autoj_reward.evaluate.rows import (
    NAMING,
    Fields,
    Measured,
    group,
    measured,
    read_answers,
    strictly,
)
from autoj_reward.formats.read import ParseFailure
from autoj_reward.formats.schema import load_format, parse_comparison
from autoj_reward.io import checks as check
from autoj_reward.io.checks import BadField, text
from autoj_reward.types import Verdict


@dataclass(frozen=True, slots=True)
class Case:
    """A response to criticise; critiques: those that the row brings, by their author."""

    line: int
    query: str
    response: str
    group: str
    critiques: dict[str, str]
    fields: Fields


@dataclass(frozen=True, slots=True)
class Vote:
    """A grader's verdict on (judge, reference), and whether it saw the reference first."""

    verdict: Verdict
    exchanged: bool


def read_cases(source: str) -> Measured[Case]:
    """The rows of an Eval-C file; InputError names every bad one."""

    def build(line: int, row: Fields) -> Case:
        brought = row.get("critiques", {})
        if not isinstance(brought, dict) or not all(isinstance(c, str) for c in brought.values()):
            raise BadField("critiques", f"not texts by name: {check.show(brought)}")
        kept = {key: value for key, value in row.items() if key in NAMING}
        query = text(row, "prompt", blank=False)
        return Case(line, query, text(row, "response"), group(row), brought, kept)

    return measured(strictly(source, build))


def read_critiques(source: str, data: str, cases: Measured[Case]) -> Measured[str]:
    """Critiques in the authors' form, `{"output": TEXT}` a row, in the order of the data."""
    return read_answers(source, data, (c.fields for c in cases), lambda row: text(row, "output"))


def read_votes(source: str, data: str, cases: Measured[Case]) -> Measured[Vote]:
    """A grader's answers in the authors' form: `output`, and `meta.exchange`, which says that the
    reference stood first. An answer whose first line names no one option is a failed vote."""
    fmt = load_format("critique-grader")

    def build(row: Fields) -> Vote:
        meta = row.get("meta", {})
        exchanged = meta.get("exchange", False) if isinstance(meta, dict) else None
        if not isinstance(exchanged, bool):
            raise BadField("meta", f"{check.show(meta)} has no exchange that is true or false")
        parsed = parse_comparison(text(row, "output"), fmt)
        verdict = Verdict.FAILED if isinstance(parsed, ParseFailure) else parsed.verdict
        return Vote(verdict.swapped() if exchanged else verdict, exchanged)

    return read_answers(source, data, (case.fields for case in cases), build)


def read_references(
    cases: Measured[Case], source: str | None, name: str, data: str
) -> Measured[str]:
    """The reference critiques: of a file, or those of the data under a name."""
    if source is not None:
        return read_critiques(source, data, cases)
    for case in cases:
        if name not in case.critiques:
            known = ", ".join(case.critiques) or "none"
            raise ConfigError(
                f"{data}:{case.line}: no critique by {name!r} (there: {known}): name another as "
                "reference in the config, or a file with --reference"
            )
    return Measured(lambda: (case.critiques[name] for case in cases), range(len(cases)))
