"""Statistics of a run's candidates, counted once for the page and for a job's `summary.json`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from statistics import fmean, pstdev
from typing import Any, NamedTuple, get_args

from autoj_reward.config import View
from autoj_reward.questions.tie_break import tied_pairs
from autoj_reward.types import Judgement, Outcome, Usage

VIEWS: tuple[str, ...] = get_args(View)
"""`rating`, `expected` and `direct`."""
VALUES = 1000
"""Most distinct ratings that are counted apart."""
NAMES = 1000
"""Most distinct names, such as reasons of failures, that are counted apart."""
OTHERS = "others"
"""Names that are counted together."""


class QueryStanding(NamedTuple):
    """A query's candidates in one view. deviation: standard deviation (population). pairs, tied: of
    rated candidates, and those of equal value. top: how many share the best value."""

    rated: int
    best: float
    worst: float
    mean: float
    deviation: float
    pairs: int
    tied: int
    top: int


def standing_of(values: Sequence[float]) -> QueryStanding:
    """Return how a query's rated candidates stand, by their numbers in a view; at least one."""
    best = max(values)
    return QueryStanding(
        rated=len(values),
        best=best,
        worst=min(values),
        mean=fmean(values),
        deviation=pstdev(values),
        pairs=math.comb(len(values), 2),
        tied=tied_pairs(values),
        top=values.count(best),
    )


