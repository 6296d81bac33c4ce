"""The parts of `judge_quality`: what they ask a judge, and what they make of its answers.

Pure: from rows to judge inputs, and from judgements to the figures of the report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from autoj_reward.evaluate.statistics import correlation, difference, share, spearman
from autoj_reward.formats.render import render
from autoj_reward.formats.schema import JudgeFormat
from autoj_reward.types import JudgeInput, Judgement, Outcome
from experiments.compare.critique_health import examine, summarise
from experiments.compare.panel import CORRELATIONS, Material, Values, ratings
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


ANSWERED = (Outcome.OK, Outcome.TRUNCATED, Outcome.UNPARSABLE)


@dataclass(frozen=True, slots=True)
class Part:
    """judge: who is asked (a key of `JudgeQualityConfig.judges`). inputs: what it is asked.
    measure: the figures of its judgements, which come in the order of the inputs."""

    judge: str
    inputs: Callable[[Material], list[JudgeInput]]
    measure: Callable[[Material, JudgeFormat, Sequence[Judgement]], Measured]


def _single_inputs(material: Material) -> list[JudgeInput]:
    return [JudgeInput("single", row.query, (row.response,)) for row in material.rated]


def _measure_direct(
    material: Material, fmt: JudgeFormat, judgements: Sequence[Judgement]
) -> Measured:
    """Ratings of single responses."""
    predictions = {view: [j.view(view) for j in judgements] for view in ("rating", "expected")}
    counts = Counter(j.rating for j in judgements if j.rating)
    figures = {
        "rows": len(judgements),
        "abstained": sum(not j.ok for j in judgements),
        "outcomes": _outcomes(judgements),
        **{view: ratings(material, material.rated, v) for view, v in predictions.items()},
        "histogram": {f"{value:g}": counts[value] for value in sorted(counts)},
    }
    return Measured(figures, predictions)


def _measure_single(
    material: Material, fmt: JudgeFormat, judgements: Sequence[Judgement]
) -> Measured:
    """Ratings with their critiques, beside the health of the reference critiques."""
    direct, inputs = _measure_direct(material, fmt, judgements), _single_inputs(material)
    known = [
        examine(row.judgement, _prompt(item, fmt))
        for row, item in zip(material.rated, inputs, strict=True)
        if row.judgement
    ]
    texts = _texts(material, fmt, inputs, judgements)
    figures = direct.figures | texts | {"reference_health": summarise(known)}
    return Measured(figures, direct.predictions)


def _texts(
    material: Material,
    fmt: JudgeFormat,
    inputs: Sequence[JudgeInput],
    judgements: Sequence[Judgement],
) -> dict[str, Any]:
    """Of the inputs that were answered: the share whose own text parses, and the texts' health."""
    answered = [(i, j) for i, j in zip(inputs, judgements, strict=True) if j.outcome in ANSWERED]
    parsed = [j.ok and not j.forced for _, j in answered]
    health = [
        examine(j.critique, _prompt(i, fmt), hit_limit="output_truncated" in j.flags)
        for i, j in answered
    ]
    return {
        "parsed": material.estimate(share(parsed), [i.query for i, _ in answered]),
        "health": summarise(health),
    }


def _prompt(item: JudgeInput, fmt: JudgeFormat) -> str:
    return "\n".join(message.text for message in render(item, fmt))


def _outcomes(judgements: Sequence[Judgement]) -> dict[str, int]:
    return dict(Counter(j.outcome.value for j in judgements))


JUDGED = {
    "single": Part("greedy", _single_inputs, _measure_single),
    "single_direct": Part("direct", _single_inputs, _measure_direct),
    "base": Part("base", _single_inputs, _measure_single),
}
"""The parts that ask a judge; those of one judge stand together, since it is started once."""
