"""Critique against critique (Eval-C): `autoj evaluate eval-c`.

A grader reads the judge's critique and a reference critique of the same response, in an order that
the seed draws, and says which is better (paper, section 6.2 and Table 15).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autoj_reward.config import load_config
from autoj_reward.errors import ConfigError
from autoj_reward.evaluate.ask import judge_all, require_protocol
from autoj_reward.evaluate.config import CritiquesConfig
from autoj_reward.evaluate.intervals import Draws, Figures, percent, share
from autoj_reward.evaluate.results import journal_path, judging_cost, save
from autoj_reward.evaluate.rows import (
    NAMING,
    Fields,
    by_group,
    drawn,
    group,
    read_answers,
    read_strict,
)
from autoj_reward.io import checks as check
from autoj_reward.io.checks import BadField, text
from autoj_reward.judge.make import judge_name
from autoj_reward.parse import ParseFailure, parse_comparison
from autoj_reward.prompts.format import load_format
from autoj_reward.types import JudgeInput, Judgement, Verdict

NAMES = {Verdict.FIRST: "win", Verdict.TIE: "tie", Verdict.SECOND: "lose"}
"""What a verdict means for the judge that is measured, whose critique counts as the first."""


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


def eval_c(
    data: str,
    critiques: str | None,
    reference: str | None,
    votes: str | None,
    result: str,
    config: str | None,
    sets: Sequence[str],
) -> int:
    """Win, tie and lose of a judge's critiques, overall and by group."""
    checked = load_config(CritiquesConfig, config, sets)
    cases = read_cases(data)
    sources = {"data": data}
    if votes is not None:
        if critiques is not None or reference is not None:
            raise ConfigError("--votes counts votes alone: drop --critiques and --reference")
        if checked.sample is not None:
            raise ConfigError("sample: votes from a file are counted on all rows; drop it")
        found = read_votes(votes, data, cases)
        content = figures(cases, found, checked.draws)
        rows = [_row(case, vote) for case, vote in zip(cases, found, strict=True)]
        return _finish(result, checked, votes, sources | {"votes": votes}, content, rows)

    references = _critiques_of(cases, reference, checked.reference, data)
    own = read_critiques(critiques, data, cases) if critiques else None
    if own is None:
        require_protocol(checked.judge, "single")
        if not checked.judge.critique:
            raise ConfigError("judge.critique is false: such a judge writes no critique to compare")
    require_protocol(checked.grader, "pairwise")
    sources |= {"critiques": critiques} if critiques else {}
    sources |= {"reference": reference} if reference else {}
    chosen = drawn(range(len(cases)), checked.sample, checked.seed)
    cases = tuple(cases[i] for i in chosen)
    references = [references[i] for i in chosen]
    judgements: list[Judgement] = []
    if own is None:
        asked = [JudgeInput(case.query, (case.response,)) for case in cases]
        journal = journal_path(checked, result)
        judgements = judge_all(checked.judge, journal, asked, "writing critiques")
        texts = [judgement.critique for judgement in judgements]
    else:
        texts = [own[i] for i in chosen]
    found, graded = grade(cases, texts, references, checked, result)
    content = figures(cases, found, checked.draws)
    content["grader"] = judge_name(checked.grader)
    content["cost"] = {"judge": judging_cost(judgements), "grader": judging_cost(graded)}
    rows = [
        _row(case, vote, (mine, other))
        for case, vote, mine, other in zip(cases, found, texts, references, strict=True)
    ]
    return _finish(result, checked, critiques, sources, content, rows)


def read_cases(source: str) -> tuple[Case, ...]:
    """The rows of an Eval-C file; InputError names every bad one."""

    def build(line: int, row: Fields) -> Case:
        brought = row.get("critiques", {})
        if not isinstance(brought, dict) or not all(isinstance(c, str) for c in brought.values()):
            raise BadField("critiques", f"not texts by name: {check.show(brought)}")
        kept = {key: value for key, value in row.items() if key in NAMING}
        query = text(row, "prompt", blank=False)
        return Case(line, query, text(row, "response"), group(row), brought, kept)

    return read_strict(source, build)


