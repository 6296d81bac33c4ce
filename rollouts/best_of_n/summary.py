"""What a best-of-N job found, in figures."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autoj_reward.types import (
    BadRow,
    Outcome,
    Usage,
)
from rollouts.best_of_n.curve import best_of_n_curve, default_sizes
from rollouts.best_of_n.group import GroupResult, was_forced
from rollouts.best_of_n.spending import BudgetSummary, summarise_budget

JUDGE_PHASE = "judge"
"""The phase in `seconds` that throughput is measured over."""


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
    histogram: (rating, count), ascending. comparisons: knock-out matches played to break ties.
    usage: tokens as recorded with the judgements, reused ones included. cache_hit_rate: share of
        its tokens in that were read from the engine's prefix cache, at the rating slots too.
    seconds: by phase. The rates are over the phase `judge`: critiques, or ratings of a judge that
        writes none, and orders of comparisons that this run asked for; on a budget the cheap
        readings are not counted.
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
    budget: BudgetSummary | None = None


def summarise(
    groups: Sequence[GroupResult],
    bad_rows: Iterable[BadRow],
    *,
    view: str,
    judge: str,
    seconds: Mapping[str, float],
    reused: int = 0,
    new: int | None = None,
    new_usage: Usage | None = None,
    budget: float | None = None,
) -> Summary:
    """Count and average a job's results.

    new, new_usage: number and cost of this run's own judgements. Without them the rates are known
        only if nothing was reused, and None otherwise; one judgement a candidate is taken.
    budget: the share that the job was given, if any.
    """
    judgements = [judgement for group in groups for judgement in group.own]
    ok = [judgement for judgement in judgements if judgement.ok]
    abandoned = sum(judgement.outcome is Outcome.ABANDONED for judgement in judgements)
    failed = [j for j in judgements if not j.ok and j.outcome is not Outcome.ABANDONED]
    forced = sum(was_forced(judgement) for judgement in ok)
    usage = sum((judgement.usage for judgement in judgements), Usage())
    if not reused:
        new = len(judgements) if new is None else new
        new_usage = new_usage or usage
    values = [found for group in groups if (found := group.values(view))]
    several = [found for found in values if len(found) > 1]
    time = seconds.get(JUDGE_PHASE, 0.0)
    spent = None if budget is None else summarise_budget(budget, groups)
    curves = [] if spent else values
    return Summary(
        view=view,
        judge=judge,
        queries=len(groups),
        candidates=sum(len(group.candidates) for group in groups),
        outcomes={o.value: sum(j.outcome is o for j in judgements) for o in Outcome},
        ok_share=_share(len(ok), len(judgements) - abandoned),
        reasons=_ranked(j.reason or j.outcome.value for j in failed),
        forced=forced,
        forced_share=_share(forced, len(ok)),
        flags=_ranked(flag for j in judgements for flag in j.flags),
        rules=_ranked(group.selection.rule for group in groups),
        tie_rate=_share(sum(found.count(max(found)) > 1 for found in several), len(several)),
        pair_tie_rate=_share(
            sum(math.comb(k, 2) for found in several for k in Counter(found).values()),
            sum(math.comb(len(found), 2) for found in several),
        ),
        spread=statistics.fmean(map(statistics.pstdev, several)) if several else None,
        curve=_mean_curve(curves),
        curve_queries=len(curves),
        histogram=tuple(sorted(Counter(j.rating.value for j in ok if j.rating).items())),
        comparisons=sum(len(group.selection.comparisons) for group in groups),
        reused=reused,
        usage=usage,
        cache_hit_rate=_share(usage.tokens_cached, usage.tokens_in),
        seconds=dict(seconds),
        judgements_per_second=_share(new, time) if new is not None else None,
        output_tokens_per_second=_share(new_usage.tokens_out, time) if new_usage else None,
        bad_rows=tuple(bad_rows),
        budget=spent,
    )


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def _ranked(names: Iterable[str]) -> dict[str, int]:
    return dict(Counter(names).most_common())


def _mean_curve(values: Sequence[Sequence[float]]) -> tuple[tuple[int, float], ...]:
    sizes = default_sizes(min(map(len, values), default=0))
    curves = [dict(best_of_n_curve(found, sizes)) for found in values]
    return tuple((size, statistics.fmean(curve[size] for curve in curves)) for size in sizes)
