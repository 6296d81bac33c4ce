"""Correlations, kappa and bootstrap intervals, against other libraries and by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import cohen_kappa_score

from autoj_reward.evaluate.statistics import (
    bootstrap,
    cohen_kappa,
    correlation,
    difference,
    pearson,
    share,
    spearman,
)


@pytest.mark.parametrize("seed", range(5))
def test_correlations_and_kappa_are_the_libraries(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.integers(1, 5, size=(2, 60))
    assert pearson(x, y) == pytest.approx(stats.pearsonr(x, y).statistic)
    assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic)
    assert cohen_kappa(x.tolist(), y.tolist()) == pytest.approx(cohen_kappa_score(x, y))


@pytest.mark.parametrize("measure", [pearson, spearman])
@pytest.mark.parametrize(
    ("x", "y"),
    [
        pytest.param([], [], id="no rows"),
        pytest.param([1], [2], id="one row"),
        pytest.param([0.1] * 7, range(7), id="constant"),
        pytest.param(range(7), [5] * 7, id="constant reference"),
    ],
)
def test_an_undefined_correlation_is_none(measure, x: Sequence[float], y: Sequence[float]) -> None:
    assert measure(x, y) is None


@pytest.mark.parametrize("measure", [pearson, spearman])
@pytest.mark.parametrize("x", [[1, 2], [1, 2, math.nan], [1, 2, math.inf]], ids=str)
def test_a_correlation_refuses_what_it_cannot_read(measure, x: list[float]) -> None:
    with pytest.raises(ValueError, match=r"finite|against"):
        measure(x, [1, 2, 3])


def test_a_correlation_stays_in_its_range() -> None:
    x = np.array([0.1, 0.2, 0.3]) * 3
    assert pearson(x, x) == 1


def test_the_interval_of_a_share() -> None:
    estimate = bootstrap(share([True] * 30 + [False] * 70), 100)
    assert (estimate.value, estimate.n) == (0.3, 100)
    # The binomial's standard error is sqrt(0.3 * 0.7 / 100) = 0.0458.
    assert estimate.low == pytest.approx(0.3 - 1.96 * 0.0458, abs=0.02)
    assert estimate.high == pytest.approx(0.3 + 1.96 * 0.0458, abs=0.02)


def test_rows_of_a_query_are_drawn_together() -> None:
    hits = [True] * 50 + [False] * 50
    alone = bootstrap(share(hits), 100)
    pairs = bootstrap(share(hits), 100, groups=[row // 10 for row in range(100)])
    assert alone.value == pairs.value == 0.5
    assert None not in (alone.low, alone.high, pairs.low, pairs.high)
    # Ten queries in place of a hundred rows: the interval is about sqrt(10) times as wide.
    ratio = (pairs.high - pairs.low) / (alone.high - alone.low)  # type: ignore[operator]
    assert ratio == pytest.approx(math.sqrt(10), rel=0.15)


def test_groups_need_not_stand_together() -> None:
    samples: list[tuple[int, ...]] = []

    def note(rows) -> float:
        samples.append(tuple(sorted(rows)))
        return 0.0

    bootstrap(note, 4, groups=["a", "b", "a", "b"], rounds=40)
    assert set(samples) == {(0, 1, 2, 3), (0, 0, 2, 2), (1, 1, 3, 3)}


def test_the_same_seed_gives_the_same_interval() -> None:
    x, y = np.arange(20.0), np.arange(20.0) ** 2 % 7
    first, again, other = (
        bootstrap(correlation(spearman, x, y), 20, rounds=200, seed=s) for s in (1, 1, 2)
    )
    assert first == again
    assert first.value == other.value
    assert (first.low, first.high) != (other.low, other.high)


@pytest.mark.parametrize(
    ("values", "groups", "value"),
    [
        pytest.param([], None, None, id="no rows"),
        pytest.param([1, 1, 0, 0], ["q"] * 4, 0.5, id="one query"),
        pytest.param([1], None, 1, id="one row"),
    ],
)
def test_without_anything_to_resample_there_is_no_interval(
    values: list[float], groups: list[str] | None, value: float | None
) -> None:
    estimate = bootstrap(share(values), len(values), groups=groups, rounds=50)
    assert (estimate.value, estimate.low, estimate.high, estimate.n) == (
        value,
        None,
        None,
        len(values),
    )


def test_an_estimate_that_is_often_undefined_has_no_interval() -> None:
    # One row of three differs: 8 of 27 resamples miss it, one more holds nothing else.
    estimate = bootstrap(correlation(pearson, [1, 1, 2], [1, 2, 3]), 3, rounds=400)
    assert estimate.value is not None
    assert (estimate.low, estimate.high) == (None, None)
    constant = bootstrap(correlation(pearson, [1, 1, 1], [1, 2, 3]), 3, rounds=400)
    assert (constant.value, constant.n) == (None, 3)


def test_a_paired_difference_is_tighter_than_two_intervals() -> None:
    rng = np.random.default_rng(0)
    reference = rng.normal(size=200)
    good = reference + rng.normal(size=200)
    worse = good + 0.3 * rng.normal(size=200)
    a, b = correlation(pearson, good, reference), correlation(pearson, worse, reference)
    apart = [bootstrap(estimator, 200, rounds=400) for estimator in (a, b)]
    paired = bootstrap(difference(a, b), 200, rounds=400)
    assert paired.value == pytest.approx((apart[0].value or 0) - (apart[1].value or 0))
    assert None not in (paired.low, paired.high)
    widths = [interval.high - interval.low for interval in (*apart, paired)]  # type: ignore[operator]
    assert widths[2] < 0.6 * min(widths[:2])


def test_a_difference_with_something_undefined_is_undefined() -> None:
    defined = correlation(pearson, [1, 2], [1, 2])
    undefined = correlation(pearson, [1, 1], [1, 2])
    assert difference(defined, undefined)(np.arange(2)) is None
    assert difference(undefined, defined)(np.arange(2)) is None


def test_kappa_may_be_undefined() -> None:
    assert cohen_kappa([], []) is cohen_kappa("aa", "aa") is None
    with pytest.raises(ValueError, match="1 ratings against 2"):
        cohen_kappa("a", "ab")
