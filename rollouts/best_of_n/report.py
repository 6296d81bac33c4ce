"""The report of a best-of-N job: the page of `autoj watch` with the job's results in it.

It shows all queries of a small job in detail, and a sample of a large one.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoj_reward.io.chart import curves
from autoj_reward.io.files import to_plain, write_json, write_text
from autoj_reward.io.markup import num, visible
from autoj_reward.questions.choose import SHORTLIST_RULE
from autoj_reward.types import BadRow, Outcome
from autoj_reward.watch.page import document
from autoj_reward.watch.relative import RankTotals, ranking_data
from autoj_reward.watch.shown import (
    candidate_line,
    displayed_text,
    excerpt,
    judgement_details,
    rubric_line,
    run_figures,
)
from autoj_reward.watch.statistics import (
    VIEWS,
    RunStatistics,
    best_of_n_curve,
    standing,
)
from rollouts.best_of_n.results import GroupResult
from rollouts.best_of_n.summary import JobStatistics, Summary

FIGURES = ("report.html", "curve.svg")
"""Names of the files that show a job's results."""
ALL = 200
"""Largest number of queries for which all are shown."""
FIRST, LAST, WORST, DRAWN = 50, 25, 50, 75
LONG, SHORT = 12_000, 500
"""Characters of a text: of a query, and of its chosen, best and worst candidate; of the others."""
BAD_ROWS = 50
KINDS = {
    "first": "that came first",
    "last": "that came last",
    "lowest": "whose best candidate is rated lowest, or not at all",
    "drawn": "drawn at random",
}
AMONG = {
    "policy_logprob": "the policy found this one the most probable of them",
    "expected_rating": "this one has the highest expected rating of them",
    "pairwise": "this one won the head-to-head comparisons among them",
    "first": "nothing else told them apart, so the first in order was taken",
}


@dataclass(frozen=True, slots=True)
class ShownQuery:
    """A query of the report. number: its place among all, from 1. why: why it was taken."""

    number: int
    group: GroupResult
    why: str = ""


class ReportSample:
    """Sample of queries for the report, taken as they pass. The same job gives the same sample."""

    def __init__(self, view: str) -> None:
        self.total = 0
        self._view = view
        self._first: list[ShownQuery] = []
        self._last: deque[ShownQuery] = deque(maxlen=LAST)
        self._worst: list[tuple[float, int, ShownQuery]] = []
        self._drawn: list[ShownQuery] = []
        self._draw = random.Random(0)

    def add(self, group: GroupResult) -> None:
        self.total += 1
        query = ShownQuery(self.total, group)
        if self.total <= ALL:
            self._first.append(query)
        self._last.append(query)
        best = max(group.values(self._view), default=-math.inf)
        heapq.heappush(self._worst, (-best, -self.total, query))
        if len(self._worst) > WORST:
            heapq.heappop(self._worst)
        if len(self._drawn) < DRAWN:  # Vitter's reservoir (algorithm R)
            self._drawn.append(query)
        elif (place := self._draw.randrange(self.total)) < DRAWN:
            self._drawn[place] = query

    def list_queries(self) -> list[ShownQuery]:
        """Return the sampled queries in input order, each with the first reason that applies."""
        if self.total <= ALL:
            return self._first
        by_number: dict[int, ShownQuery] = {}
        worst = [query for _, _, query in self._worst]
        for why, queries in (
            ("first", self._first[:FIRST]),
            ("last", self._last),
            ("lowest", worst),
            ("drawn", self._drawn),
        ):
            for query in queries:
                by_number.setdefault(query.number, ShownQuery(query.number, query.group, why))
        return [by_number[number] for number in sorted(by_number)]


class Gathered:
    """Statistics, and the sample for the report, of the queries whose results are written.

    view, scored_by: as for `JobStatistics`. follow: called with the statistics after each query, if
    given.
    """

    def __init__(
        self,
        view: str,
        scored_by: str | None = None,
        follow: Callable[[JobStatistics], object] | None = None,
    ) -> None:
        self._follow = follow
        self.statistics = JobStatistics(view, scored_by)
        self.sample = ReportSample(view)
        self.ranks = RankTotals()

    @property
    def queries(self) -> int:
        return self.sample.total

    def add(self, group: GroupResult) -> None:
        self.statistics.add(group)
        self.sample.add(group)
        if group.ranking:
            self.ranks.add(group.ranking)
        if self._follow:
            self._follow(self.statistics)


def write_figures(
    folder: Path, summary: Summary, results: Gathered, *, title: str, config_text: str
) -> None:
    """Write summary.json, report.html and, where there is a curve, curve.svg."""
    write_json(folder / "summary.json", summary)
    page = render_report(summary, results, title=title, config_text=config_text)
    write_text(folder / "report.html", page)
    if summary.curve:
        name = f"mean {summary.value_name} of the best of N"
        drawing = curves({name: summary.curve}, "N, candidates sampled", name, log_x=True)
        write_text(folder / "curve.svg", drawing)


def render_report(summary: Summary, results: Gathered, *, title: str, config_text: str) -> str:
    """Return the page with the job's data in it.

    Whatever a model, a row or a file name says is shown as text, with control characters and lone
    surrogates made visible.
    """
    queries = [
        _describe_query(shown_query, summary.view) for shown_query in results.sample.list_queries()
    ]
    run = _describe_run(summary, results.statistics.candidates, title, config_text)
    run["notices"] += _describe_sample(results.sample)
    run["ranks"] = results.ranks.as_json()
    flags = {
        flag
        for query in queries
        for candidate in query["candidates"]
        for flag in candidate["flags"]
    }
    return document({"run": run | {"all_flags": sorted(flags)}, "queries": queries})


