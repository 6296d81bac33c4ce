"""Figures of a best-of-N job: `summary.json`, counted query by query, and what a budget spent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autoj_reward.io.rows import BadRows
from autoj_reward.questions.budget import Fate
from autoj_reward.types import BadRow, Usage
from autoj_reward.watch.statistics import (
    NAMES,
    VIEWS,
    MeanCurve,
    RunStatistics,
    by_count,
    count_name,
    quotient,
    result_of,
)
from rollouts.best_of_n.results import GroupResult

JUDGE_PHASE = "judge"
"""The phase in `seconds` that throughput is measured over."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Statistics of a job. Shares are 0 to 1, and None without a denominator.

    view, judge: the number that ranked candidates, and the judge's fingerprint.
    outcomes: judgements by outcome, zeros included and copies left out, here as in all shares.
    reused: judge inputs that were read back from the journal.
    ok_share: of the candidates that were not abandoned.
    reasons, flags, rules: failed judgements by reason, flags raised, selections by deciding rule.
    forced: ok judgements whose rating had to be forced; forced_share: among ok judgements.
    tie_rate: among queries with two or more rated candidates, those whose best value was shared.
    pair_tie_rate: among pairs of rated candidates of one query, those of equal value.
    spread: standard deviation of the values within a query (population), mean over queries.
    curve: mean best-of-N curve over the `curve_queries` queries that have a value, as far as the
        one with the fewest goes, so that every point averages the same queries. Empty on a budget,
        since the candidates that it lets be judged are not drawn at random.
    histogram: (rating, count), ascending; more than a thousand values are rounded.
    comparisons: knock-out matches played to break ties.
    usage: tokens as recorded with the judgements, reused ones included. cache_hit_rate: share of
        its tokens in that were read from the engine's prefix cache, at the rating slots too.
    seconds: by phase. The rates are over the phase `judge`: critiques, or ratings of a judge that
        writes none, and orders of comparisons that this run asked for; on a budget the cheap
        readings are not counted.
    bad_rows: the first of the rows that were left out. rows_left_out: all of them.
    """

    view: str
    judge: str
    queries: int
    candidates: int
    outcomes: Mapping[str, int]
    ok_share: float | None
    reasons: Mapping[str, int]
    forced: int
    forced_share: float | None
    flags: Mapping[str, int]
    rules: Mapping[str, int]
    tie_rate: float | None
    pair_tie_rate: float | None
    spread: float | None
    curve: tuple[tuple[int, float], ...]
    curve_queries: int
    histogram: tuple[tuple[float, int], ...]
    comparisons: int
    reused: int
    usage: Usage
    cache_hit_rate: float | None
    seconds: Mapping[str, float]
    judgements_per_second: float | None
    output_tokens_per_second: float | None
    bad_rows: tuple[BadRow, ...]
    rows_left_out: int
    budget: BudgetSummary | None = None


class JobStatistics:
    """Counts a job's results, query by query.

    candidates: statistics of its candidates. budget: the share that the job was given, if any.
    """

    def __init__(self, view: str, budget: float | None = None) -> None:
        self.candidates = RunStatistics()
        self._view, self._judge, self._spent = (
            view,
            "",
            None if budget is None else BudgetStatistics(budget),
        )
        self._copies = self._comparisons = 0
        self._rules: Counter[str] = Counter()
        self._curve = MeanCurve()

    def add(self, group: GroupResult) -> None:
        self.candidates.add([result_of(judgement) for judgement in group.own])
        self._copies += len(group.candidates) - len(group.own)
        self._comparisons += len(group.selection.comparisons)
        count_name(self._rules, group.selection.rule, NAMES)
        self._judge = self._judge or next((j.judge for j in group.own if j.judge), "")
        if self._spent:
            self._spent.add(group)
        elif values := group.values(self._view):
            self._curve.add(values)

    def summary(
        self,
        left_out: BadRows,
        seconds: Mapping[str, float],
        *,
        reused: int = 0,
        new: int | None = None,
        new_usage: Usage | None = None,
    ) -> Summary:
        """Return all of it so far.

        new, new_usage: number and cost of this run's own judgements. Without them the rates are
            known only if nothing was reused, and None otherwise; one judgement a candidate is
            taken.
        """
        found = self.candidates.as_json()
        if not reused:
            new = self.candidates.candidates if new is None else new
            new_usage = new_usage or self.candidates.usage
        time = seconds.get(JUDGE_PHASE, 0.0)
        del found["mean_rating"]
        return Summary(
            **found | {"candidates": found["candidates"] + self._copies},
            **self._of_the_view(),
            view=self._view,
            judge=self._judge,
            rules=by_count(self._rules),
            curve=self._curve.points(),
            curve_queries=self._curve.queries,
            comparisons=self._comparisons,
            reused=reused,
            seconds=dict(seconds),
            judgements_per_second=quotient(new, time) if new is not None else None,
            output_tokens_per_second=quotient(new_usage.tokens_out, time) if new_usage else None,
            bad_rows=tuple(left_out.first),
            rows_left_out=left_out.count,
            budget=self._spent.summary() if self._spent else None,
        )

    def _of_the_view(self) -> dict[str, Any]:
        found = self.candidates.views[VIEWS.index(self._view)].as_json()
        return {name: found[name] for name in ("tie_rate", "pair_tie_rate", "spread")}


@dataclass(frozen=True, slots=True)
class BudgetSummary:
    """Cost of a job on a budget, over all of its queries.

    share: the budget. fates: candidates by what became of them, zeros included.
    readings, critiques, orders: cheap readings, critiques and orders of comparisons asked for.
    skipped: critiques that full judging would have asked for besides.
    usage: tokens of each of the three kinds. written: tokens written, of all kinds.
    full_tokens: estimate of what full judging would have written.
    written_share: written over that; None if nothing could be estimated.
    over: queries that wrote more than their share, since one critique is always asked for or
        critiques differ in length.
    """

    share: float
    fates: Mapping[str, int]
    readings: int
    critiques: int
    orders: int
    skipped: int
    usage: Mapping[str, Usage]
    written: int
    full_tokens: float
    written_share: float | None
    over: int


class BudgetStatistics:
    """Adds up what queries spent."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._fates: Counter[Fate] = Counter()
        self._usage = dict.fromkeys(("readings", "critiques", "comparisons"), Usage())
        self._readings = self._critiques = self._orders = self._skipped = self._over = 0
        self._full = 0.0

    def add(self, group: GroupResult) -> None:
        self._fates.update(standing.fate for standing in group.standings)
        s = group.spending
        if s is None:
            return
        for kind, usage in zip(self._usage, (s.cheap, s.critiques, s.comparisons), strict=True):
            self._usage[kind] += usage
        self._readings += s.readings
        self._critiques += s.asked
        self._orders += s.orders
        self._skipped += s.skipped
        self._full += s.full_tokens
        self._over += s.usage.tokens_out > self._share * s.full_tokens * (1 + 1e-9)

    def summary(self) -> BudgetSummary:
        written = sum(own.tokens_out for own in self._usage.values())
        return BudgetSummary(
            share=self._share,
            fates={fate.value: self._fates[fate] for fate in Fate},
            readings=self._readings,
            critiques=self._critiques,
            orders=self._orders,
            skipped=self._skipped,
            usage=dict(self._usage),
            written=written,
            full_tokens=self._full,
            written_share=written / self._full if self._full else None,
            over=self._over,
        )


def budget_text(found: BudgetSummary) -> str:
    """Return the budget in a sentence of plain text."""
    fates = found.fates
    spent = "nothing" if found.written_share is None else f"{found.written_share:.1%}"
    return (
        f"budget {found.share:g}: {found.written:,} tokens written, {spent} of the estimate for "
        f"full judging; {found.critiques:,} critiques and {found.skipped:,} skipped; "
        f"{fates['judged']:,} candidates judged in full, {fates['cannot_win']:,} abandoned since "
        f"they could not win, {fates['out_of_budget']:,} for lack of budget, {fates['copy']:,} "
        "copies"
    )
