"""What `judge_quality` makes of rivals and of pairs of parts. Pure: plain data for the report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from autoj_reward.evaluate.intervals import difference
from autoj_reward.evaluate.metrics import correlation, spearman
from experiments.compare.material import CORRELATIONS, Material, Values, ratings
from experiments.compare.rivals import Prediction


@dataclass(frozen=True, slots=True)
class Measured:
    """figures: plain data for the report. predictions: view to a number for every rated row, None
    where the judge abstained."""

    figures: dict[str, Any]
    predictions: dict[str, list[float | None]] = field(default_factory=dict)


def rival_figures(material: Material, found: Mapping[str, Prediction], why: str) -> Measured:
    """The part `rivals`. found: what they predict of the rated rows; why: what is missing there."""
    rated = {}
    for name, made in found.items():
        rated[name] = ratings(material, material.rated, made.values)
        rated[name] |= {"alpha": made.alpha, "layer": made.layer}
        if name == "length":
            del rated[name]["mae"]  # characters are no rating
    figures = {"rated": rated, "missing": why}
    return Measured(figures, {name: list(made.values) for name, made in found.items()})


def comparisons(
    material: Material, predictions: Mapping[str, Mapping[str, Values]]
) -> dict[str, Any]:
    """Paired differences between parts, as far as they are measured.

    against: the judge's view with the highest Spearman correlation, less each rival. It was picked
    on the rows that measure it, which flatters it.
    """
    views = {
        f"{part} {view}": values
        for part in ("single", "single_direct")
        for view, values in predictions.get(part, {}).items()
    }
    known = {name: r for name, v in views.items() if (r := _spearman(material, v)) is not None}
    best = max(known, key=lambda name: known[name], default=None)
    others = {name: predictions.get("rivals", {}).get(name) for name in ("tfidf", "probe")}
    others["base expected"] = predictions.get("base", {}).get("expected")
    return {
        "best_view": best,
        "against": {
            name: paired(material, views[best], values)
            for name, values in others.items()
            if best and values
        },
    }


def paired(material: Material, first: Values, second: Values) -> dict[str, Any]:
    """Correlations of the first with the reference less those of the second, over the rated rows
    where both know a value, from paired resamples."""
    known = [i for i, pair in enumerate(zip(first, second, strict=True)) if None not in pair]
    wanted = [material.rated[i].rating for i in known]
    one, two = (np.array([values[i] for i in known], dtype=float) for values in (first, second))
    return {
        name: material.estimate(
            difference(correlation(measure, one, wanted), correlation(measure, two, wanted)),
            [material.rated[i].query for i in known],
        )
        for name, measure in CORRELATIONS.items()
    }


def _spearman(material: Material, values: Values) -> float | None:
    known = [
        (v, row.rating) for v, row in zip(values, material.rated, strict=True) if v is not None
    ]
    return spearman(*zip(*known, strict=True)) if known else None
