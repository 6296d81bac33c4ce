"""Statistics of a run's candidates, the same for the page and for a job's `summary.json`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from statistics import fmean
from typing import Any, NamedTuple, get_args

from autoj_reward.config import View
from autoj_reward.questions.tie_break import count_tied_pairs
from autoj_reward.types import NOT_ASKED, Judgement, Outcome, Usage

VIEWS: tuple[str, ...] = get_args(View)
"""Names of the views: `rating`, `expected`, `direct` and `pessimistic`."""
VALUES = 1000
"""Maximum distinct ratings that are counted separately."""
NAMES = 1000
"""Maximum distinct names, such as failure reasons, that are counted separately."""
OTHERS = "others"
"""Name under which all further names are counted."""


class QueryStanding(NamedTuple):
    """Statistics of one query's rated candidates in one view."""

    rated: int
    """Number of rated candidates."""
    best: float
    worst: float
    mean: float
    deviation: float
    """Standard deviation (population)."""
    pairs: int
    """Number of pairs of rated candidates."""
    tied: int
    """Number of pairs with equal values."""
    top: int
    """Number of candidates with the best value."""


def standing_of(values: Sequence[float]) -> QueryStanding:
    """Return the statistics of a query's values in one view; there must be at least one."""
    best, worst, mean = max(values), min(values), fmean(values)
    return QueryStanding(
        rated=len(values),
        best=best,
        worst=worst,
        mean=mean,
        # `pstdev` computes in fractions, which takes longer than all the rest.
        deviation=math.sqrt(fmean([(v - mean) ** 2 for v in values])) if best > worst else 0.0,
        pairs=math.comb(len(values), 2),
        tied=count_tied_pairs(values),
        top=values.count(best),
    )


@dataclass(slots=True)
class ViewTotals:
    """Sums of all queries' statistics in one view."""

    queries: int = 0
    """Queries with at least one rated candidate."""
    several: int = 0
    """Queries with at least two rated candidates; the fields below sum over these."""
    top_tied: int = 0
    """Queries whose best value is shared."""
    pairs: int = 0
    tied: int = 0
    best: float = 0.0
    mean: float = 0.0
    deviation: float = 0.0

    def add(self, query_standing: QueryStanding, sign: int = 1) -> None:
        self.queries += sign
        if query_standing.rated > 1:
            self.several += sign
            self.top_tied += sign * (query_standing.top > 1)
            self.pairs += sign * query_standing.pairs
            self.tied += sign * query_standing.tied
            self.best += sign * query_standing.best
            self.mean += sign * query_standing.mean
            self.deviation += sign * query_standing.deviation

    def as_json(self) -> dict[str, float | None]:
        """Return shares and means over queries with at least two rated candidates.

        tie_rate: share of queries whose best value is shared. pair_tie_rate: share of pairs of one
        query's candidates with equal values. spread: mean over queries of the standard deviation
        within a query. gain: mean best value minus mean value, in points of the view.
        """
        return {
            "queries": self.queries,
            "several": self.several,
            "tie_rate": quotient(self.top_tied, self.several),
            "pair_tie_rate": quotient(self.tied, self.pairs),
            "spread": quotient(self.deviation, self.several),
            "gain": quotient(self.best - self.mean, self.several),
        }


class CandidateResult(NamedTuple):
    """Result of one candidate, from all of its judgements."""

    outcome: str
    reason: str
    values: tuple[float | None, ...]
    """Its number in each view of VIEWS; None if it has none."""
    forced: bool
    flags: tuple[str, ...]
    usage: Usage


def result_of(judgement: Judgement) -> CandidateResult:
    """Return the result of a candidate with this judgement."""
    return CandidateResult(
        judgement.outcome.value,
        judgement.reason,
        tuple(judgement.view(view) for view in VIEWS),
        judgement.forced,
        judgement.flags,
        judgement.usage,
    )


