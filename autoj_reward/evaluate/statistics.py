"""Statistics of rows: shares, means, correlations and kappa, with 95 % bootstrap intervals.

Pure functions over sequences with one value for each row. An undefined statistic (a share of no
rows, a correlation with a constant) is None.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
Statistic = Callable[[Indices], float | None]
"""Statistic of the rows with these indices, which may repeat; None where it is undefined."""
Correlation = Callable[[ArrayLike, ArrayLike], float | None]
Scores = tuple[float | None, ...]
"""Numbers of the responses to one query; None where one is missing."""
ResultFields = dict[str, Any]
"""Fields of a result file, by name."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A statistic with its 95 % bootstrap interval."""

    value: float | None
    """None if the statistic is undefined."""
    low: float | None
    """Lower end; None with fewer than two groups to resample, or if more than one resample in
    twenty is undefined."""
    high: float | None
    """Upper end; None as for `low`."""
    n: int
    """Number of rows."""


@dataclass(frozen=True, slots=True)
class Draws:
    """Bootstrap settings, and the estimates made with them."""

    rounds: int = 2000
    """Resamples of each 95 % interval."""
    seed: int = 0

    def over(
        self, statistic: Statistic, rows: int, groups: Sequence[Hashable] | None = None
    ) -> Estimate:
        """Estimate a statistic over rows, resampled one by one or in whole groups."""
        return bootstrap(statistic, rows, groups=groups, rounds=self.rounds, seed=self.seed)

    def mean(self, values: Array) -> Estimate:
        """Estimate the mean of the values that are not nan; n counts these."""
        known_values = values[~np.isnan(values)]
        return self.over(share(known_values), len(known_values))

    def percent(self, name: str, statistic: Statistic, groups: Sequence[Hashable]) -> ResultFields:
        """Return a share of rows in percent with two decimals, and its interval under `NAME_95`.

        groups: the group of each row. Rows of one group are resampled together.
        """
        return self._estimate_field(name, statistic, groups, percentage)

    def number(self, name: str, statistic: Statistic, groups: Sequence[Hashable]) -> ResultFields:
        """Return a number with six decimals, and its interval under `NAME_95`.

        Six decimals leave room for rounding again. groups: as for `percent`.
        """
        return self._estimate_field(name, statistic, groups, lambda value: rounded(value, 6))

    def _estimate_field(
        self,
        name: str,
        statistic: Statistic,
        groups: Sequence[Hashable],
        show: Callable[[float | None], float | None],
    ) -> ResultFields:
        estimate = self.over(statistic, len(groups), groups)
        return {name: show(estimate.value), f"{name}_95": [show(estimate.low), show(estimate.high)]}


def bootstrap(
    statistic: Statistic,
    n_rows: int,
    *,
    groups: Sequence[Hashable] | None = None,
    rounds: int = 2000,
    seed: int = 0,
) -> Estimate:
    """Estimate the statistic of all rows with its percentile 95 % interval.

    groups: the group of each row. Whole groups are resampled, since rows of one query are not
    independent. None: each row is its own group.
    The same rows, groups, rounds and seed give the same resamples.
    """
    if n_rows == 0:
        return Estimate(None, None, None, 0)
    value = statistic(np.arange(n_rows))
    order, sizes = _group_rows(range(n_rows) if groups is None else groups)
    if value is None or len(sizes) < 2:
        return Estimate(value, None, None, n_rows)
    rng, starts, figures = np.random.default_rng(seed), sizes.cumsum() - sizes, []
    for _ in range(rounds):
        draw = rng.integers(len(sizes), size=len(sizes))
        ends = sizes[draw].cumsum()
        shifts = np.repeat(starts[draw] - ends + sizes[draw], sizes[draw])
        figures.append(statistic(order[shifts + np.arange(len(shifts))]))
    defined = [figure for figure in figures if figure is not None]
    if len(defined) < 0.95 * rounds:
        return Estimate(value, None, None, n_rows)
    low, high = np.percentile(defined, [2.5, 97.5])
    return Estimate(value, float(low), float(high), n_rows)


def _group_rows(groups: Sequence[Hashable]) -> tuple[Indices, Indices]:
    """Return row indices by group, groups in order of appearance, and the size of each group."""
    rows_by_group: dict[Hashable, list[int]] = {}
    for row, name in enumerate(groups):
        rows_by_group.setdefault(name, []).append(row)
    sizes = np.array([len(rows) for rows in rows_by_group.values()])
    return np.concatenate([np.array(rows) for rows in rows_by_group.values()]), sizes


