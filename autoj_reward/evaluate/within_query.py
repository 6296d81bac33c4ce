"""How well numbers order the responses to one query: what best-of-N lives on.

Pure functions over the responses of one query, and their means over queries.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from statistics import fmean
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from autoj_reward.evaluate.intervals import Array
from autoj_reward.evaluate.metrics import Correlation, spearman

Numbers = Sequence[float | None] | Array
"""Of the responses to one query; None and nan are unknown."""


class WithinQuery(NamedTuple):
    """Responses to one query: what a rater says, how good they are, and their lengths."""

    values: Sequence[float]
    grades: Sequence[float]
    lengths: Sequence[float]


def order(query: WithinQuery) -> float | None:
    """Spearman's correlation of the values with the grades; None where a side is constant."""
    return spearman(query.values, query.grades)


def order_given_length(query: WithinQuery) -> float | None:
    """Partial rank correlation of values and grades given the lengths, -1..1.

    None where a side is constant, or the lengths alone fix one of them.
    """
    pairs = (
        spearman(query.values, query.grades),
        spearman(query.values, query.lengths),
        spearman(query.grades, query.lengths),
    )
    if None in pairs:
        return None
    both, of_values, of_grades = (float(r or 0.0) for r in pairs)
    left = (1 - of_values**2) * (1 - of_grades**2)
    return (both - of_values * of_grades) / math.sqrt(left) if left > 1e-12 else None


def best_drawn(values: ArrayLike, grades: ArrayLike, n: int) -> float:
    """Mean grade of the response with the highest value of `n`, over all ways to draw n of them.

    Of equal values each is as likely to be taken; nan is equal and lowest. With the responses in
    blocks of equal value, of which block b covers ranks l_b+1 .. u_b of N:
        sum_b mean grade of b * (C(u_b, n) - C(l_b, n)) / C(N, n).
    ValueError for n outside 1..N.
    """
    value, grade = np.asarray(values, float), np.asarray(grades, float)
    size = len(value)
    if not 1 <= n <= size:
        raise ValueError(f"best of {n} is outside 1..{size}, the number of responses")
    _, level, counts = np.unique(
        np.where(np.isnan(value), -np.inf, value), return_inverse=True, return_counts=True
    )
    upto = np.concatenate([[0], np.cumsum(counts)])
    ways = [_share(int(k), size, n) for k in upto]
    return float(np.bincount(level, grade) / counts @ np.diff(ways))


@lru_cache(maxsize=4096)
def _share(k: int, size: int, n: int) -> float:
    """Probability that all of n that are drawn are among the lowest k."""
    return math.comb(k, n) / math.comb(size, n)


def gain(values: ArrayLike, grades: ArrayLike, n: int) -> float:
    """What `best_drawn` is above the mean of all grades."""
    return best_drawn(values, grades, n) - float(np.mean(np.asarray(grades, float)))


def orders(
    values: Iterable[Numbers],
    grades: Iterable[Numbers],
    measure: Correlation = spearman,
) -> Array:
    """The correlation inside each query over the responses with both; nan where undefined."""
    found = []
    for own, graded in zip(values, grades, strict=True):
        value, grade = np.array(own, dtype=float), np.array(graded, dtype=float)
        known = ~(np.isnan(value) | np.isnan(grade))
        r = measure(value[known], grade[known])
        found.append(math.nan if r is None else r)
    return np.array(found)


def tie_counts(values: Iterable[Numbers]) -> Array:
    """(pairs of equal value, pairs) of each query's known responses: [queries, 2]."""
    found = []
    for own in values:
        known = np.array(own, dtype=float)
        known = known[~np.isnan(known)]
        _, counts = np.unique(known, return_counts=True)
        found.append([int((counts * (counts - 1) // 2).sum()), math.comb(len(known), 2)])
    return np.array(found, dtype=float).reshape(-1, 2)


def summary(queries: Sequence[WithinQuery]) -> dict[str, float]:
    """Means over queries of `order` and `order_given_length`; of neither without a query."""
    measures = {"order": order, "order_given_length": order_given_length}
    found = {name: [measure(query) for query in queries] for name, measure in measures.items()}
    known = {name: [r for r in values if r is not None] for name, values in found.items()}
    return {name: fmean(values) for name, values in known.items() if values}