class RunStatistics:
    """Statistics of a run's candidates, updated query by query in bounded memory."""

    def __init__(self) -> None:
        self.queries = self.candidates = 0
        self.usage = Usage()
        self.views = tuple(ViewTotals() for _ in VIEWS)
        """Totals of each view, in the order of VIEWS."""
        self._outcomes: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()
        self._flags: Counter[str] = Counter()
        self._histogram = Histogram(VALUES)
        self._forced, self._rated, self._total = 0, 0, 0.0

    def add(self, results: Sequence[CandidateResult], sign: int = 1) -> None:
        """Count a query with its candidates, or remove one that has changed with `sign=-1`."""
        self.queries += sign
        for result in results:
            self._add(result, sign)
        for view, totals in enumerate(self.views):
            if query_standing := standing(results, view):
                totals.add(query_standing, sign)

    def _add(self, result: CandidateResult, sign: int) -> None:
        self.candidates += sign
        self.usage = (
            self.usage + result.usage if sign > 0 else _subtract_usage(self.usage, result.usage)
        )
        self._outcomes[result.outcome] += sign
        for flag in result.flags:
            count_name(self._flags, flag, NAMES, sign)
        if result.outcome == Outcome.OK:
            self._forced += sign * result.forced
        elif result.outcome not in NOT_ASKED:
            count_name(self._reasons, result.reason or result.outcome, NAMES, sign)
        if (rating := result.values[0]) is not None:
            self._histogram.add(rating, sign)
            self._rated += sign
            self._total += sign * rating

    def as_json(self) -> dict[str, Any]:
        """Return the statistics under the keys of `summary.json`.

        Shares are 0..1, or None without a denominator. outcomes: candidates by outcome, including
        zeros. ok_share: among candidates that a judge was asked about. reasons: failed candidates
        by reason. forced: ok candidates with a forced rating. forced_share: among ok candidates.
        mean_rating: over rated candidates. histogram: (rating, count) pairs, ascending.
        """
        ok = self._outcomes[Outcome.OK]
        return {
            "queries": self.queries,
            "candidates": self.candidates,
            "outcomes": {outcome.value: self._outcomes[outcome] for outcome in Outcome},
            "ok_share": quotient(ok, self.candidates - sum(self._outcomes[o] for o in NOT_ASKED)),
            "reasons": by_count(self._reasons),
            "forced": self._forced,
            "forced_share": quotient(self._forced, ok),
            "flags": by_count(self._flags),
            "mean_rating": quotient(self._total, self._rated),
            "histogram": self._histogram.counts(),
            "usage": self.usage,
            "cache_hit_rate": quotient(self.usage.tokens_cached, self.usage.tokens_in),
        }


def standing(results: Sequence[CandidateResult], view: int) -> QueryStanding | None:
    """Return the statistics of a query's candidates in a view of VIEWS, given by index.

    Returns None if no candidate has a number in it.
    """
    values = [value for result in results if (value := result.values[view]) is not None]
    return standing_of(values) if values else None


def notices(statistics: Mapping[str, Any], view: str, scored: bool = False) -> list[str]:
    """Return warnings for a reader of the ratings, as plain sentences.

    statistics: those under the keys of `summary.json`, including those of the view. scored:
    whether the values are scores from 0 to 1, of groups or rubrics.
    """
    unit, least = ("of a score from 0 to 1", 0.01) if scored else ("points", 0.1)
    warnings = []
    ok_share, forced = statistics["ok_share"], statistics["forced_share"]
    spread, ties = statistics["spread"], statistics["pair_tie_rate"]
    if statistics["candidates"] and ok_share == 0:
        warnings.append("No candidate got a rating: a choice among them is arbitrary.")
    elif ok_share is not None and ok_share < 0.95:
        warnings.append(
            f"{as_percent(1 - ok_share)} of the judgements failed. Failed candidates cannot be "
            "chosen unless all of a query's candidates failed."
        )
    if forced is not None and forced > 0.5:
        warnings.append(
            f"{as_percent(forced)} of the ratings were forced: the judge did not write them "
            "itself, so they say less than ratings that it wrote after its critique."
        )
    if spread is not None and spread < least:
        warnings.append(
            "The judge hardly tells the candidates of a query apart (standard deviation "
            f"{spread:.3g} {unit} on average), so choices among them mean little."
        )
    elif ties is not None and ties > 0.7:
        name = view if view == "rating" else f"{view} rating"
        warnings.append(
            f"{as_percent(ties)} of the candidate pairs of a query got the same {name}: the "
            "tie-break decides most choices."
        )
    return warnings


def count_name(names: Counter[str], name: str, most: int, sign: int = 1) -> None:
    """Count a name, or remove it with `sign=-1`.

    Once `most` names are known, new ones are counted together as OTHERS.
    """
    names[name if name in names or len(names) < most else OTHERS] += sign


