"""The best-of-N curve: what N samples would have given, from n that were drawn."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache


@lru_cache(maxsize=512)
def _weights(n: int, size: int) -> tuple[float, ...]:
    """Probability that the i-th smallest of n is the best of a random subset of this size."""
    # The quotient of two Python integers is rounded once, however large they are.
    return tuple(math.comb(i, size - 1) / math.comb(n, size) for i in range(n))


def default_sizes(n: int) -> tuple[int, ...]:
    """1, 2, 4, ... up to n, and n itself; empty for n = 0."""
    return tuple(sorted({1 << k for k in range(n.bit_length())} | {n})) if n else ()


def best_of_n_curve(
    values: Iterable[float], sizes: Iterable[int] | None = None
) -> tuple[tuple[int, float], ...]:
    """Expected best of N candidates, for each N in sizes (default 1, 2, 4, ... and n itself).

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
