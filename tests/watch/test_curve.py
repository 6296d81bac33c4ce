"""The best-of-N curve of a query, and its mean over queries."""

from __future__ import annotations

import itertools
import math
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoj_reward.watch.statistics import MeanCurve, best_of_n_curve


def average_over_subsets(values: list[float], size: int) -> float:
    best = [max(subset) for subset in itertools.combinations(values, size)]
    return math.fsum(best) / len(best)


@pytest.mark.parametrize(
    ("values", "curve"),
    [
        pytest.param([], (), id="no-values"),
        pytest.param([4.0], ((1, 4.0),), id="one-value"),
        pytest.param([3.0, 1.0], ((1, 2.0), (2, 3.0)), id="unsorted-pair"),
        # Pairs of 1, 2, 6: best 2, 6, 6, so 14/3.
        pytest.param([6.0, 1.0, 2.0], ((1, 3.0), (2, 14 / 3), (3, 6.0)), id="n-is-no-power"),
        pytest.param([5.0] * 5, ((1, 5.0), (2, 5.0), (4, 5.0), (5, 5.0)), id="all-equal"),
        # Of the six pairs of 1, 1, 9, 9 five hold a nine: (5*9 + 1)/6.
        pytest.param([9.0, 1.0, 9.0, 1.0], ((1, 5.0), (2, 46 / 6), (4, 9.0)), id="ties"),
    ],
)
def test_curve_by_hand(values: list[float], curve: tuple[tuple[int, float], ...]) -> None:
    points = best_of_n_curve(values)
    assert [n for n, _ in points] == [n for n, _ in curve]
    assert [v for _, v in points] == pytest.approx([v for _, v in curve], rel=1e-12)


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=9))
def test_curve_is_the_mean_over_all_subsets(values: list[float]) -> None:
    sizes = range(1, len(values) + 1)
    for size, expected in best_of_n_curve(values, sizes):
        assert expected == pytest.approx(average_over_subsets(values, size), rel=1e-9, abs=1e-9)


@given(st.lists(st.floats(1, 10), min_size=1, max_size=200))
def test_curve_rises_from_the_mean_to_the_maximum(values: list[float]) -> None:
    curve = [value for _, value in best_of_n_curve(values)]
    assert curve[0] == pytest.approx(math.fsum(values) / len(values))
    assert curve[-1] == max(values)
    assert all(b >= a - 1e-9 for a, b in itertools.pairwise(curve))


def test_curve_of_a_thousand_candidates_stays_exact() -> None:
    # C(2048, 1024) is far beyond a float; the best of half of 1..2048 is n(2049)/(n+1) on average.
    curve = dict(best_of_n_curve(range(1, 2049)))
    assert curve[1024] == pytest.approx(1024 * 2049 / 1025, rel=1e-12)


@pytest.mark.parametrize("size", [0, 4, -1])
def test_curve_rejects_a_size_it_cannot_have(size: int) -> None:
    with pytest.raises(ValueError, match=rf"size {size} is outside 1\.\.3"):
        best_of_n_curve([1.0, 2.0, 3.0], [size])


def test_curve_rejects_values_that_are_not_finite() -> None:
    with pytest.raises(ValueError, match="finite"):
        best_of_n_curve([1.0, math.inf])


ratings = st.lists(st.floats(-100, 100), min_size=1, max_size=9).map(tuple)


@given(st.lists(ratings, min_size=1, max_size=6))
def test_the_mean_curve_is_the_mean_of_the_curves(groups: list[tuple[float, ...]]) -> None:
    mean = MeanCurve()
    for values in groups:
        mean.add(values)
    sizes = [size for size, _ in mean.points()]
    assert sizes[0] == 1 and sizes[-1] == min(map(len, groups))
    curves = [dict(best_of_n_curve(values, sizes)) for values in groups]
    expected = [fmean(curve[size] for curve in curves) for size in sizes]
    assert [value for _, value in mean.points()] == pytest.approx(expected, abs=1e-9)
