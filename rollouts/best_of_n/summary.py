"""Metrics of a best-of-N job, counted query by query: `summary.json`, and the cost on a budget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autoj_reward.client.judging import value_name
from autoj_reward.io.files import to_json
from autoj_reward.io.rows import BadRows
from autoj_reward.questions.budget import Fate
from autoj_reward.types import BadRow, Usage, Verdict
from autoj_reward.watch.statistics import (
    NAMES,
    VIEWS,
    MeanCurve,
    RunStatistics,
    by_count,
    count_name,
    quotient,
)
from rollouts.best_of_n.results import GroupResult

JUDGE_PHASE = "judge"
"""Phase in `Summary.seconds` that throughput is measured over."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Metrics of a job. Shares are 0..1, and None where there is nothing to divide by.

    Copies of a response are left out of `outcomes` and of all shares.
    """

    view: str
    """The number that ranked the candidates."""
    judge: str
    """The judge's fingerprint."""
    queries: int
    candidates: int
    outcomes: Mapping[str, int]
    """Judgements by outcome, zeros included."""
    ok_share: float | None
    """Share of ok judgements among candidates that were not abandoned."""
    reasons: Mapping[str, int]
    """Failed judgements by reason."""
    forced: int
    """Ok judgements whose rating was read at a forced slot."""
    forced_share: float | None
    """Share of forced ratings among ok judgements."""
    flags: Mapping[str, int]
    """Judgements by flag raised."""
    rules: Mapping[str, int]
    """Selections by the rule that decided."""
    tie_rate: float | None
    """Share of queries whose best value is shared, among those with two or more rated
    candidates."""
    pair_tie_rate: float | None
    """Share of equal values among pairs of rated candidates of one query."""
    spread: float | None
    """Population standard deviation of the values within a query, mean over queries."""
    curve: tuple[tuple[int, float], ...]
    """Mean best-of-N curve over `curve_queries` queries, up to the smallest number of values in one
    of them, so that every point averages the same queries. Empty on a budget, since the candidates
    that it lets be judged are not drawn at random."""
    curve_queries: int
    """Queries that have a value."""
    histogram: tuple[tuple[float, int], ...]
    """(rating, count) in ascending order; more than a thousand distinct values are rounded."""
    comparisons: int
    """Knock-out matches played to break ties."""
    failed_comparisons: int
    """Comparisons that failed: of these matches, and of a ranking by comparisons."""
    reused: int
    """Judge inputs whose judgement was read from the journal."""
    usage: Usage
    """Tokens as recorded with the judgements, reused ones included."""
    cache_hit_rate: float | None
    """Share of input tokens read from the engine's prefix cache, at the rating slots too."""
    seconds: Mapping[str, float]
    """Duration of each phase. Where the policy runs beside the judge, the phases overlap, and
    `judge` is the time of both. Rates are over the phase `judge`. They count what this run asked
    for: critiques (or ratings of a judge that writes none) and orders of comparisons, but not the
    cheap readings on a budget."""
    judgements_per_second: float | None
    output_tokens_per_second: float | None
    bad_rows: tuple[BadRow, ...]
    """The first of the input rows that were left out."""
    rows_left_out: int
    """Number of all input rows that were left out."""
    budget: BudgetSummary | None = None
    scored_by: str | None = None
    """What scored the candidates in place of a view (`listwise`, `comparisons`, `items`,
    `checklist` or `overall`): values are then scores from 0 to 1. None for ratings."""

    @property
    def value_name(self) -> str:
        """Name of the number that ranked the candidates: the view, or a score."""
        return value_name(self.scored_by) if self.scored_by else self.view

    @property
    def metrics(self) -> dict[str, Any]:
        """Return the metrics for a tracker. Reasons are left out: they are texts, not names."""
        metrics = to_json(self)
        del metrics["reasons"]
        return metrics | {"curve": dict(self.curve)}


