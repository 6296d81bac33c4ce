"""How good a scenario classifier is: accuracy, macro-F1, calibration, each with its interval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import f1_score

from autoj_reward.evaluate.intervals import Draws, Estimate, Indices, Statistic, difference, share
from autoj_reward.scenarios.linear import Classified

BINS = 10


def macro_f1(truth: Sequence[str], said: Sequence[str]) -> Statistic:
    """The statistic that is the mean F1 of the scenarios among the rows' true ones, each alike."""
    names = {name: k for k, name in enumerate(sorted({*truth, *said}))}
    a, b = (np.array([names[name] for name in side]) for side in (truth, said))

    def score(rows: Indices) -> float | None:
        present = np.unique(a[rows])
        if not present.size:
            return None
        return float(f1_score(a[rows], b[rows], labels=present, average="macro", zero_division=0))

    return score


def accuracy(truth: Sequence[str], said: Sequence[str]) -> Statistic:
    """The statistic that is the share of rows whose scenario is right."""
    return share([a == b for a, b in zip(truth, said, strict=True)])


def figures(truth: Sequence[str], said: Sequence[Classified], draws: Draws) -> dict[str, Any]:
    """Accuracy and macro-F1 with 95 % bootstrap intervals; calibration where confidence is told.

    Calibration is that of the most probable scenario, whatever a threshold makes of it.
    """
    named = [answer.scenario for answer in said]
    found: dict[str, Any] = {
        name: draws.over(measure(truth, named), len(truth))
        for name, measure in (("accuracy", accuracy), ("macro_f1", macro_f1))
    }
    confidence = np.array([answer.confidence for answer in said])
    if not np.isnan(confidence).any():
        right = np.array([a == b.best for a, b in zip(truth, said, strict=True)], dtype=float)
        found["calibration_error"] = calibration_error(right, confidence)
        found["mean_confidence"] = float(confidence.mean())
        found["most_probable_right"] = float(right.mean())
    return found


def lead(
    truth: Sequence[str], first: Sequence[str], second: Sequence[str], draws: Draws
) -> Estimate:
    """Macro-F1 of the first less that of the second, on paired resamples."""
    return draws.over(difference(macro_f1(truth, first), macro_f1(truth, second)), len(truth))


def calibration_error(right: NDArray[np.float64], confidence: NDArray[np.float64]) -> float:
    """Expected calibration error over ten bins of equal width, 0..1."""
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gaps = [
        abs(float(right[bins == b].mean() - confidence[bins == b].mean())) * (bins == b).mean()
        for b in np.unique(bins)
    ]
    return float(sum(gaps))
