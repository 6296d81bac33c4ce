"""Votes of several critiques, and the pessimistic view."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoj_reward.config import JudgeConfig, Vote
from autoj_reward.questions.rate import vote_of
from autoj_reward.types import Judgement, Outcome, Usage, soft_minimum
from tests.judgements import rated, reading


def make_failure(reason: str = "why", outcome: Outcome = Outcome.UNPARSABLE) -> Judgement:
    return Judgement(outcome, reason=reason)


def test_critiques_are_averaged() -> None:
    def rate_once(value: float, p: float, expected: float, seconds: float) -> Judgement:
        return rated(
            value,
            (("1", p), ("2", 0.5)),
            expected,
            0.5 - p,
            unknown=p / 2,
            critique=f"c{value}",
            usage=Usage(10, 2, 3, seconds, queued_s=2 * seconds),
            flags=(f"f{value}",),
        )

    judgement = vote_of(
        [rate_once(4, 0.1, 4.5, 1.0), rate_once(6, 0.3, 5.5, 3.0), rate_once(8, 0.2, 6.5, 2.0)]
    )
    assert (judgement.rating, judgement.expected) == (6.0, 5.5)
    assert dict(reading(judgement).distribution or ()) == pytest.approx({"1": 0.2, "2": 0.5})
    assert reading(judgement).outside == pytest.approx(0.3)
    assert reading(judgement).unknown == pytest.approx(0.1)
    assert judgement.critique == "c6"
    assert judgement.usage == Usage(30, 6, 9, 3.0, queued_s=6.0)  # of the one that took longest
    assert judgement.flags == ("f4", "f6", "f8")


@pytest.mark.parametrize(
    ("vote", "rating", "expected", "critique"),
    [
        ("mean", 4.0, 3.0, "c5"),
        ("median", 5.0, 4.0, "c5"),
        # Of one vote with 1 and two with more, the soft minimum is 1 + log 3, less what these add.
        ("pessimistic", 1 - math.log((1 + math.exp(-4) + math.exp(-5)) / 3), None, "c1"),
    ],
)
def test_votes_of_critiques(
    vote: Vote, rating: float, expected: float | None, critique: str
) -> None:
    """And how far they lie apart."""
    ratings = ((1, 0.5), (5, 4.0), (6, 4.5))
    judgement = vote_of([rated(r, expected=e, critique=f"c{r}") for r, e in ratings], vote)
    assert judgement.rating == pytest.approx(rating)
    assert expected is None or judgement.expected == pytest.approx(expected)
    assert judgement.critique == critique
    assert reading(judgement, "vote_spread").value == pytest.approx(math.sqrt(7))


def test_a_vote_of_one_critique_is_refused() -> None:
    with pytest.raises(ValueError, match=r"vote is median and critiques is 1.*set critiques to 3"):
        JudgeConfig(kind="fake", vote="median")


@given(
    weighted=st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(0.01, 1)), min_size=1, max_size=12),
    b=st.floats(0.05, 1e4),
)
def test_a_soft_minimum_lies_between_the_least_number_and_the_mean(
    weighted: list[tuple[float, float]], b: float
) -> None:
    total = sum(weight for _, weight in weighted)
    mean = sum(number * weight for number, weight in weighted) / total
    least = min(number for number, _ in weighted)
    minimum = soft_minimum(weighted, b)
    assert least - 1e-6 <= minimum <= mean + 1e-6
    assert soft_minimum(weighted, 1e9) == pytest.approx(mean, abs=1e-2)
    assert soft_minimum(weighted, 1e-6) == pytest.approx(least, abs=1e-3)


def test_a_pessimistic_view_pays_less_for_doubt() -> None:
    sure = rated(6, (("6", 1.0),), 6.0)
    unsure = rated(6, (("2", 0.25), ("6", 0.25), ("8", 0.5)), 6.0)
    assert sure.view("pessimistic") == pytest.approx(6.0)
    assert unsure.view("pessimistic") == pytest.approx(
        2 - math.log(0.25 + 0.25 * math.exp(-4) + 0.5 * math.exp(-6))
    )
    assert rated(6).view("pessimistic") is None
    assert Judgement.of_score(-3.5).view("pessimistic") == -3.5


def test_abstaining_critiques_are_left_out_and_flagged() -> None:
    judgement = vote_of([make_failure(), rated(4), rated(7)])
    assert (judgement.view("rating"), judgement.view("expected")) == (5.5, None)
    assert judgement.flags == ("partial_critiques",)


def test_half_points_of_single_critiques_stay_in_the_mean() -> None:
    whole = rated(5, (("5", 1.0),), 5.0)
    half = rated(5.5, (("5", 0.0), ("5.5", 1.0)), 5.5)
    judgement = vote_of([whole, half])
    assert judgement.rating and reading(judgement).distribution == (("5", 0.5), ("5.5", 0.5))


def test_a_plant_cannot_choose_the_critiques_that_count() -> None:
    planted = Judgement(Outcome.UNPARSABLE, reason="quoted", flags=("planted_verdict",))
    judgement = vote_of([rated(9), planted, rated(8)])
    assert (judgement.outcome, judgement.reason, judgement.rating) == (
        Outcome.UNPARSABLE,
        "quoted",
        None,
    )


def test_all_critiques_abstaining_abstains_as_the_first() -> None:
    judgement = vote_of([make_failure("one", Outcome.TRUNCATED), make_failure("two")])
    assert (judgement.outcome, judgement.reason, judgement.rating) == (
        Outcome.TRUNCATED,
        "one",
        None,
    )


def test_one_critique_is_itself() -> None:
    only = rated(3, expected=3.5, flags=("x",))
    assert vote_of([only]) is only


def test_one_forced_critique_marks_the_mean() -> None:
    forced = rated(5, forced=True)
    assert vote_of([rated(5), forced]).forced
