"""Monotone maps from a judge's number to a label, and their error on queries left out of the fit.

All functions are pure. A map is a list of knots (number, label); it is linear between two knots,
and constant before the first and after the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from autoj_reward.evaluate.statistics import Array, Indices, Statistic

Knots = list[tuple[float, float]]
"""Points (number, label) of a map, strictly rising in both."""
LEAST_ISOTONIC = 200
"""Number of labels from which the map may have any monotone shape."""
FOLDS = 10
"""Limit on the parts of a cross-validation."""


def fit_knots(numbers: Array, labels: Array, scale: tuple[float, float], isotonic: bool) -> Knots:
    """Fit a map by least squares. One knot is a constant: the labels do not rise with the numbers.

    numbers, labels: shape [n], n at least 1. scale: lowest and highest label, which bound the map.
    isotonic: fit any rising shape, else a line.
    """
    return _fit_isotonic(numbers, labels) if isotonic else _fit_line(numbers, labels, scale)


def _fit_isotonic(numbers: Array, labels: Array) -> Knots:
    """Fit by pooling adjacent violators, with one knot at the mean number of each pool.

    So the map rises strictly between the first and the last knot, and numbers of one pool that
    differ keep their order. A step function would make them ties.
    """
    from scipy.optimize import isotonic_regression  # slow to import

    distinct_numbers, places, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    regression = isotonic_regression(np.bincount(places, labels) / counts, weights=counts)
    return [
        (
            float(np.average(distinct_numbers[start:end], weights=counts[start:end])),
            float(regression.x[start]),
        )
        for start, end in pairwise(regression.blocks.tolist())
    ]


def _fit_line(numbers: Array, labels: Array, scale: tuple[float, float]) -> Knots:
    """Fit slope and intercept, and cut the line at the ends of the scale."""
    x, y = float(numbers.mean()), float(labels.mean())
    spread = float(((numbers - x) ** 2).sum())
    rise = float(((numbers - x) * (labels - y)).sum())
    if spread == 0 or rise <= 0:
        return [(x, y)]
    return [(x + (end - y) * spread / rise, end) for end in scale]


def map_numbers(knots: Knots, numbers: Array) -> Array:
    """Return the label of each number. Shapes [n]."""
    knot_numbers, knot_labels = zip(*knots, strict=True)
    labels: Array = np.interp(numbers, knot_numbers, knot_labels)
    return labels


def predict_held_out(
    numbers: Array,
    labels: Array,
    queries: Sequence[str],
    scale: tuple[float, float],
    isotonic: bool,
) -> tuple[Array, Array]:
    """Return, for each row, the mapped number and the mean label, by fits without its query.

    numbers, labels: shape [n]. queries: query of each row, two or more different ones. The queries
    are dealt at random, with a fixed seed, to at most `FOLDS` parts.
    """
    names = list(dict.fromkeys(queries))
    order = np.random.default_rng(0).permutation(len(names))
    fold_of = {names[place]: n % FOLDS for n, place in enumerate(order.tolist())}
    folds = np.array([fold_of[query] for query in queries])
    mapped_numbers, mean_labels = np.empty_like(labels), np.empty_like(labels)
    for fold in np.unique(folds):
        is_held_out = folds == fold
        knots = fit_knots(numbers[~is_held_out], labels[~is_held_out], scale, isotonic)
        mapped_numbers[is_held_out] = map_numbers(knots, numbers[is_held_out])
        mean_labels[is_held_out] = labels[~is_held_out].mean()
    return mapped_numbers, mean_labels


def root_mean_square(gaps: Array) -> Statistic:
    """Return a statistic that computes the root of the mean squared gap, shape [n]."""

    def compute(rows: Indices) -> float:
        return float(np.sqrt((gaps[rows] ** 2).mean()))

    return compute
