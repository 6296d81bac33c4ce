"""Figures of a job that are gathered query by query, in memory that does not grow with the job."""

from __future__ import annotations

import math
from collections import Counter

from rollouts.best_of_n.curve import best_of_n_curve, default_sizes

NAMES = 1000
"""Distinct names, such as reasons of failures, that are counted apart."""
OTHER = "other"


def count(names: Counter[str], name: str) -> None:
    """Count a name; of more than NAMES, the late ones together."""
    names[name if name in names or len(names) < NAMES else OTHER] += 1


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
