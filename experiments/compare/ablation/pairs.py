"""Eval-P for the ablation: agreement of rewards that look at each response alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from autoj_reward.evaluate.labelled import Compared
from autoj_reward.evaluate.metrics import agrees, difference, pointwise_verdicts, share
from autoj_reward.types import JudgeInput, Verdict
from experiments.compare.ablation.bias import log_length
from experiments.compare.ablation.rewards import POINTWISE, Answers, rated
from experiments.compare.judge_quality.figures import Material, Values, tie_threshold, verdicts


def some(material: Material, count: int, seed: int) -> Material:
    """At most `count` test pairs and as many for validation, drawn at random, in their order."""

    def drawn(rows: Sequence[Compared]) -> tuple[Compared, ...]:
        if len(rows) <= count:
            return tuple(rows)
        kept = np.random.default_rng(seed).choice(len(rows), size=count, replace=False)
        return tuple(rows[i] for i in sorted(kept))

    pairs, validation = drawn(material.pairs), drawn(material.validation)
    return replace(material, pairs=pairs, validation=validation)


def pair_inputs(material: Material, samples: int = 1) -> list[JudgeInput]:
    """Every response alone, `samples` times, test pairs before those of validation."""
    return [
        JudgeInput(row.query, (response,), sample)
        for row in (*material.pairs, *material.validation)
        for response in row.responses
        for sample in range(samples)
    ]


def pair_values(
    material: Material, reward: str, answers: Mapping[str, Answers], samples: int, seed: int
) -> list[float | None]:
    """The reward of every response, in the order of `pair_inputs`."""
    rows = [
        (row.query, response)
        for row in (*material.pairs, *material.validation)
        for response in row.responses
    ]
    if reward == "length":
        return [log_length(response) for _, response in rows]
    if reward == "random":
        return [float(value) for value in np.random.default_rng(seed).random(len(rows))]
    own = POINTWISE[reward]
    return [rated(own, *row, answers[own.judge], samples) for row in rows]


def measure_pairs(
    material: Material, values: Mapping[str, Values], reference: str | None
) -> dict[str, Any]:
    """Agreement of each reward with the human labels, and its difference to the reference.

    `raw`: ties up to a threshold of 0, 0.01 .. 2.0 in the reward's own units, the authors' rule for
    reward models. `scaled`: the same in standard deviations of the reward over the validation
    responses, since units differ. Validation pairs choose either. Order plays no role.
    """
    labels = [row.label for row in material.pairs]
    queries = [row.query for row in material.pairs]
    found: dict[str, Any] = {}
    hits = {}
    for name, own in values.items():
        known = [value for value in own[2 * len(material.pairs) :] if value is not None]
        sd = float(np.std(known)) if known else 0.0
        figures: dict[str, Any] = {"unit": sd}
        for how, unit in (("raw", 1.0), ("scaled", sd)):
            if unit <= 0:
                continue
            verdict, threshold, searched = _verdicts(material, own, unit)
            figures[how] = verdicts(material, material.pairs, verdict) | {
                "threshold": threshold,
                "searched_rows": searched,
                "abstained": verdict.count(Verdict.FAILED),
            }
            hits[name, how] = share(agrees(verdict, labels))
        found[name] = figures
    for (name, how), statistic in hits.items():
        if reference is not None and name != reference and (reference, how) in hits:
            less = difference(statistic, hits[reference, how])
            found[name][how]["less_reference"] = material.estimate(less, queries)
    return {
        "pairs": len(material.pairs),
        "validation": len(material.validation),
        "reference": reference,
        "rewards": found,
    }


def _verdicts(material: Material, values: Values, unit: float) -> tuple[list[Verdict], float, int]:
    gaps = [
        None if a is None or b is None else (a - b) / unit
        for a, b in zip(values[::2], values[1::2], strict=True)
    ]
    tests, validation = gaps[: len(material.pairs)], gaps[len(material.pairs) :]
    threshold, searched = tie_threshold(material.validation, validation)
    return pointwise_verdicts(tests, threshold), threshold, searched