def _describe_run(
    summary: Summary, statistics: RunStatistics, title: str, config_text: str
) -> dict[str, Any]:
    figures = run_figures(statistics, to_plain(summary), summary.judge)
    notices = figures.pop("notices")
    if summary.shortlisted is not None:
        notices.insert(0, _describe_shortlist(summary))
    return figures | {
        "name": visible(title),
        "path": "",
        "state": "finished",
        "judges": [displayed_text(summary.judge, 300)] if summary.judge else [],
        "judge": 0,
        "scored_by": summary.scored_by,
        "journal": None,
        "training": None,
        "notices": notices,
        "bad_rows": _list_bad_rows(summary.bad_rows, summary.rows_left_out),
        "config": visible(config_text),
    }


def _describe_shortlist(summary: Summary) -> str:
    text = (
        f"{summary.shortlisted:,} of {summary.candidates:,} candidates got critiques: the best of "
        "each query by the expected rating right after the prompt."
    )
    if summary.view == "direct":
        return text
    return (
        f"{text} Their numbers are those below. There is no curve of best-of-N, since they are no "
        "random sample."
    )


def _describe_sample(sample: ReportSample) -> list[str]:
    queries = sample.list_queries()
    if len(queries) == sample.total:
        return []
    counts = Counter(query.why for query in queries)
    kinds = ", ".join(f"{counts[why]:,} {text}" for why, text in KINDS.items() if counts[why])
    return [
        f"{len(queries):,} of {sample.total:,} queries are shown in detail: {kinds}. The result "
        "files hold all of them."
    ]


def _list_bad_rows(rows: Sequence[BadRow], total: int) -> list[str]:
    lines = [displayed_text(str(row), 500) for row in rows[:BAD_ROWS]]
    more = total - len(lines)
    return [*lines, *([f"{more:,} more rows were named while it ran."] if more > 0 else [])]


def _describe_query(query: ShownQuery, view: str) -> dict[str, Any]:
    """Return a query as the page asks for it, with the details of its candidates."""
    group, row = query.group, query.group.row
    standings = {name: standing(group.results, n) for n, name in enumerate(VIEWS)}
    return {
        "id": query.number,
        "excerpt": excerpt(row.prompt.marked),
        "text": displayed_text(row.prompt.marked, LONG),
        "context": {visible(n): displayed_text(text, LONG) for n, text in row.context.items()},
        "total": len(group.candidates),
        "standings": {name: s._asdict() if s else {} for name, s in standings.items()},
        "candidates": [_describe_candidate(group, n) for n in range(len(group.candidates))],
        "details": _list_details(group, view),
        "comparisons": [
            {"one": str(first), "two": str(second), "verdict": verdict.value, "both": True,
             "outcome": Outcome.OK.value, "confidence": []}
            for first, second, verdict in group.selection.comparisons
        ],
        "relative": _describe_ranking(group),
        "choice": {
            "rule": visible(group.selection.rule),
            "why": f"Line {row.line}, candidate {group.selection.index}: "
            f"{visible(reason_in_words(group, view))}",
            "curve": best_of_n_curve(group.curve_values(view)),
        },
    }  # fmt: skip


def _describe_ranking(group: GroupResult) -> dict[str, Any] | None:
    names = [str(n) for n in range(len(group.candidates))]
    return ranking_data(group.ranking, names) if group.ranking else None


def _describe_candidate(group: GroupResult, n: int) -> dict[str, Any]:
    candidate = group.candidates[n]
    line = candidate_line(str(n), candidate.response.marked, group.results[n])
    return line | {
        "candidate": str(n),
        "chosen": n == group.selection.index,
        "logprob": candidate.policy_logprob,
    }


def _list_details(group: GroupResult, view: str) -> list[dict[str, Any]]:
    """Return the judgements of each candidate; most texts are cut short."""
    values = [judgement.view(view) for judgement in group.judgements]
    rated_values = [value for value in values if value is not None]
    ends = {min(rated_values), max(rated_values)} if rated_values else set()
    details = []
    for n, (candidate, judgement) in enumerate(
        zip(group.candidates, group.judgements, strict=True)
    ):
        most = LONG if n == group.selection.index or values[n] in ends else SHORT
        judgements = [judgement_details(judgement, most=most)]
        details.append(
            {
                "name": str(n),
                "response": displayed_text(candidate.response.marked, most),
                "judgements": judgements,
                "rubric": [
                    rubric_line(verdict, verdict.item.points)
                    for score in group.rubrics[n : n + 1]
                    for verdict in score.verdicts
                ],
            }
        )
    return details


def reason_in_words(group: GroupResult, view: str) -> str:
    """Return why this candidate was chosen, as a sentence of plain text."""
    rule, tied = group.selection.rule, len(group.selection.tied)
    name = view if view == "rating" else f"{view} rating"
    if rule == "all_failed":
        return "Every judgement failed, so this choice says nothing about quality."
    if rule == "only":
        alone = len(group.candidates) == 1
        return f"It is the only candidate{'' if alone else ' that was rated'}."
    if rule == SHORTLIST_RULE:
        return "It alone got a critique: it has the highest expected rating right after the prompt."
    if rule == view:
        among = " of those with a critique" if group.shortlist else ""
        return f"It has the highest {name}{among}, and no other candidate shares it."
    if rule == "relative":
        return "It has the highest score beside the others, and no other candidate shares it."
    if rule == "rubric":
        return "It has the highest score by the rubric, and no other candidate shares it."
    if rule in AMONG and tied > 1:
        best = num(group.chosen.view(view))
        return f"{tied} candidates share the best {name}, {best}; {AMONG[rule]}."
    return f"Decided by the rule {rule}."
