"""Eval-P for the ablation: agreement of rewards that look at each response alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from autoj_reward.data.labelled import Compared
from autoj_reward.evaluate.agreement import agrees, pointwise_verdicts, search_tie_threshold
from autoj_reward.evaluate.statistics import difference, share
from autoj_reward.types import JudgeInput, Verdict
from experiments.compare.ablation.bias import log_length
from experiments.compare.ablation.rewards import KNOWN, rated
from experiments.compare.panel import Answers, Material, Values


def alone_inputs(material: Material) -> list[JudgeInput]:
    """Every response of a pair alone, test pairs before those of validation."""
    return [
        JudgeInput("single", row.query, (response,))
        for row in (*material.pairs, *material.validation)
        for response in row.responses
    ]


def alone(material: Material, values: Values) -> tuple[list[Verdict], dict[str, Any]]:
    """Verdicts on the test pairs by values of each response alone, and their figures: agreement
    with the human labels, and where ties end. values: in the order of `alone_inputs`; None where
    one is missing."""
    gaps = [
        None if a is None or b is None else a - b
        for a, b in zip(values[::2], values[1::2], strict=True)
    ]
    tests, validation = gaps[: len(material.pairs)], gaps[len(material.pairs) :]
    threshold, searched = tie_threshold(material.validation, validation)
    found = pointwise_verdicts(tests, threshold)
    hits = agrees(found, [row.label for row in material.pairs])
    return found, {
        "abstained": found.count(Verdict.FAILED),
        "threshold": threshold,
        "searched_rows": searched,
        "agreement": material.estimate(share(hits), [row.query for row in material.pairs]),
        "verdicts": dict(Counter(verdict.value for verdict in found)),
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
    found = search_tie_threshold([gap for gap, _ in usable], labels) if usable else 0.0
    return found, len(usable)


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
        judged, found[name] = alone(material, own)
        hits[name] = share(agrees(judged, labels))
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
