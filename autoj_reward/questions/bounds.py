"""How far a rating after the critique may lie from the one read before it, and a mean from its own.

Every figure is of one query, so that a selection does not depend on what was judged beside it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pvariance
from typing import ClassVar

from autoj_reward.types import RATING, Judgement

PRIOR = 2
"""Observations that the variance of the rating slot counts for."""


@dataclass(frozen=True, slots=True)
class Bound:
    """An upper bound on a rating after the critique, from the cheap rating before it.

    A least-squares line through the (cheap, full) ratings so far, shrunk to slope 1 as if one
    more pair stood there at the slot's own spread, and around it a prediction interval of `z`
    standard deviations; the residual variance counts the slot's variance as PRIOR observations.
    """

    z: ClassVar[float] = 2.0
    mean_cheap: float
    mean_full: float
    slope: float
    deviation: float
    weight: float
    n: int

    @classmethod
    def fitted(cls, pairs: Sequence[tuple[float, float]], variance: float) -> Bound:
        """From (cheap, full) pairs and the variance of the slot; without a pair nothing is known,
        and every bound is infinite."""
        if not pairs:
            return cls(0.0, math.inf, 0.0, 0.0, 0.0, 0)
        x, y = fmean(c for c, _ in pairs), fmean(f for _, f in pairs)
        weight = variance + sum((c - x) ** 2 for c, _ in pairs)
        joint = variance + sum((c - x) * (f - y) for c, f in pairs)
        slope = max(0.0, joint / weight) if weight else 1.0
        rest = sum((f - y - slope * (c - x)) ** 2 for c, f in pairs)
        residual = (PRIOR * variance + rest) / (PRIOR + len(pairs) - 1)
        return cls(x, y, slope, math.sqrt(residual), weight, len(pairs))

    def upper(self, cheap: float) -> float:
        """The bound of a candidate; infinite if its cheap rating is nan."""
        if not self.n or math.isnan(cheap):
            return math.inf
        away = cheap - self.mean_cheap
        far = away**2 / self.weight if self.weight else 0.0
        error = self.deviation * math.sqrt(1 + 1 / self.n + far)
        return self.mean_full + self.slope * away + self.z * error


def slot_variance(judgements: Sequence[Judgement]) -> float:
    """Mean variance of the ratings' distributions, in points squared; without any, the variance of
    the expected ratings among each other."""
    read = (judgement.reading(RATING) for judgement in judgements)
    found = [_variance(own.distribution) for own in read if own]
    known = [v for v in found if v is not None]
    if known:
        return fmean(known)
    seen = [v for j in judgements if (v := j.view("expected")) is not None]
    return pvariance(seen) if seen else 0.0


def _variance(distribution: Sequence[tuple[str, float]] | None) -> float | None:
    mass = sum(p for _, p in distribution) if distribution else 0.0
    if not distribution or mass <= 0:
        return None
    mean = sum(float(label) * p for label, p in distribution) / mass
    return sum((float(label) - mean) ** 2 * p for label, p in distribution) / mass


def spread_of_means(drawn: Mapping[int, Sequence[float]], prior: float) -> dict[int, float]:
    """The standard error of each mean: one variance, pooled over all that were drawn more than
    once, and `prior` counting as PRIOR observations."""
    rest = sum(pvariance(values) * len(values) for values in drawn.values())
    free = sum(len(values) - 1 for values in drawn.values())
    variance = (PRIOR * prior + rest) / (PRIOR + free)
    return {i: math.sqrt(variance / len(values)) for i, values in drawn.items()}
