"""Critique against critique (Eval-C): `autoj evaluate eval-c`.

A grader reads the judge's critique and a reference critique of the same response, in an order that
the seed draws, and says which is better (paper, section 6.2 and Table 15). Critiques wait for the
grader on disk; what is kept of each row is a `Kept`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from autoj_reward.config import JudgeConfig
from autoj_reward.errors import ConfigError
from autoj_reward.evaluate.ask import judge_each, require_protocol
from autoj_reward.evaluate.config import CritiquesConfig
from autoj_reward.evaluate.critique_files import (
    Case,
    Vote,
    read_cases,
    read_critiques,
    read_references,
    read_votes,
)
from autoj_reward.evaluate.intervals import Draws, Figures, percent, share
from autoj_reward.evaluate.results import Cost, journal_path, require_own, save, writing_rows
from autoj_reward.evaluate.rows import Measured, by_group
from autoj_reward.io.files import Spool, text_digest
from autoj_reward.judge.make import judge_name
from autoj_reward.models.unused import load_run
from autoj_reward.types import JudgeInput, Judgement, Verdict

NAMES = {Verdict.FIRST: "win", Verdict.TIE: "tie", Verdict.SECOND: "lose"}
"""What a verdict means for the judge that is measured, whose critique counts as the first."""


@dataclass(frozen=True, slots=True)
class Match:
    """The judge's critique of a response and the reference, in this order; exchanged: the grader
    sees the reference first."""

    case: Case
    critiques: tuple[str, str]
    exchanged: bool

    def inputs(self) -> list[JudgeInput]:
        """What the grader is asked: nothing if the judge wrote no critique."""
        mine, other = self.critiques
        shown = (other, mine) if self.exchanged else (mine, other)
        return [grader_input(self.case, *shown)] if mine.strip() else []

    def vote(self, found: Sequence[Judgement]) -> Vote:
        """What the grader said; without a critique the vote has failed."""
        verdict = (found[0].verdict if found else None) or Verdict.FAILED
        return Vote(verdict.swapped() if self.exchanged else verdict, self.exchanged)


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept of a row for the figures: no text. query: its digest."""

    query: bytes
    group: str
    vote: Vote


Done = Callable[[Case, Vote, Sequence[str]], None]


def eval_c(
    data: str,
    critiques: str | None,
    reference: str | None,
    votes: str | None,
    result: str,
    config: str | None,
    sets: Sequence[str],
    strict: bool,
) -> int:
    """Win, tie and lose of a judge's critiques, overall and by group."""
    checked = load_run(CritiquesConfig, config, sets, strict)
    require_own(result, checked, config, data, critiques, reference, votes)
    if votes is None:
        return _judged(data, critiques, reference, result, checked)
    if critiques is not None or reference is not None:
        raise ConfigError("--votes counts votes alone: drop --critiques and --reference")
    if checked.sample is not None:
        raise ConfigError("sample: votes from a file are counted on all rows; drop it")
    cases = read_cases(data)
    found, judges = read_votes(votes, data, cases), (votes,)

    def given(done: Done) -> Figures:
        for case, vote in zip(cases, found, strict=True):
            done(case, vote, ())
        return {}

    return _measure(result, checked, judges, {"data": data, "votes": votes}, given)


def _judged(
    data: str, critiques: str | None, reference: str | None, result: str, config: CritiquesConfig
) -> int:
    every, sample = read_cases(data), (config.sample, config.seed)
    references = read_references(every, reference, config.reference, data).drawn(*sample)
    given = read_critiques(critiques, data, every).drawn(*sample) if critiques else None
    if given is None:
        require_protocol(config.judge, "single")
        if not config.judge.critique:
            raise ConfigError("judge.critique is false: such a judge writes no critique to compare")
    require_protocol(config.grader, "pairwise")
    sources = {"data": data}
    sources |= {"critiques": critiques} if critiques else {}
    sources |= {"reference": reference} if reference else {}
    cases = every.drawn(*sample)

    def graded(done: Done) -> Figures:
        judge = Cost()
        texts = write(cases, config, result, judge) if given is None else given
        grader = grade(cases, texts, references, config, result, done)
        cost = {"judge": judge.figures(), "grader": grader.figures()}
        return {"grader": judge_name(config.grader), "cost": cost}

    judges = (critiques or config.judge, config.grader)
    return _measure(result, config, judges, sources, graded)


