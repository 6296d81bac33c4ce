"""Statistical bounds: on a rating after the critique given the one before it, and on a mean's
error.

All statistics are of one query, so that a selection does not depend on other queries.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pvariance
from typing import ClassVar

from autoj_reward.types import RATING, Judgement

PRIOR = 2
"""Number of observations that the rating slot's variance counts as."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Upper bound on a rating after the critique ("full"), given the rating before it ("cheap").

    It is a least-squares line through the (cheap, full) pairs so far, with a prediction interval of
    `z` standard deviations. The slope is shrunk to 1 as if one more pair, with the slot's own
    spread, lay there. The residual variance counts the slot's variance as PRIOR observations.
    """

    z: ClassVar[float] = 2.0
    """Width of the interval in standard deviations."""
    mean_cheap: float
    """Mean cheap rating."""
    mean_full: float
    """Mean full rating."""
    slope: float
    """Slope of the line, at least 0."""
    deviation: float
    """Standard deviation of the residuals."""
    weight: float
    """The slot's variance plus the cheap ratings' sum of squared deviations."""
    n: int
    """Number of pairs."""

    @classmethod
    def fitted(cls, pairs: Sequence[tuple[float, float]], variance: float) -> Bound:
        """Fit the bound to (cheap, full) pairs and the slot's variance.

        Without pairs every bound is infinite.
        """
        if not pairs:
            return cls(0.0, math.inf, 0.0, 0.0, 0.0, 0)
        mean_cheap, mean_full = fmean(c for c, _ in pairs), fmean(f for _, f in pairs)
        weight = variance + sum((c - mean_cheap) ** 2 for c, _ in pairs)
        joint = variance + sum((c - mean_cheap) * (f - mean_full) for c, f in pairs)
        slope = max(0.0, joint / weight) if weight else 1.0
        residual_squares = sum((f - mean_full - slope * (c - mean_cheap)) ** 2 for c, f in pairs)
        residual = (PRIOR * variance + residual_squares) / (PRIOR + len(pairs) - 1)
        return cls(mean_cheap, mean_full, slope, math.sqrt(residual), weight, len(pairs))

    def upper(self, cheap: float) -> float:
        """Return the bound for a cheap rating; infinite if that is NaN."""
        if not self.n or math.isnan(cheap):
            return math.inf
        offset = cheap - self.mean_cheap
        leverage = offset**2 / self.weight if self.weight else 0.0
        error = self.deviation * math.sqrt(1 + 1 / self.n + leverage)
        return self.mean_full + self.slope * offset + self.z * error


def slot_variance(judgements: Sequence[Judgement]) -> float:
    """Return the mean variance of the rating distributions, in squared points.

    Without distributions, return the variance across the expected ratings; 0 if there are none.
    """
    readings = (judgement.reading(RATING) for judgement in judgements)
    variances = [_compute_variance(reading.distribution) for reading in readings if reading]
    known_variances = [v for v in variances if v is not None]
    if known_variances:
        return fmean(known_variances)
    expected_ratings = [v for j in judgements if (v := j.view("expected")) is not None]
    return pvariance(expected_ratings) if expected_ratings else 0.0


def _compute_variance(distribution: Sequence[tuple[str, float]] | None) -> float | None:
    mass = sum(p for _, p in distribution) if distribution else 0.0
    if not distribution or mass <= 0:
        return None
    mean = sum(float(label) * p for label, p in distribution) / mass
    return sum((float(label) - mean) ** 2 * p for label, p in distribution) / mass


def spread_of_means(
    sampled_values: Mapping[int, Sequence[float]], prior: float
) -> dict[int, float]:
    """Return the standard error of each mean.

    sampled_values: by candidate. The variance is pooled over candidates with several values,
    and `prior` counts in it as PRIOR observations.
    """
    squares = sum(pvariance(values) * len(values) for values in sampled_values.values())
    degrees_of_freedom = sum(len(values) - 1 for values in sampled_values.values())
    variance = (PRIOR * prior + squares) / (PRIOR + degrees_of_freedom)
    return {i: math.sqrt(variance / len(values)) for i, values in sampled_values.items()}
