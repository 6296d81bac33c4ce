"""How raters order the outputs of many systems to one instruction: figures and their intervals.

Pure: from outputs, grades and numbers to plain data for the report. Intervals are bootstrapped over
instructions. Everything stands beside length, which GPT-4 itself goes by.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from autoj_reward.data.graded import Graded
from autoj_reward.evaluate.selection_metrics import WithinQuery, gain, order, order_given_length
from autoj_reward.evaluate.statistics import Statistic, difference, ratio, share
from experiments.compare.judge_quality.outputs import Outputs
from experiments.compare.panel import Values
from experiments.compare.rivals import Prediction

SIZES = (2, 4, 8, 10, 16, 24, 32)
"""The N of best-of-N, as far as there are so many outputs."""
TEN = 10


def by_query(
    rows: Sequence[Graded], values: Values, systems: Collection[str] | None = None
) -> list[WithinQuery]:
    """The values of all outputs, row after row, taken apart. Where a rater abstained, its value is
    below all its others of that row. systems: only these; null is all."""
    ends = [0, *accumulate(len(row.outputs) for row in rows)]
    found = []
    for row, (start, end) in zip(rows, pairwise(ends), strict=True):
        known = [v for v in values[start:end] if v is not None]
        last = min(known, default=0.0) - 1
        kept = [
            (last if value is None else value, output.score, float(len(output.text)))
            for value, output in zip(values[start:end], row.outputs, strict=True)
            if systems is None or output.system in systems
        ]
        numbers, grades, lengths = zip(*kept, strict=True) if kept else ((), (), ())
        found.append(WithinQuery(numbers, grades, lengths))
    return found


def ordered(
    outputs: Outputs, views: Mapping[str, Values], rivals: Mapping[str, Prediction], why: str
) -> dict[str, Any]:
    """Figures of the judge and of what has a rating for every output, over all systems and over
    those alone that no judge was trained on; and the judge's less each rival's.

    views: of the models asked: `judge`, maybe `critique`, its expected rating after one, and maybe
    `scalar`. why: what rival is missing. A constant orders nothing.
    """
    values = dict(views) | {name: own.values for name, own in rivals.items() if name != "constant"}
    return {
        "rated": {
            name: {
                "all": _figures(outputs, by_query(outputs.graded, own)),
                "unseen": _figures(outputs, by_query(outputs.graded, own, outputs.unseen)),
                "abstained": sum(value is None for value in own),
                "layer": rivals[name].layer if name in rivals else None,
            }
            for name, own in values.items()
        },
        "less": {
            name: _differences(outputs, views["judge"], own)
            for name, own in values.items()
            if name != "judge"
        },
        "missing": why,
    }


def _differences(outputs: Outputs, first: Values, second: Values) -> dict[str, Any]:
    """Figures of the first rater less those of the second, from paired resamples."""
    one, two = (_statistics(by_query(outputs.graded, values)) for values in (first, second))
    names = [name for name in one if name in ("order", "order_given_length", str(TEN))]
    return {name: _estimate(outputs, difference(one[name], two[name])) for name in names}


def _figures(outputs: Outputs, queries: Sequence[WithinQuery]) -> dict[str, Any]:
    return {name: _estimate(outputs, s) for name, s in _statistics(queries).items()}


def _statistics(queries: Sequence[WithinQuery]) -> dict[str, Statistic]:
    """By name: means over instructions of the two orders, and for each N the share recovered."""
    found = {
        how.__name__: share([np.nan if (r := how(query)) is None else r for query in queries])
        for how in (order, order_given_length)
    }
    fewest = min((len(query.grades) for query in queries), default=0)
    for n in (n for n in SIZES if n <= fewest):
        got = [gain(query.values, query.grades, n) for query in queries]
        whole = [gain(query.grades, query.grades, n) for query in queries]
        found[str(n)] = ratio(got, whole)
    return found


def _estimate(outputs: Outputs, statistic: Statistic) -> dict[str, Any]:
    return asdict(outputs.draws.over(statistic, len(outputs.graded)))