@dataclass(slots=True)
class ViewTotals:
    """The standings of all queries in one view, added up. several: queries with two rated
    candidates or more; what follows is of these."""

    queries: int = 0
    several: int = 0
    top_tied: int = 0
    pairs: int = 0
    tied: int = 0
    best: float = 0.0
    mean: float = 0.0
    deviation: float = 0.0

    def add(self, own: QueryStanding, sign: int = 1) -> None:
        self.queries += sign
        if own.rated > 1:
            self.several += sign
            self.top_tied += sign * (own.top > 1)
            self.pairs += sign * own.pairs
            self.tied += sign * own.tied
            self.best += sign * own.best
            self.mean += sign * own.mean
            self.deviation += sign * own.deviation

    def as_json(self) -> dict[str, float | None]:
        """Return the shares and means.

        tie_rate: share of queries whose best value is shared. pair_tie_rate: of pairs of candidates
        of one query, those of equal value. spread: standard deviation within a query, mean over
        queries. gain: mean best minus mean, in points of the view.
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
    """Result of one candidate, from all of its judgements. values: its number in each view of
    VIEWS, None where it has none."""

    outcome: str
    reason: str
    values: tuple[float | None, ...]
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
    """Statistics of the candidates of a run, query by query, in memory that does not grow.

    views: `ViewTotals` in the order of VIEWS.
    """

    def __init__(self) -> None:
        self.queries = self.candidates = 0
        self.usage = Usage()
        self.views = tuple(ViewTotals() for _ in VIEWS)
        self._outcomes: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()
        self._flags: Counter[str] = Counter()
        self._histogram = Histogram(VALUES)
        self._forced, self._rated, self._total = 0, 0, 0.0

    def add(self, results: Sequence[CandidateResult], sign: int = 1) -> None:
        """Count a query with its candidates; with sign -1 take back one that has changed."""
        self.queries += sign
        for result in results:
            self._add(result, sign)
        for view, totals in enumerate(self.views):
            if own := standing(results, view):
                totals.add(own, sign)

    def _add(self, result: CandidateResult, sign: int) -> None:
        self.candidates += sign
        self.usage = self.usage + result.usage if sign > 0 else _less(self.usage, result.usage)
        self._outcomes[result.outcome] += sign
        for flag in result.flags:
            count_name(self._flags, flag, NAMES, sign)
        if result.outcome == Outcome.OK:
            self._forced += sign * result.forced
        elif result.outcome != Outcome.ABANDONED:
            count_name(self._reasons, result.reason or result.outcome, NAMES, sign)
        if (rating := result.values[0]) is not None:
            self._histogram.add(rating, sign)
            self._rated += sign
            self._total += sign * rating

    def as_json(self) -> dict[str, Any]:
        """Return the statistics by the names that `summary.json` has them under.

        Shares are 0..1, and None where there is nothing to divide by. outcomes: candidates by
        outcome, zeros included. ok_share: of those that were not abandoned. reasons: failed ones by
        reason. forced: ok ones whose rating was forced; forced_share: among ok ones. mean_rating:
        over rated candidates. histogram: (rating, count), ascending.
        """
        ok = self._outcomes[Outcome.OK]
        return {
            "queries": self.queries,
            "candidates": self.candidates,
            "outcomes": {outcome.value: self._outcomes[outcome] for outcome in Outcome},
            "ok_share": quotient(ok, self.candidates - self._outcomes[Outcome.ABANDONED]),
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
    """Return how the candidates stand; None where none has a number in that view of VIEWS."""
    values = [value for result in results if (value := result.values[view]) is not None]
    return standing_of(values) if values else None


def notices(found: Mapping[str, Any], view: str) -> list[str]:
    """Return warnings for a reader of the ratings, as sentences of plain text.

    found: statistics by the names of `summary.json`, with those of the view.
    """
    said = []
    ok_share, forced = found["ok_share"], found["forced_share"]
    spread, ties = found["spread"], found["pair_tie_rate"]
    if found["candidates"] and ok_share == 0:
        said.append("No candidate got a rating: a choice among them is arbitrary.")
    elif ok_share is not None and ok_share < 0.95:
        said.append(
            f"{as_percent(1 - ok_share)} of the judgements failed. Failed candidates cannot be "
            "chosen unless all of a query's candidates failed."
        )
    if forced is not None and forced > 0.5:
        said.append(
            f"{as_percent(forced)} of the ratings were forced: the judge did not write them "
            "itself, so they say less than ratings that it wrote after its critique."
        )
    if spread is not None and spread < 0.1:
        said.append(
            "The judge hardly tells the candidates of a query apart (standard deviation "
            f"{spread:.3g} points on average), so choices among them mean little."
        )
    elif ties is not None and ties > 0.7:
        name = view if view == "rating" else f"{view} rating"
        said.append(
            f"{as_percent(ties)} of the candidate pairs of a query got the same {name}: the "
            "tie-break decides most choices."
        )
    return said


def count_name(names: Counter[str], name: str, most: int, sign: int = 1) -> None:
    """Count a name; with sign -1 take one back. Once `most` names are known, new ones are counted
    together as OTHERS."""
    names[name if name in names or len(names) < most else OTHERS] += sign


class Histogram:
    """Counts by value while there are at most so many of them; beyond, in bars of equal width, a
    power of two, each by its middle."""

    def __init__(self, most: int) -> None:
        self.width = 0.0
        self._most = most
        self._counts: Counter[float] = Counter()

    def add(self, value: float, times: int = 1) -> None:
        """Count a value so many times; a negative number takes it back. What is not finite is left
        out."""
        if not math.isfinite(value):
            return
        self._counts[self._bar(value)] += times
        while len(self._counts) > self._most:
            span = max(self._counts) - min(self._counts)
            self.width = max(2 * self.width, 2.0 ** math.ceil(math.log2(span / self._most)))
            before, self._counts = self._counts, Counter()
            for old, found in before.items():
                self._counts[self._bar(old)] += found

    def _bar(self, value: float) -> float:
        """The value, or the middle of its bar. Of bars that are put together all values go into the
        same one, so that each can be taken back."""
        return (math.floor(value / self.width) + 0.5) * self.width if self.width else value

    def counts(self) -> tuple[tuple[float, int], ...]:
        """Return (value, count), ascending."""
        return tuple(sorted((value, count) for value, count in self._counts.items() if count > 0))


@lru_cache(maxsize=512)
def _weights(n: int, size: int) -> tuple[float, ...]:
    """Probability that the i-th smallest of n is the best of a random subset of this size."""
    # The quotient of two Python integers is rounded once, however large they are.
    return tuple(math.comb(i, size - 1) / math.comb(n, size) for i in range(n))


def default_sizes(n: int) -> tuple[int, ...]:
    """Return 1, 2, 4, ... up to n, and n itself; nothing for n = 0."""
    return tuple(sorted({1 << k for k in range(n.bit_length())} | {n})) if n else ()


def best_of_n_curve(
    values: Iterable[float], sizes: Iterable[int] | None = None
) -> tuple[tuple[int, float], ...]:
    """Return the expected best of N candidates, for N in sizes (default 1, 2, 4, ... and n itself).

    With v_(1) <= ... <= v_(n), over all subsets of size N drawn without replacement:
        E[best of N] = sum_i v_(i) C(i-1, N-1) / C(n, N).
    Assumes finite values and exchangeable candidates: any N of them could have been the ones
    sampled. N = 1 gives the mean and N = n the maximum; no values give an empty curve.
    Raises ValueError for a size outside 1..n or a value that is not finite.
    """
    ordered = sorted(values)
    n = len(ordered)
    if not all(math.isfinite(value) for value in ordered):
        raise ValueError(f"values must be finite, not {ordered}")
    curve = []
    for size in default_sizes(n) if sizes is None or not n else sizes:
        if not 1 <= size <= n:
            raise ValueError(f"size {size} is outside 1..{n}, the number of values")
        best = math.fsum(v * w for v, w in zip(ordered, _weights(n, size), strict=True))
        curve.append((size, min(max(best, ordered[0]), ordered[-1])))
    return tuple(curve)


def bars(
    histogram: Iterable[tuple[float, int]], most: int
) -> tuple[tuple[tuple[float, int], ...], float]:
    """Return the histogram in at most so many bars, and their width; 0 if values stand apart."""
    found = Histogram(most)
    for value, count in histogram:
        found.add(value, count)
    return found.counts(), found.width


class MeanCurve:
    """The mean best-of-N curve over queries, as far as the one with the fewest values goes.

    A point of a query's curve is linear in its ordered values, so sums of ordered values will do,
    apart for each number of values.
    """

    def __init__(self) -> None:
        self.queries = 0
        self._sums: dict[int, list[float]] = {}

    def add(self, values: tuple[float, ...]) -> None:
        self.queries += 1
        sums = self._sums.setdefault(len(values), [0.0] * len(values))
        for place, value in enumerate(sorted(values)):
            sums[place] += value

    def points(self) -> tuple[tuple[int, float], ...]:
        sizes = default_sizes(min(self._sums, default=0))
        curves = [dict(best_of_n_curve(sums, sizes)) for sums in self._sums.values()]
        return tuple((n, math.fsum(curve[n] for curve in curves) / self.queries) for n in sizes)


def by_count(counts: Counter[str]) -> dict[str, int]:
    """Return the counts above 0, the highest first."""
    return {name: n for name, n in counts.most_common() if n > 0}


def quotient(part: float, whole: float) -> float | None:
    """Return the quotient, or None where there is nothing to divide by."""
    return part / whole if whole > 0 else None


def as_percent(part: float) -> str:
    """Return a share as the page's script writes it, halves rounded up."""
    return f"{math.floor(1000 * part + 0.5) / 10:g} %"


def _less(usage: Usage, other: Usage) -> Usage:
    return Usage(*(getattr(usage, f.name) - getattr(other, f.name) for f in fields(Usage)))
