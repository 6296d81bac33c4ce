"""Metrics of a best-of-N job, counted query by query: `summary.json`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autoj_reward.client.judging import value_name
from autoj_reward.io.files import to_plain
from autoj_reward.io.rows import BadRows
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
    """Metrics of a job. Shares are 0..1, and None where there is nothing to divide by."""

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
    of them, so that every point averages the same queries. Empty if only the candidates of a
    shortlist have values: they are no random sample."""
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
    for: critiques (or ratings of a judge that writes none), the ratings that a shortlist was made
    from, and orders of comparisons."""
    judgements_per_second: float | None
    output_tokens_per_second: float | None
    bad_rows: tuple[BadRow, ...]
    """The first of the input rows that were left out."""
    rows_left_out: int
    """Number of all input rows that were left out."""
    shortlisted: int | None = None
    """Candidates that got critiques; None if all were to get one."""
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
        metrics: dict[str, Any] = to_plain(self)
        del metrics["reasons"]
        return metrics | {"curve": dict(self.curve)}


class JobStatistics:
    """Counter of a job's results, query by query.

    view: the number that ranks candidates. scored_by: as in `Summary`.
    """

    def __init__(self, view: str, scored_by: str | None = None) -> None:
        self._scored_by = scored_by
        self.candidates = RunStatistics()
        self._view = view
        self._judge = ""
        self._comparisons = 0
        self._failed_comparisons = 0
        self._shortlisted: int | None = None
        self._rules: Counter[str] = Counter()
        self._curve = MeanCurve()

    def add(self, group: GroupResult) -> None:
        self.candidates.add(group.results)
        self._comparisons += len(group.selection.comparisons)
        verdicts = [verdict for _, _, verdict in group.selection.comparisons]
        self._failed_comparisons += verdicts.count(Verdict.FAILED)
        if group.ranking:
            shares = [match.won for match in group.ranking.matches]
            self._failed_comparisons += shares.count(None)
        count_name(self._rules, group.selection.rule, NAMES)
        self._judge = self._judge or next((j.judge for j in group.judgements if j.judge), "")
        if group.shortlist:
            self._shortlisted = (self._shortlisted or 0) + len(group.shortlist.places)
        if values := group.curve_values(self._view):
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
            **counts,
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
            shortlisted=self._shortlisted,
            scored_by=self._scored_by,
        )

    def _describe_view(self) -> dict[str, Any]:
        totals = self.candidates.views[VIEWS.index(self._view)].as_json()
        return {name: totals[name] for name in ("tie_rate", "pair_tie_rate", "spread")}
