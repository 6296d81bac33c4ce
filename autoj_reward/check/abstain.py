"""Choice of the limit on a judge's doubt: a bound on how often the numbers that count are wrong.

Pure functions. The bound holds for any judge and any labels (Geifman and El-Yaniv, 2017): it is
that of Clopper and Pearson, at LEVELS limits at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoj_reward.evaluate.statistics import Array

LEVELS = 10
"""Number of limits that are tried. They leave 1/LEVELS, 2/LEVELS, … of the responses in."""
CONFIDENCE = 0.95
"""Probability that the bounds of all limits hold."""


@dataclass(frozen=True, slots=True)
class DoubtLimit:
    """A limit on the spread of the judge's distribution, and how often the numbers within it are
    wrong."""

    max_spread: float
    abstains: float
    """Share of the responses beyond the limit, 0 to 1."""
    queries: int
    """Queries with a response within the limit."""
    wrong: float
    """Share of wrong numbers within the limit, 0 to 1: the mean over queries."""
    bound: float
    """Upper bound of `wrong` on other queries of the same kind, 0 to 1."""


def doubt_limits(
    spreads: Array, wrong: NDArray[np.bool_], queries: Sequence[str]
) -> list[DoubtLimit]:
    """Return the limits that are tried, from the strictest to none.

    Responses to one query count as one draw, the mean of theirs. spreads: standard deviation of
    each distribution. wrong: whether each number is too far from its label. Shapes [n], n at least
    1. queries: query of each.
    """
    from scipy.stats import beta  # slow to import

    names, places = np.unique(np.array(queries), return_inverse=True)
    candidate_limits = np.unique(
        np.quantile(spreads, np.arange(1, LEVELS + 1) / LEVELS, method="higher")
    )
    limits = []
    for limit in candidate_limits.tolist():
        is_within = spreads <= limit
        counts = np.bincount(places[is_within], minlength=len(names))
        misses = np.bincount(places[is_within & wrong], minlength=len(names))[counts > 0]
        n, k = int((counts > 0).sum()), float((misses / counts[counts > 0]).sum())
        level = 1 - (1 - CONFIDENCE) / LEVELS
        bound = float(beta.ppf(level, k + 1, n - k)) if k < n else 1.0
        limits.append(DoubtLimit(limit, float(1 - is_within.mean()), n, k / n, bound))
    return limits


def loosest_limit(limits: Sequence[DoubtLimit], max_wrong: float) -> DoubtLimit | None:
    """Return the limit with the most responses within it whose bound is at most `max_wrong`."""
    allowed_limits = [limit for limit in limits if limit.bound <= max_wrong]
    return max(allowed_limits, key=lambda limit: limit.max_spread, default=None)
