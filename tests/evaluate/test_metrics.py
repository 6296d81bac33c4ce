from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import cohen_kappa_score

from autoj_reward.evaluate.intervals import bootstrap, difference, share
from autoj_reward.evaluate.metrics import (
    Shown,
    agrees,
    cohen_kappa,
    consistent,
    correlation,
    joint,
    kendall,
    pearson,
    pointwise_verdicts,
    position,
    search_tie_threshold,
    spearman,
)
from autoj_reward.types import Verdict

FIRST, SECOND, TIE = Verdict.FIRST, Verdict.SECOND, Verdict.TIE
INCONSISTENT, FAILED = Verdict.INCONSISTENT, Verdict.FAILED


# Correlations.


def test_correlations_worked_by_hand() -> None:
    # Deviations (-1, 0, 1) and (-2, 1, 1): covariance 3, norms sqrt(2) and sqrt(6).
    assert pearson([1, 2, 3], [1, 4, 4]) == pytest.approx(3 / math.sqrt(12))
    # Ranks (1, 2, 3) and (1, 2.5, 2.5): deviations (-1, 0, 1) and (-1, 0.5, 0.5).
    assert spearman([1, 2, 3], [1, 4, 4]) == pytest.approx(1.5 / math.sqrt(2 * 1.5))
    assert spearman([1, 2, 3], [1, 10, 11]) == pytest.approx(1)
    assert pearson([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)


@pytest.mark.parametrize("seed", range(5))
def test_correlations_are_scipys(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.integers(1, 11, 60), rng.normal(size=60).round(1)
    assert pearson(x, y) == pytest.approx(stats.pearsonr(x, y).statistic)
    assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic)


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


# Draws.


def test_the_interval_of_a_share() -> None:
    found = bootstrap(share([True] * 30 + [False] * 70), 100)
    assert (found.value, found.n) == (0.3, 100)
    # The binomial's standard error is sqrt(0.3 * 0.7 / 100) = 0.0458.
    assert found.low == pytest.approx(0.3 - 1.96 * 0.0458, abs=0.02)
    assert found.high == pytest.approx(0.3 + 1.96 * 0.0458, abs=0.02)


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
    seen: list[tuple[int, ...]] = []

    def note(rows) -> float:
        seen.append(tuple(sorted(rows)))
        return 0.0

    bootstrap(note, 4, groups=["a", "b", "a", "b"], rounds=40)
    assert set(seen) == {(0, 1, 2, 3), (0, 0, 2, 2), (1, 1, 3, 3)}


def test_the_same_seed_gives_the_same_interval() -> None:
    x, y = np.arange(20.0), np.arange(20.0) ** 2 % 7
    one, again, other = (
        bootstrap(correlation(spearman, x, y), 20, rounds=200, seed=s) for s in (1, 1, 2)
    )
    assert one == again
    assert one.value == other.value
    assert (one.low, one.high) != (other.low, other.high)


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
    found = bootstrap(share(values), len(values), groups=groups, rounds=50)
    assert (found.value, found.low, found.high, found.n) == (value, None, None, len(values))


def test_an_estimate_that_is_often_undefined_has_no_interval() -> None:
    # One row of three differs: 8 of 27 resamples miss it, one more holds nothing else.
    found = bootstrap(correlation(pearson, [1, 1, 2], [1, 2, 3]), 3, rounds=400)
    assert found.value is not None
    assert (found.low, found.high) == (None, None)
    constant = bootstrap(correlation(pearson, [1, 1, 1], [1, 2, 3]), 3, rounds=400)
    assert (constant.value, constant.n) == (None, 3)


def test_a_paired_difference_is_tighter_than_two_intervals() -> None:
    rng = np.random.default_rng(0)
    reference = rng.normal(size=200)
    good = reference + rng.normal(size=200)
    worse = good + 0.3 * rng.normal(size=200)
    a, b = correlation(pearson, good, reference), correlation(pearson, worse, reference)
    apart = [bootstrap(one, 200, rounds=400) for one in (a, b)]
    paired = bootstrap(difference(a, b), 200, rounds=400)
    assert paired.value == pytest.approx((apart[0].value or 0) - (apart[1].value or 0))
    assert None not in (paired.low, paired.high)
    widths = [one.high - one.low for one in (*apart, paired)]  # type: ignore[operator]
    assert widths[2] < 0.6 * min(widths[:2])


def test_a_difference_with_something_undefined_is_undefined() -> None:
    known = correlation(pearson, [1, 2], [1, 2])
    unknown = correlation(pearson, [1, 1], [1, 2])
    assert difference(known, unknown)(np.arange(2)) is None
    assert difference(unknown, known)(np.arange(2)) is None


# Agreement and consistency.


@pytest.mark.parametrize(
    ("forward", "backward", "verdict"),
    [
        pytest.param(FIRST, SECOND, FIRST, id="the first both times"),
        pytest.param(SECOND, FIRST, SECOND, id="the second both times"),
        pytest.param(TIE, TIE, TIE, id="tie both times"),
        pytest.param(FIRST, FIRST, INCONSISTENT, id="the same place"),
        pytest.param(SECOND, SECOND, INCONSISTENT, id="the other place"),
        pytest.param(FIRST, TIE, INCONSISTENT, id="half a tie"),
        pytest.param(None, TIE, FAILED, id="first failed"),
        pytest.param(FIRST, None, FAILED, id="second failed"),
    ],
)
def test_joint_verdicts(forward: Shown, backward: Shown, verdict: Verdict) -> None:
    assert joint(forward, backward) is verdict


VERDICTS = [FIRST, SECOND, TIE, FIRST, INCONSISTENT, INCONSISTENT, FAILED, TIE]
LABELS = [FIRST, SECOND, TIE, SECOND, FIRST, TIE, TIE, FIRST]


def test_agreement_and_consistency_by_the_strict_rule() -> None:
    # Five rows are consistent, three of them right; the failed row counts in both denominators.
    assert agrees(VERDICTS, LABELS).tolist() == [True] * 3 + [False] * 5
    assert consistent(VERDICTS).tolist() == [True] * 4 + [False] * 3 + [True]
    assert agrees([], []).tolist() == []


@pytest.mark.parametrize("label", [INCONSISTENT, FAILED])
def test_a_label_is_a_humans(label: Verdict) -> None:
    with pytest.raises(ValueError, match=f"no human label.*{label.value}"):
        agrees([label], [label])


def test_rows_and_labels_must_match() -> None:
    with pytest.raises(ValueError, match="zip"):
        agrees([FIRST, TIE], [FIRST])


def test_position_preference() -> None:
    orders: list[tuple[Shown, Shown]] = [
        (FIRST, SECOND),
        (FIRST, FIRST),
        (FIRST, FIRST),
        (SECOND, SECOND),
        (TIE, SECOND),
        (TIE, TIE),
        (FIRST, None),
    ]
    found = position(orders)
    # FIRST five times, SECOND four times; the failed row does not count.
    assert found.first_share == 5 / 9
    assert (found.always_first, found.always_second, found.half_tie) == (2, 1, 1)


def test_a_consistent_judge_prefers_no_place() -> None:
    assert position([(FIRST, SECOND)] * 5).first_share == 0.5
    assert position([(TIE, TIE), (None, FIRST)]).first_share is None


# Ties by threshold.


def test_pointwise_verdicts() -> None:
    found = pointwise_verdicts([1.0, -1.0, 0.5, -0.5, 0.0, None], 0.5)
    assert found == [FIRST, SECOND, TIE, TIE, TIE, FAILED]
    assert pointwise_verdicts([0.01, 0.0], 0) == [FIRST, TIE]


def test_the_threshold_is_the_lowest_of_the_best() -> None:
    gaps = [1.5, -1.2, 0.305, -0.2, 0.1, None]
    labels = [FIRST, SECOND, TIE, TIE, TIE, TIE]
    # From 0.31 on all three ties are found; from 1.2 on a decided row is lost.
    assert search_tie_threshold(gaps, labels) == 0.31


@pytest.mark.parametrize(
    ("gaps", "labels", "threshold"),
    [
        pytest.param([0.5, -0.5], [FIRST, SECOND], 0.0, id="no ties"),
        pytest.param([2.0, -1.99], [TIE, TIE], 2.0, id="the highest"),
        pytest.param([3.0, -3.0], [TIE, TIE], 0.0, id="out of reach"),
    ],
)
def test_the_ends_of_the_search(gaps: list[float], labels: list[Verdict], threshold: float) -> None:
    assert search_tie_threshold(gaps, labels) == threshold


def test_a_threshold_needs_rows() -> None:
    with pytest.raises(ValueError, match="no rows"):
        search_tie_threshold([], [])


@pytest.mark.parametrize("seed", range(5))
def test_kendall_and_kappa_are_the_libraries(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, 4, size=(2, 40))
    assert kendall(x, y) == pytest.approx(stats.kendalltau(x, y).statistic)
    assert cohen_kappa(x.tolist(), y.tolist()) == pytest.approx(cohen_kappa_score(x, y))


def test_kendall_and_kappa_may_be_undefined() -> None:
    assert kendall([1, 1], [2, 3]) is cohen_kappa([], []) is cohen_kappa("aa", "aa") is None
    with pytest.raises(ValueError, match="1 ratings against 2"):
        cohen_kappa("a", "ab")