def grader_input(case: Case, first: str, second: str) -> JudgeInput:
    """The grader's question: its query holds the user's query and the response under critique."""
    query = f"{case.query}\n\n[The Assistant's Response]\n{case.response}"
    return JudgeInput("pairwise", query, (first, second))


def is_exchanged(case: Case, seed: int) -> bool:
    """Whether the reference stands first: drawn by the seed and the row."""
    return random.Random(f"{seed} {case.line}").random() < 0.5


def write(cases: Measured[Case], config: CritiquesConfig, result: str, cost: Cost) -> Spool[str]:
    """The judge's critique of every response; the grader reads them once the judge is done."""
    written = Spool[str]()

    def told(_case: Case, found: list[Judgement]) -> None:
        cost.add(found)
        written.add(found[0].critique)

    asked = ((case, [JudgeInput("single", case.query, (case.response,))]) for case in cases)
    journal = journal_path(config, result)
    judge_each(config.judge, journal, asked, told, "writing critiques", len(cases))
    return written


def grade(
    cases: Measured[Case],
    texts: Iterable[str],
    references: Measured[str],
    config: CritiquesConfig,
    result: str,
    done: Done,
) -> Cost:
    """Every critique against its reference, once; what that took."""
    cost = Cost()

    def told(match: Match, found: list[Judgement]) -> None:
        cost.add(found)
        done(match.case, match.vote(found), match.critiques)

    matches = (
        Match(case, (mine, other), is_exchanged(case, config.seed))
        for case, mine, other in zip(cases, texts, references, strict=True)
    )
    asked = ((match, match.inputs()) for match in matches)
    journal, total = journal_path(config, result), sum(bool(text.strip()) for text in texts)
    judge_each(config.grader, journal, asked, told, "comparing critiques", total)
    return cost


def figures(rows: Sequence[Kept], intervals: Draws) -> Figures:
    """Win, tie and lose overall and by group, and how often the critique shown first wins."""
    members = by_group([row.group for row in rows])
    votes = [row.vote for row in rows]
    seen = [v.verdict.swapped() if v.exchanged else v.verdict for v in votes]
    decided = [verdict for verdict in seen if verdict in (Verdict.FIRST, Verdict.SECOND)]
    first = decided.count(Verdict.FIRST)
    return {
        "overall": _shares(rows, intervals),
        "groups": {
            name: _shares([rows[i] for i in own], intervals) for name, own in members.items()
        },
        "shown_first_wins": percent(first / len(decided)) if decided else None,
    }


def _shares(rows: Sequence[Kept], intervals: Draws) -> Figures:
    said, queries = [row.vote.verdict for row in rows], [row.query for row in rows]
    found: Figures = {"n": len(said), "failed": said.count(Verdict.FAILED)}
    found["votes"] = {name: said.count(verdict) for verdict, name in NAMES.items()}
    for verdict, name in NAMES.items():
        found |= intervals.percent(name, share([v is verdict for v in said]), queries)
    return found


def _measure(
    result: str,
    config: CritiquesConfig,
    judges: Sequence[JudgeConfig | str],
    sources: dict[str, str],
    tell: Callable[[Done], Figures],
) -> int:
    """Measure, write and print. judges: who is measured, then who grades. tell: tells of every row
    how it was voted on, in order, and each is written then; returns figures of its own."""
    rows: list[Kept] = []
    with writing_rows(result, *judges) as file:

        def done(case: Case, vote: Vote, critiques: Sequence[str]) -> None:
            file.line(_row(case, vote, critiques))
            rows.append(Kept(text_digest(case.query), case.group, vote))

        told = tell(done)
        content = figures(rows, config.draws) | told
    save(result, "eval-c", config, judges[0], sources, content)
    print(f"{'group':<24}{'n':>6}{'win':>8}{'tie':>8}{'lose':>8}")
    for name, own in [*content["groups"].items(), ("overall", content["overall"])]:
        print(f"{name:<24}{own['n']:>6}{own['win']:>8.2f}{own['tie']:>8.2f}{own['lose']:>8.2f}")
    print(f"result: {result}")
    return 0


def _row(case: Case, vote: Vote, critiques: Sequence[str]) -> dict[str, Any]:
    return {
        "line": case.line,
        "group": case.group,
        "query": case.query,
        "response": case.response,
        "responses": critiques,
        "verdict": vote.verdict,
        "exchanged": vote.exchanged,
    }