class JobStatistics:
    """Counter of a job's results, query by query.

    view: the number that ranks candidates. budget: the job's share of full judging, if any.
    scored_by: as in `Summary`.
    """

    def __init__(
        self, view: str, budget: float | None = None, scored_by: str | None = None
    ) -> None:
        self._scored_by = scored_by
        self.candidates = RunStatistics()
        self._view, self._judge, self._spent = (
            view,
            "",
            None if budget is None else BudgetStatistics(budget),
        )
        self._copies = self._comparisons = self._failed_comparisons = 0
        self._rules: Counter[str] = Counter()
        self._curve = MeanCurve()

    def add(self, group: GroupResult) -> None:
        self.candidates.add(group.distinct_results)
        self._copies += len(group.candidates) - len(group.distinct_results)
        self._comparisons += len(group.selection.comparisons)
        verdicts = [verdict for _, _, verdict in group.selection.comparisons]
        self._failed_comparisons += verdicts.count(Verdict.FAILED)
        if group.ranking:
            shares = [match.won for match in group.ranking.matches]
            self._failed_comparisons += shares.count(None)
        count_name(self._rules, group.selection.rule, NAMES)
        self._judge = self._judge or next((j.judge for j in group.judgements if j.judge), "")
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
        """Return the metrics of the results so far.

        new, new_usage: number and cost of the judgements that this run asked for. Without them the
        rates assume one judgement for each candidate, and are None if any judgement was reused.
        """
        counts = self.candidates.as_json()
        if not reused:
            new = self.candidates.candidates if new is None else new
            new_usage = new_usage or self.candidates.usage
        time = seconds.get(JUDGE_PHASE, 0.0)
        del counts["mean_rating"]
        return Summary(
            **counts | {"candidates": counts["candidates"] + self._copies},
            **self._describe_view(),
            view=self._view,
            judge=self._judge,
            rules=by_count(self._rules),
            curve=self._curve.points(),
            curve_queries=self._curve.queries,
            comparisons=self._comparisons,
            failed_comparisons=self._failed_comparisons,
            reused=reused,
            seconds=dict(seconds),
            judgements_per_second=quotient(new, time) if new is not None else None,
            output_tokens_per_second=quotient(new_usage.tokens_out, time) if new_usage else None,
            bad_rows=tuple(left_out.first),
            rows_left_out=left_out.count,
            budget=self._spent.summary() if self._spent else None,
            scored_by=self._scored_by,
        )

    def _describe_view(self) -> dict[str, Any]:
        totals = self.candidates.views[VIEWS.index(self._view)].as_json()
        return {name: totals[name] for name in ("tie_rate", "pair_tie_rate", "spread")}


@dataclass(frozen=True, slots=True)
class BudgetSummary:
    """Cost of a job on a budget, over all of its queries."""

    share: float
    """The budget, as a share of the tokens of full judging."""
    fates: Mapping[str, int]
    """Candidates by fate, zeros included."""
    readings: int
    """Cheap readings asked for."""
    critiques: int
    """Critiques asked for."""
    orders: int
    """Orders of comparisons asked for."""
    skipped: int
    """Critiques that full judging would have asked for in addition."""
    usage: Mapping[str, Usage]
    """Tokens of the readings, critiques and comparisons, by these names."""
    written: int
    """Tokens written, of all kinds."""
    full_tokens: float
    """Estimate of the tokens that full judging would have written."""
    written_share: float | None
    """`written` / `full_tokens`; None if nothing could be estimated."""
    over: int
    """Queries that wrote more than their share: one critique is always asked for, and critiques
    differ in length."""


class BudgetStatistics:
    """Counter of the cost of queries on a budget."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._fates: Counter[Fate] = Counter()
        self._usage = dict.fromkeys(("readings", "critiques", "comparisons"), Usage())
        self._readings = self._critiques = self._orders = self._skipped = self._over = 0
        self._full = 0.0

    def add(self, group: GroupResult) -> None:
        self._fates.update(standing.fate for standing in group.standings)
        spending = group.spending
        if spending is None:
            return
        for kind, usage in zip(
            self._usage, (spending.cheap, spending.critiques, spending.comparisons), strict=True
        ):
            self._usage[kind] += usage
        self._readings += spending.readings
        self._critiques += spending.asked
        self._orders += spending.orders
        self._skipped += spending.skipped
        self._full += spending.full_tokens
        self._over += spending.usage.tokens_out > self._share * spending.full_tokens * (1 + 1e-9)

    def summary(self) -> BudgetSummary:
        written = sum(usage.tokens_out for usage in self._usage.values())
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


def budget_text(budget: BudgetSummary) -> str:
    """Return the cost on a budget as one sentence of plain text."""
    fates = budget.fates
    spent = "nothing" if budget.written_share is None else f"{budget.written_share:.1%}"
    return (
        f"budget {budget.share:g}: {budget.written:,} tokens written, {spent} of the estimate for "
        f"full judging; {budget.critiques:,} critiques and {budget.skipped:,} skipped; "
        f"{fates['judged']:,} candidates judged in full, {fates['cannot_win']:,} abandoned since "
        f"they could not win, {fates['out_of_budget']:,} for lack of budget, {fates['copy']:,} "
        "copies"
    )
