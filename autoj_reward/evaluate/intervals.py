"""Figures of rows with their 95 % intervals, drawn by the bootstrap over whole groups of rows.

Where a figure is undefined (a share of nothing, a correlation with a constant) it is None.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
Statistic = Callable[[Indices], float | None]
"""A figure of the rows with these indices, which may repeat; None where it is undefined."""
Figures = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure, its 95 % bootstrap interval, and the number of rows behind it.

    value: None if the figure is undefined. low, high: None if there is nothing to resample or
    more than one resample in twenty is undefined.
    """

    value: float | None
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True, slots=True)
class Draws:
    """Resamples of each 95 % interval, and their seed."""

    rounds: int = 2000
    seed: int = 0

    def over(
        self, statistic: Statistic, rows: int, groups: Sequence[Hashable] | None = None
    ) -> Estimate:
        """A statistic over rows, resampled one by one or in whole groups."""
        return bootstrap(statistic, rows, groups=groups, rounds=self.rounds, seed=self.seed)

    def mean(self, values: Array) -> Estimate:
        """Mean over the queries where it is defined; n counts these."""
        known = values[~np.isnan(values)]
        return self.over(share(known), len(known))

    def percent(self, name: str, statistic: Statistic, groups: Sequence[Hashable]) -> Figures:
        """A share of rows as percentage with two decimals, and its interval under `NAME_95`.

        groups: one name a row; rows of one group are drawn together.
        """
        return self._figure(name, statistic, groups, percent)

    def number(self, name: str, statistic: Statistic, groups: Sequence[Hashable]) -> Figures:
        """A figure with six decimals, so that rounding it again does no harm, and its interval."""
        return self._figure(name, statistic, groups, lambda value: rounded(value, 6))

    def _figure(
        self,
        name: str,
        statistic: Statistic,
        groups: Sequence[Hashable],
        show: Callable[[float | None], float | None],
    ) -> Figures:
        found = self.over(statistic, len(groups), groups)
        return {name: show(found.value), f"{name}_95": [show(found.low), show(found.high)]}


def bootstrap(
    statistic: Statistic,
    n_rows: int,
    *,
    groups: Sequence[Hashable] | None = None,
    rounds: int = 2000,
    seed: int = 0,
) -> Estimate:
    """The statistic of all rows with its percentile 95 % interval.

    groups: one name a row; whole groups are drawn, since rows of one query are not independent.
    The same rows, groups, rounds and seed give the same resamples.
    """
    if n_rows == 0:
        return Estimate(None, None, None, 0)
    value = statistic(np.arange(n_rows))
    order, sizes = _members(range(n_rows) if groups is None else groups)
    if value is None or len(sizes) < 2:
        return Estimate(value, None, None, n_rows)
    rng, starts, found = np.random.default_rng(seed), sizes.cumsum() - sizes, []
    for _ in range(rounds):
        draw = rng.integers(len(sizes), size=len(sizes))
        ends = sizes[draw].cumsum()
        shifts = np.repeat(starts[draw] - ends + sizes[draw], sizes[draw])
        found.append(statistic(order[shifts + np.arange(len(shifts))]))
    known = [figure for figure in found if figure is not None]
    if len(known) < 0.95 * rounds:
        return Estimate(value, None, None, n_rows)
    low, high = np.percentile(known, [2.5, 97.5])
    return Estimate(value, float(low), float(high), n_rows)


def _members(groups: Sequence[Hashable]) -> tuple[Indices, Indices]:
    """Rows by group, groups in order of appearance, and how many rows each has."""
    found: dict[Hashable, list[int]] = {}
    for row, name in enumerate(groups):
        found.setdefault(name, []).append(row)
    sizes = np.array([len(rows) for rows in found.values()])
    return np.concatenate([np.array(rows) for rows in found.values()]), sizes


def share(hits: ArrayLike) -> Statistic:
    """The statistic that is the share of rows with a hit, or the mean of numbers; nan rows are left
    out."""
    array = np.asarray(hits, dtype=float)
    return lambda rows: mean(array[rows])


def mean(values: ArrayLike) -> float | None:
    """Mean of the values that are not nan."""
    array = np.asarray(values, dtype=float)
    known = array[~np.isnan(array)]
    return float(known.mean()) if known.size else None


def ratio(parts: ArrayLike, wholes: ArrayLike) -> Statistic:
    """The statistic that is the parts' sum over that of the wholes; None where the latter is 0 or
    less."""
    a, b = np.asarray(parts, dtype=float), np.asarray(wholes, dtype=float)

    def of(rows: Indices) -> float | None:
        whole = float(b[rows].sum())
        return float(a[rows].sum()) / whole if whole > 1e-9 else None

    return of


def difference(first: Statistic, second: Statistic) -> Statistic:
    """The first statistic less the second on the same rows, for a paired bootstrap."""

    def less(rows: Indices) -> float | None:
        a, b = first(rows), second(rows)
        return None if a is None or b is None else a - b

    return less


def estimate_text(figure: Mapping[str, Any] | None) -> str:
    """An `Estimate` as plain data, with three decimals and its interval."""
    if figure is None:
        return ""
    if figure["value"] is None:
        return "undefined"
    if figure["low"] is None:
        return f"{figure['value']:.3f}"
    return f"{figure['value']:.3f} [{figure['low']:.3f}, {figure['high']:.3f}]"


def rounded(value: float | None, digits: int) -> float | None:
    """A figure as result files hold it; None stays None."""
    return None if value is None else round(value, digits)


def percent(share: float | None) -> float | None:
    """A share as percentage with two decimals; None stays None."""
    return None if share is None else round(100 * share, 2)
