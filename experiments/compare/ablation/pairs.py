"""Eval-P for the ablation: agreement of rewards that look at each response alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from autoj_reward.evaluate.intervals import difference, share
from autoj_reward.evaluate.metrics import agrees
from experiments.compare.ablation.bias import log_length
from experiments.compare.ablation.rewards import KNOWN, rated
from experiments.compare.material import Material, Values, alone, alone_inputs
from experiments.compare.panel import Answers


def pair_values(
    material: Material, reward: str, answers: Mapping[str, Answers], seed: int
) -> list[float | None]:
    """The reward of every response, in the order of `alone_inputs`."""
    rows = [(item.query, item.responses[0]) for item in alone_inputs(material)]
    if reward == "length":
        return [log_length(response) for _, response in rows]
    if reward == "random":
        return [float(value) for value in np.random.default_rng(seed).random(len(rows))]
    own = KNOWN[reward]
    return [rated(own, *row, answers[own.judge]) for row in rows]


def measure_pairs(
    material: Material, values: Mapping[str, Values], reference: str | None
) -> dict[str, Any]:
    """Agreement of each reward with the human labels, and its difference to the reference.

    Ties are up to a threshold of 0, 0.01 .. 2.0 in the reward's own units, the authors' rule for
    reward models; validation pairs choose it. Order plays no role.
    """
    labels = [row.label for row in material.pairs]
    queries = [row.query for row in material.pairs]
    found: dict[str, Any] = {}
    hits = {}
    for name, own in values.items():
        judged = alone(material, own)
        found[name] = judged.figures(material)
        hits[name] = share(agrees(judged.verdicts, labels))
    for name, statistic in hits.items():
        if reference in hits and name != reference:
            less = difference(statistic, hits[reference])
            found[name]["less_reference"] = material.estimate(less, queries)
    return {
        "pairs": len(material.pairs),
        "validation": len(material.validation),
        "reference": reference,
        "rewards": found,
    }
