"""Agreement, biases, calibration and stability of verdicts by hand."""

from __future__ import annotations

import pytest

from autoj_reward.evaluate.agreement import (
    OrderVerdict,
    agrees,
    calibration,
    consistent,
    count_markup,
    pointwise_verdicts,
    position_bias,
    search_tie_threshold,
    stability,
    verdict_probabilities,
)
from autoj_reward.types import Judgement, Verdict
from tests.judgements import compared

FAKE = ["--set", "judge.kind=fake", "--set", "bootstrap=50"]
FIRST, SECOND, TIE = Verdict.FIRST, Verdict.SECOND, Verdict.TIE
INCONSISTENT, FAILED = Verdict.INCONSISTENT, Verdict.FAILED
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
    orders: list[tuple[OrderVerdict, OrderVerdict]] = [
        (FIRST, SECOND),
        (FIRST, FIRST),
        (FIRST, FIRST),
        (SECOND, SECOND),
        (TIE, SECOND),
        (TIE, TIE),
        (FIRST, None),
    ]
    bias = position_bias(orders)
    # FIRST five times, SECOND four times; the failed row does not count.
    assert bias.first_share == 5 / 9
    assert (bias.always_first, bias.always_second, bias.half_tie) == (2, 1, 1)
    assert position_bias([(TIE, TIE), (None, FIRST)]).first_share is None


def test_pointwise_verdicts() -> None:
    verdicts = pointwise_verdicts([1.0, -1.0, 0.5, -0.5, 0.0, None], 0.5)
    assert verdicts == [FIRST, SECOND, TIE, TIE, TIE, FAILED]
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


def make_judgement(verdict: Verdict, first: float, second: float, tie: float) -> Judgement:
    return compared(verdict, confidence=(("first", first), ("second", second), ("tie", tie)))


def test_calibration_by_hand() -> None:
    orders = [
        (make_judgement(FIRST, 0.8, 0.1, 0.1), FIRST),
        (make_judgement(FIRST, 0.4, 0.05, 0.05), SECOND),  # 0.8 once it is normalised
        (compared(TIE), TIE),  # written, not read
    ]
    metrics = calibration(
        [probabilities for order in orders if (probabilities := verdict_probabilities(*order))]
    )
    assert (metrics["n"], metrics["ece"]) == (2, 0.3)
    assert metrics["brier"] == pytest.approx((0.04 + 0.01 + 0.01 + 0.64 + 0.81 + 0.01) / 2)
    assert metrics["bins"] == [{"from": 0.8, "n": 2, "confidence": 0.8, "accuracy": 0.5}]


def test_stability_by_hand() -> None:
    first_run = [FIRST, SECOND, TIE, FIRST]
    second_run = [FIRST, SECOND, FIRST, FIRST]
    # observed 3/4; chance (2*3 + 1*1 + 1*0) / 16
    assert stability([first_run, second_run]) == {
        "repeats": 2,
        "same": 75.0,
        "kappa": round((3 / 4 - 7 / 16) / (1 - 7 / 16), 4),
    }


def test_markup_is_counted() -> None:
    assert count_markup("# Head\n- a\n- b\n1. c\n**bold** and `x`\n```py\n```") == 7
    assert count_markup("plain - text * with # signs") == 0
