from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest

from autoj_reward.evaluate.selection_metrics import (
    WithinQuery,
    gain,
    mean_orders,
    order,
    order_given_length,
)
from autoj_reward.evaluate.statistics import pearson


def draw_query(seed: int, size: int = 30, ties: int | None = None) -> WithinQuery:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(10, 900, size).astype(float)
    grades = rng.normal(size=size) + lengths / 400
    values = grades + rng.normal(size=size)
    if ties:
        values = np.round(values * ties) / ties
    return WithinQuery(values.tolist(), grades.tolist(), lengths.tolist())


def test_given_length_is_the_correlation_of_what_length_leaves() -> None:
    query = draw_query(1)
    ranks = [np.argsort(np.argsort(side)).astype(float) for side in query]
    residuals = []
    for side in ranks[:2]:
        slope, level = np.polyfit(ranks[2], side, 1)
        residuals.append(side - slope * ranks[2] - level)
    assert order_given_length(query) == pytest.approx(pearson(*residuals))


def test_length_itself_has_nothing_left() -> None:
    query = draw_query(2)
    rater = WithinQuery(query.lengths, query.grades, query.lengths)
    assert order(rater) is not None
    assert order_given_length(rater) is None


@pytest.mark.parametrize("ties", [None, 2], ids=["all apart", "ties"])
@pytest.mark.parametrize("n", [1, 2, 3, 7, 8])
def test_the_gain_is_the_mean_over_every_way_to_draw(n: int, ties: int | None) -> None:
    query = draw_query(3, size=8, ties=ties)
    best = []
    for group in combinations(range(8), n):
        top = max(query.values[i] for i in group)
        best.append(np.mean([query.grades[i] for i in group if query.values[i] == top]))
    assert gain(query.values, query.grades, n) == pytest.approx(
        float(np.mean(best) - np.mean(query.grades))
    )


@pytest.mark.parametrize(
    "queries", [[], [WithinQuery([1, 2], [3, 3], [4, 5])]], ids=["none", "equal grades"]
)
def test_nothing_to_order(queries: list[WithinQuery]) -> None:
    assert mean_orders(queries) == {}


def test_a_summary_is_the_mean_over_queries() -> None:
    queries = [draw_query(5), draw_query(6)]
    means = mean_orders(queries)
    assert means["order"] == pytest.approx(math.fsum(order(q) or 0.0 for q in queries) / 2)
