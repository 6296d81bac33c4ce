from __future__ import annotations

from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoj_reward.watch.statistics import MeanCurve, best_of_n_curve

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