class Histogram:
    """Histogram of a stream of numbers in bounded memory.

    Exact values are counted while there are at most `most` distinct ones, then equal-width bins.
    Bin widths are powers of two, and a bin is reported by its middle.
    """

    def __init__(self, most: int) -> None:
        self.width = 0.0
        self._most = most
        self._counts: Counter[float] = Counter()

    def add(self, value: float, times: int = 1) -> None:
        """Count a value `times` times; a negative number removes it. Values that are not finite are
        ignored."""
        if not math.isfinite(value):
            return
        self._counts[self._find_bar(value)] += times
        while len(self._counts) > self._most:
            span = max(self._counts) - min(self._counts)
            self.width = max(2 * self.width, 2.0 ** math.ceil(math.log2(span / self._most)))
            old_counts, self._counts = self._counts, Counter()
            for old, count in old_counts.items():
                self._counts[self._find_bar(old)] += count

    def _find_bar(self, value: float) -> float:
        """Return the value, or the middle of its bin.

        When bins merge, all of their values go to the same bin, so that each can be removed later.
        """
        return (math.floor(value / self.width) + 0.5) * self.width if self.width else value

    def counts(self) -> tuple[tuple[float, int], ...]:
        """Return (value or bin middle, count) pairs, ascending."""
        return tuple(sorted((value, count) for value, count in self._counts.items() if count > 0))


@lru_cache(maxsize=512)
def _compute_weights(n: int, size: int) -> tuple[float, ...]:
    """Return for each i the probability that the i-th smallest of n values is the best of a random
    subset of this size."""
    # Dividing two Python integers rounds only once, however large they are.
    return tuple(math.comb(i, size - 1) / math.comb(n, size) for i in range(n))


def default_sizes(n: int) -> tuple[int, ...]:
    """Return 1, 2, 4, ... up to n, and n itself; () for n = 0."""
    return tuple(sorted({1 << k for k in range(n.bit_length())} | {n})) if n else ()


def best_of_n_curve(
    values: Iterable[float], sizes: Iterable[int] | None = None
) -> tuple[tuple[int, float], ...]:
    """Return the expected best of N values, for N in sizes (default 1, 2, 4, ... and n itself).

    With v_(1) <= ... <= v_(n), over all subsets of size N drawn without replacement:
        E[best of N] = sum_i v_(i) C(i-1, N-1) / C(n, N).

    This assumes finite values and exchangeable candidates: any N of them could have been the ones
    sampled. N = 1 gives the mean and N = n the maximum; without values the curve is empty. Raises
    ValueError for a size outside 1..n or a value that is not finite.
    """
    sorted_values = sorted(values)
    n = len(sorted_values)
    if not all(math.isfinite(value) for value in sorted_values):
        raise ValueError(f"values must be finite, not {sorted_values}")
    curve = []
    for size in default_sizes(n) if sizes is None or not n else sizes:
        if not 1 <= size <= n:
            raise ValueError(f"size {size} is outside 1..{n}, the number of values")
        best = math.fsum(
            v * w for v, w in zip(sorted_values, _compute_weights(n, size), strict=True)
        )
        curve.append((size, min(max(best, sorted_values[0]), sorted_values[-1])))
    return tuple(curve)


def bars(
    histogram: Iterable[tuple[float, int]], most: int
) -> tuple[tuple[tuple[float, int], ...], float]:
    """Return (histogram with at most `most` bins, bin width).

    The width is 0 if every value is counted separately.
    """
    merged_histogram = Histogram(most)
    for value, count in histogram:
        merged_histogram.add(value, count)
    return merged_histogram.counts(), merged_histogram.width


class MeanCurve:
    """Mean best-of-N curve over queries, up to the smallest number of values of any query.

    A point of a query's curve is linear in its sorted values. So it is enough to keep sums of
    sorted values for each number of values.
    """

    def __init__(self) -> None:
        self.queries = 0
        self._sums: dict[int, list[float]] = {}

    def add(self, values: tuple[float, ...]) -> None:
        """Add the values of one query."""
        self.queries += 1
        sums = self._sums.setdefault(len(values), [0.0] * len(values))
        for place, value in enumerate(sorted(values)):
            sums[place] += value

    def points(self) -> tuple[tuple[int, float], ...]:
        """Return (N, mean best of N) pairs."""
        sizes = default_sizes(min(self._sums, default=0))
        curves = [dict(best_of_n_curve(sums, sizes)) for sums in self._sums.values()]
        return tuple((n, math.fsum(curve[n] for curve in curves) / self.queries) for n in sizes)


def by_count(counts: Counter[str]) -> dict[str, int]:
    """Return the counts above 0, highest first."""
    return {name: n for name, n in counts.most_common() if n > 0}


def quotient(part: float, whole: float) -> float | None:
    """Return the quotient, or None if the denominator is not positive."""
    return part / whole if whole > 0 else None


def as_percent(part: float) -> str:
    """Return a share as a percentage, rounded half up like the page's script."""
    return f"{math.floor(1000 * part + 0.5) / 10:g} %"


def _subtract_usage(usage: Usage, other: Usage) -> Usage:
    return Usage(*(getattr(usage, f.name) - getattr(other, f.name) for f in fields(Usage)))
