"""What a best-of-N job found, in figures."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from autoj_reward.io.stream import LeftOut
from autoj_reward.types import BadRow, Judgement, Outcome, Usage
from autoj_reward.watch.figures import Histogram, count_name
from autoj_reward.watch.standing import Totals, standing_of
from rollouts.best_of_n.curve import MeanCurve
from rollouts.best_of_n.group import GroupResult
from rollouts.best_of_n.spending import BudgetSummary, Spent

JUDGE_PHASE = "judge"
"""The phase in `seconds` that throughput is measured over."""
VALUES = 1000
"""Distinct ratings that are counted apart."""
NAMES = 1000
"""Distinct names, such as reasons of failures, that are counted apart."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The job in figures. Shares are 0..1 and None where there is nothing to divide by.

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


class Figures:
    """Counts and averages a job's results, query by query.

    budget: the share that the job was given, if any.
    """

    def __init__(self, view: str, budget: float | None = None) -> None:
        self._view = view
        self._spent = None if budget is None else Spent(budget)
        self._judge, self._usage = "", Usage()
        self._queries = self._candidates = self._judged = self._comparisons = 0
        self._forced, self._spread, self._ties = 0, 0.0, Totals()
        self._outcomes: Counter[Outcome] = Counter()
        self._reasons: Counter[str] = Counter()
        self._flags: Counter[str] = Counter()
        self._rules: Counter[str] = Counter()
        self._histogram, self._curve = Histogram(VALUES), MeanCurve()

    def add(self, group: GroupResult) -> None:
        self._queries += 1
        self._candidates += len(group.candidates)
        self._comparisons += len(group.selection.comparisons)
        count_name(self._rules, group.selection.rule, NAMES)
        for judgement in group.own:
            self._add_judgement(judgement)
        if values := group.values(self._view):
            self._add_values(values)
        if self._spent:
            self._spent.add(group)

    def _add_judgement(self, judgement: Judgement) -> None:
        self._judged += 1
        self._judge = self._judge or judgement.judge
        self._usage += judgement.usage
        self._outcomes[judgement.outcome] += 1
        for flag in judgement.flags:
            count_name(self._flags, flag, NAMES)
        if not judgement.ok:
            if judgement.outcome is not Outcome.ABANDONED:
                count_name(self._reasons, judgement.reason or judgement.outcome.value, NAMES)
            return
        self._forced += judgement.forced
        if judgement.rating is not None:
            self._histogram.add(judgement.rating)

    def _add_values(self, values: tuple[float, ...]) -> None:
        if self._spent is None:
            self._curve.add(values)
        self._ties.add(standing_of(values))
        if len(values) > 1:
            self._spread += statistics.pstdev(values)

    def summary(
        self,
        left_out: LeftOut,
        seconds: Mapping[str, float],
        *,
        reused: int = 0,
        new: int | None = None,
        new_usage: Usage | None = None,
    ) -> Summary:
        """All of it so far.

        new, new_usage: number and cost of this run's own judgements. Without them the rates are
            known only if nothing was reused, and None otherwise; one judgement a candidate is
            taken.
        """
        if not reused:
            new = self._judged if new is None else new
            new_usage = new_usage or self._usage
        ties = self._ties.told()
        ok, time = self._outcomes[Outcome.OK], seconds.get(JUDGE_PHASE, 0.0)
        return Summary(
            view=self._view,
            judge=self._judge,
            queries=self._queries,
            candidates=self._candidates,
            outcomes={o.value: self._outcomes[o] for o in Outcome},
            ok_share=_share(ok, self._judged - self._outcomes[Outcome.ABANDONED]),
            reasons=dict(self._reasons.most_common()),
            forced=self._forced,
            forced_share=_share(self._forced, ok),
            flags=dict(self._flags.most_common()),
            rules=dict(self._rules.most_common()),
            tie_rate=ties["tie_rate"],
            pair_tie_rate=ties["pair_tie_rate"],
            spread=_share(self._spread, self._ties.several),
            curve=self._curve.points(),
            curve_queries=self._curve.queries,
            histogram=self._histogram.counts(),
            comparisons=self._comparisons,
            reused=reused,
            usage=self._usage,
            cache_hit_rate=_share(self._usage.tokens_cached, self._usage.tokens_in),
            seconds=dict(seconds),
            judgements_per_second=_share(new, time) if new is not None else None,
            output_tokens_per_second=_share(new_usage.tokens_out, time) if new_usage else None,
            bad_rows=tuple(left_out.first),
            rows_left_out=left_out.count,
            budget=self._spent.summary() if self._spent else None,
        )


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
