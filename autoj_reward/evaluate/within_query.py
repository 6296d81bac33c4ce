"""How well numbers order the responses to one query: what best-of-N lives on.

Pure functions over the responses of one query, and their means over queries.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np

from autoj_reward.evaluate.metrics import spearman


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


def gain(values: Sequence[float], grades: Sequence[float], n: int) -> float:
    """Mean grade of the response with the highest value of `n`, over all ways to draw n of them,
    less the mean of all grades. Of equal values each is as likely to be taken."""
    value, grade = np.asarray(values, float), np.asarray(grades, float)
    levels, level = np.unique(value, return_inverse=True)
    size = len(value)
    below = np.concatenate([[0], np.cumsum(np.bincount(level))])
    ways = np.array([math.comb(int(k), n) for k in below], dtype=float) / math.comb(size, n)
    means = np.bincount(level, grade) / np.bincount(level)
    return float(means @ np.diff(ways) - grade.mean()) if len(levels) else 0.0


def recovered(queries: Sequence[WithinQuery], n: int) -> float | None:
    """Of what an oracle gains over a random choice by the best of `n`, the share that the values
    gain; queries with fewer responses are left out. None if there is nothing to gain."""
    usable = [query for query in queries if len(query.grades) >= n]
    whole = sum(gain(query.grades, query.grades, n) for query in usable)
    got = sum(gain(query.values, query.grades, n) for query in usable)
    return got / whole if whole > 0 else None


def summary(queries: Sequence[WithinQuery]) -> dict[str, float]:
    """Means over queries of `order` and `order_given_length`; of neither without a query."""
    measures = {"order": order, "order_given_length": order_given_length}
    found = {name: [measure(query) for query in queries] for name, measure in measures.items()}
    known = {name: [r for r in values if r is not None] for name, values in found.items()}
    return {name: fmean(values) for name, values in known.items() if values}
