"""The figures of `judge_quality` with their intervals, and what the rivals and pairs of parts give.

Pure: from rows and numbers to plain data for the report. Intervals are bootstrapped over queries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from autoj_reward.evaluate.labelled import Compared, Rated
from autoj_reward.evaluate.metrics import (
    Statistic,
    agrees,
    bootstrap,
    correlation,
    difference,
    joint,
    pearson,
    search_tie_threshold,
    share,
    spearman,
)
from autoj_reward.types import Verdict
from experiments.compare.rivals import (
    RANDOM_AGREEMENT,
    RANDOM_CONSISTENCY,
    RANDOM_STRICT,
    Prediction,
    common_label,
    longer,
)

Values = Sequence[float | None]
CORRELATIONS = {"spearman": spearman, "pearson": pearson}


@dataclass(frozen=True, slots=True)
class Material:
    """The rows, and how intervals are drawn.

    rated: held-out rated responses, which measure. training: the others, for rivals to fit.
    pairs: the test pairs (Eval-P). validation: held-out pairs, for the tie threshold only.
    sampled: critiques a response in the part `single_k`. rounds, seed: of the bootstrap.
    """

    rated: tuple[Rated, ...]
    training: tuple[Rated, ...] = ()
    pairs: tuple[Compared, ...] = ()
    validation: tuple[Compared, ...] = ()
    sampled: int = 1
    rounds: int = 2000
    seed: int = 0

    def estimate(self, statistic: Statistic, groups: Sequence[Hashable]) -> dict[str, Any]:
        """The statistic with its interval, as plain data."""
        found = bootstrap(statistic, len(groups), groups=groups, rounds=self.rounds, seed=self.seed)
        return asdict(found)


@dataclass(frozen=True, slots=True)
class Measured:
    """figures: plain data for the report. predictions: view to a number for every rated row, None
    where the judge abstained."""

    figures: dict[str, Any]
    predictions: dict[str, list[float | None]] = field(default_factory=dict)


def ratings(material: Material, rows: Sequence[Rated], values: Values) -> dict[str, Any]:
    """Correlations with the reference rating and the mean absolute error, over known values."""
    known = [(v, row) for v, row in zip(values, rows, strict=True) if v is not None]
    queries = [row.query for _, row in known]
    given = np.array([v for v, _ in known])
    wanted = np.array([row.rating for _, row in known])
    figures = {
        name: material.estimate(correlation(measure, given, wanted), queries)
        for name, measure in CORRELATIONS.items()
    }
    return figures | {"mae": material.estimate(share(np.abs(given - wanted)), queries)}


def verdicts(
    material: Material, rows: Sequence[Compared], found: Sequence[Verdict]
) -> dict[str, Any]:
    """Agreement with the human labels, and how often each verdict was given."""
    hits = agrees(found, [row.label for row in rows])
    return {
        "agreement": material.estimate(share(hits), [row.query for row in rows]),
        "verdicts": dict(Counter(v.value for v in found)),
    }


def tie_threshold(rows: Sequence[Compared], gaps: Values) -> tuple[float, int]:
    """The threshold of ties that validation pairs choose, and how many of them were searched.

    gaps: the value of the first response less that of the second, None where one is missing.
    Files that know no ties say nothing of where ties begin and would draw the threshold to 0, so
    it is searched on the others if there are any; 0 without a pair.
    """
    tied = {row.source for row in rows if row.label is Verdict.TIE}
    usable = [
        (gap, row.label)
        for gap, row in zip(gaps, rows, strict=True)
        if gap is not None and row.source in (tied or {row.source})
    ]
    labels = [label for _, label in usable]
    return (search_tie_threshold([gap for gap, _ in usable], labels) if usable else 0.0), len(
        usable
    )


def rival_figures(material: Material, found: Mapping[str, Prediction], why: str) -> Measured:
    """The part `rivals`. found: what they predict of the rated rows; why: what is missing there.

    Without validation pairs there is no constant verdict: the test pairs may not choose it.
    """
    rated = {}
    for name, made in found.items():
        rated[name] = ratings(material, material.rated, made.values)
        rated[name] |= {"alpha": made.alpha, "layer": made.layer}
        if name == "length":
            del rated[name]["mae"]  # characters are no rating
    figures: dict[str, Any] = {"rated": rated, "missing": why, "pairs": {}}
    if material.pairs:
        figures["pairs"] = {
            "longer": verdicts(material, material.pairs, longer(material.pairs)),
            "random": {
                "agreement": RANDOM_AGREEMENT,
                "strict": RANDOM_STRICT,
                "consistency": RANDOM_CONSISTENCY,
            },
        }
    if material.pairs and material.validation:
        label = common_label(material.validation)
        always, strict = (
            verdicts(material, material.pairs, [verdict] * len(material.pairs))
            for verdict in (label, joint(label, label))
        )
        figures["pairs"]["constant"] = {"label": label.value, **always, "strict": strict}
    return Measured(figures, {name: list(made.values) for name, made in found.items()})


def comparisons(
    material: Material, predictions: Mapping[str, Mapping[str, Values]]
) -> dict[str, Any]:
    """Paired differences between parts, as far as they are measured.

    against: the judge's view with the highest Spearman correlation, less each rival. It was picked
    on the rows that measure it, which flatters it. sampled: k critiques less the greedy one.
    """
    views = {
        f"{part} {view}": values
        for part in ("single", "single_direct", "single_k")
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
        "sampled": {
            view: paired(material, predictions["single_k"][view], predictions["single"][view])
            for view in ("rating", "expected")
            if {"single", "single_k"} <= predictions.keys()
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