def read_critiques(source: str, data: str, cases: Sequence[Case]) -> tuple[str, ...]:
    """Critiques in the authors' form, `{"output": TEXT}` a row, in the order of the data."""
    return read_answers(source, data, [c.fields for c in cases], lambda row: text(row, "output"))


def read_votes(source: str, data: str, cases: Sequence[Case]) -> tuple[Vote, ...]:
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

    return read_answers(source, data, [case.fields for case in cases], build)


def grader_input(case: Case, first: str, second: str) -> JudgeInput:
    """The grader's question: its query holds the user's query and the response under critique."""
    query = f"{case.query}\n\n[The Assistant's Response]\n{case.response}"
    return JudgeInput(query, (first, second))


def is_exchanged(case: Case, seed: int) -> bool:
    """Whether the reference stands first: drawn by the seed and the row."""
    return random.Random(f"{seed} {case.line}").random() < 0.5


def grade(
    cases: Sequence[Case],
    texts: Sequence[str],
    references: Sequence[str],
    config: CritiquesConfig,
    result: str,
) -> tuple[tuple[Vote, ...], list[Judgement]]:
    """Every critique against its reference, once; without a critique the vote has failed."""
    exchanged = [is_exchanged(case, config.seed) for case in cases]
    asked = {
        i: grader_input(case, *((other, mine) if exchanged[i] else (mine, other)))
        for i, (case, mine, other) in enumerate(zip(cases, texts, references, strict=True))
        if mine.strip()
    }
    journal = journal_path(config, result)
    found = judge_all(config.grader, journal, list(asked.values()), "comparing critiques")
    said = dict(zip(asked, found, strict=True))
    votes = []
    for i, order in enumerate(exchanged):
        verdict = (said[i].verdict if i in said else None) or Verdict.FAILED
        votes.append(Vote(verdict.swapped() if order else verdict, order))
    return tuple(votes), found


def figures(cases: Sequence[Case], votes: Sequence[Vote], intervals: Draws) -> Figures:
    """Win, tie and lose overall and by group, and how often the critique shown first wins."""
    members = by_group([case.group for case in cases])
    seen = [v.verdict.swapped() if v.exchanged else v.verdict for v in votes]
    decided = [verdict for verdict in seen if verdict in (Verdict.FIRST, Verdict.SECOND)]
    first = decided.count(Verdict.FIRST)
    return {
        "overall": _shares(cases, votes, range(len(cases)), intervals),
        "groups": {name: _shares(cases, votes, own, intervals) for name, own in members.items()},
        "shown_first_wins": percent(first / len(decided)) if decided else None,
    }


def _shares(
    cases: Sequence[Case], votes: Sequence[Vote], rows: Sequence[int], intervals: Draws
) -> Figures:
    said = [votes[i].verdict for i in rows]
    queries = [cases[i].query for i in rows]
    found: Figures = {"n": len(said), "failed": said.count(Verdict.FAILED)}
    found["votes"] = {name: said.count(verdict) for verdict, name in NAMES.items()}
    for verdict, name in NAMES.items():
        found |= intervals.percent(name, share([v is verdict for v in said]), queries)
    return found


def _critiques_of(cases: Sequence[Case], source: str | None, name: str, data: str) -> Sequence[str]:
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
    return [case.critiques[name] for case in cases]


def _row(case: Case, vote: Vote, critiques: tuple[str, str] | None = None) -> dict[str, Any]:
    return {
        "line": case.line,
        "group": case.group,
        "query": case.query,
        "response": case.response,
        "responses": critiques or [],
        "verdict": vote.verdict,
        "exchanged": vote.exchanged,
    }


def _finish(
    result: str,
    config: CritiquesConfig,
    judged: str | None,
    sources: dict[str, str],
    content: Figures,
    rows: list[dict[str, Any]],
) -> int:
    save(result, "eval-c", config, judged or config.judge, sources, content, rows)
    print(f"{'group':<24}{'n':>6}{'win':>8}{'tie':>8}{'lose':>8}")
    for name, own in [*content["groups"].items(), ("overall", content["overall"])]:
        print(f"{name:<24}{own['n']:>6}{own['win']:>8.2f}{own['tie']:>8.2f}{own['lose']:>8.2f}")
    print(f"result: {result}")
    return 0