def share(hits: ArrayLike) -> Statistic:
    """Return a statistic that computes the share of hits, or the mean of numbers, without nan."""
    array = np.asarray(hits, dtype=float)
    return lambda rows: mean(array[rows])


def mean(values: ArrayLike) -> float | None:
    """Return the mean of the values that are not nan; None without any."""
    array = np.asarray(values, dtype=float)
    known_values = array[~np.isnan(array)]
    return float(known_values.mean()) if known_values.size else None


def ratio(parts: ArrayLike, wholes: ArrayLike) -> Statistic:
    """Return a statistic that divides the sum of parts by the sum of wholes.

    It is None where the sum of wholes is 0 or less.
    """
    a, b = np.asarray(parts, dtype=float), np.asarray(wholes, dtype=float)

    def divide_sums(rows: Indices) -> float | None:
        whole = float(b[rows].sum())
        return float(a[rows].sum()) / whole if whole > 1e-9 else None

    return divide_sums


def difference(first: Statistic, second: Statistic) -> Statistic:
    """Return the first statistic less the second on the same rows, for a paired bootstrap."""

    def subtract(rows: Indices) -> float | None:
        a, b = first(rows), second(rows)
        return None if a is None or b is None else a - b

    return subtract


def pearson(x: ArrayLike, y: ArrayLike) -> float | None:
    """Return Pearson's correlation, -1..1; None with fewer than two rows or a constant side.

    Raises ValueError for sides of different length or with a number that is not finite.
    """
    a, b = _require_finite(x), _require_finite(y)
    if a.shape != b.shape:
        raise ValueError(f"{a.size} numbers against {b.size}")
    if a.size < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    a, b = a - a.mean(), b - b.mean()
    r = float(a @ b / math.sqrt(float(a @ a) * float(b @ b)))
    return min(1.0, max(-1.0, r))


def spearman(x: ArrayLike, y: ArrayLike) -> float | None:
    """Return Spearman's rank correlation, ties at their mean rank; None and errors as for
    `pearson`."""
    from scipy.stats import rankdata  # half a second, which most evaluations need not wait

    return pearson(rankdata(_require_finite(x)), rankdata(_require_finite(y)))


def cohen_kappa(first: Sequence[Hashable], second: Sequence[Hashable]) -> float | None:
    """Return the agreement of two raters beyond chance, at most 1 (Cohen, 1960).

    Returns None without rows, or if the expected chance agreement is 1. Raises ValueError for
    different lengths.
    """
    n = len(first)
    if n != len(second):
        raise ValueError(f"{n} ratings against {len(second)}")
    if n == 0:
        return None
    observed = sum(a == b for a, b in zip(first, second, strict=True)) / n
    a, b = Counter(first), Counter(second)
    chance = sum(count * b[name] for name, count in a.items()) / n**2
    return None if chance == 1 else (observed - chance) / (1 - chance)


def correlation(measure: Correlation, x: ArrayLike, y: ArrayLike) -> Statistic:
    """Return a statistic that computes a correlation of the rows' x and y."""
    a, b = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    return lambda rows: measure(a[rows], b[rows])


def estimate_text(figure: Mapping[str, Any] | None) -> str:
    """Format an `Estimate`, given as a mapping, with three decimals and its interval."""
    if figure is None:
        return ""
    if figure["value"] is None:
        return "undefined"
    if figure["low"] is None:
        return f"{figure['value']:.3f}"
    return f"{figure['value']:.3f} [{figure['low']:.3f}, {figure['high']:.3f}]"


def show_with_interval(fields: Mapping[str, Any], name: str, digits: int = 2) -> str:
    """Format a metric of a result file with its interval `NAME_95`; a dash if it is undefined.

    A metric for which no interval is computed, such as a mean over subsets, stands alone.
    """
    value = fields[name]
    if value is None:
        return "-"
    if f"{name}_95" not in fields:
        return f"{value:.{digits}f}"
    low, high = fields[f"{name}_95"]
    if low is None or high is None:
        return f"{value:.{digits}f} (no interval)"
    return f"{value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def rounded(value: float | None, digits: int) -> float | None:
    """Round a number as result files hold it; None stays None."""
    return None if value is None else round(value, digits)


def percentage(share: float | None) -> float | None:
    """Return a share in percent with two decimals; None stays None."""
    return None if share is None else round(100 * share, 2)


def _require_finite(values: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if not np.isfinite(array).all():
        raise ValueError("a number is not finite")
    return array
