from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from itertools import pairwise

import pytest

from autoj_reward.watch.statistics import OTHERS, Histogram, count_name


def test_values_are_counted_one_by_one() -> None:
    histogram = Histogram(64)
    for value in (3, 7.5, 3, math.nan, 10):
        histogram.add(value)
    assert histogram.counts() == ((3, 2), (7.5, 1), (10, 1))
    histogram.add(3, -1)
    histogram.add(10, -1)
    assert histogram.counts() == ((3, 1), (7.5, 1))


@pytest.mark.parametrize("scale", [1e-2, 1, 1e6], ids="{:g}".format)
def test_many_values_are_put_together(scale: float) -> None:
    draw, histogram = random.Random(1), Histogram(64)
    values = [draw.gauss(0, scale) for _ in range(5000)]
    for value in values:
        histogram.add(value)
    counts = histogram.counts()
    assert sum(n for _, n in counts) == 5000
    assert 8 < len(counts) <= 64
    assert all(b - a > histogram.width * 0.99 for (a, _), (b, _) in pairwise(counts))
    mean = sum(value * n for value, n in counts) / 5000
    assert abs(mean - statistics.fmean(values)) < histogram.width / 2
    for value in values:
        histogram.add(value, -1)
    assert histogram.counts() == ()


def test_one_far_away_is_counted_too() -> None:
    draw, histogram = random.Random(1), Histogram(1000)
    values = [draw.gauss(0, 1) for _ in range(20_000)] + [1e6]
    for value in values:
        histogram.add(value)
    counts = histogram.counts()
    assert len(counts) <= 1000 and sum(k for _, k in counts) == len(values)
    assert counts[-1][0] == pytest.approx(1e6, rel=1e-3) and counts[-1][1] == 1


def test_names_without_end_are_counted_together() -> None:
    names: Counter[str] = Counter()
    for n in range(20):
        count_name(names, f"name {n}", 10)
        count_name(names, "name 0", 10)
    assert len(names) == 10 + 1
    assert (names["name 0"], names[OTHERS]) == (21, 10)
    count_name(names, "name 15", 10, -1)
    assert names[OTHERS] == 9
