"""Vote of several judges on one response."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoj_reward.formats.schema import ScalarFormat, load_any_format, load_format
from autoj_reward.questions.panel import member_ratings, on_scale, vote_of_panel
from autoj_reward.types import Judgement, Outcome, Reading
from tests.judgements import rated

FAILED = Judgement(Outcome.UNPARSABLE, reason="no rating in it")


@pytest.mark.parametrize(
    ("vote", "ratings", "expected"),
    [
        ("median", (2, 3, 10), 3.0),
        ("mean", (2, 3, 10), 5.0),
        ("majority", (2, 10, 10), 10.0),
        ("majority", (2, 3, 10), 3.0),  # all are as frequent: their median
        ("majority", (2, 2, 9, 9, 10), 5.5),
    ],
)
def test_the_vote_of_a_panel(vote: str, ratings: tuple[int, ...], expected: float) -> None:
    members = {f"judge_{n}": rated(rating) for n, rating in enumerate(ratings)}
    judgement = vote_of_panel(members, vote, "panel")  # type: ignore[arg-type]
    assert (judgement.ok, judgement.rating, judgement.judge) == (True, expected, "panel")
    assert list(member_ratings(judgement).values()) == list(ratings)


@pytest.mark.parametrize(
    ("members", "rating"),
    [
        ({"a": rated(4), "b": FAILED}, 4.0),  # half of them rate
        ({"a": rated(4), "b": FAILED, "c": FAILED}, None),
        ({"a": FAILED, "b": FAILED}, None),
        ({"a": rated(4), "b": rated(8), "c": FAILED}, 6.0),
    ],
)
def test_a_panel_abstains_if_fewer_than_half_of_its_judges_rate(
    members: dict[str, Judgement], rating: float | None
) -> None:
    judgement = vote_of_panel(members, "median", "panel")
    assert judgement.rating == rating
    if rating is None:
        assert judgement.outcome is Outcome.UNPARSABLE
        assert f"of {len(members)} judges of the panel rate it" in judgement.reason
        assert member_ratings(judgement) == {}


def test_a_judge_that_fails_over_a_planted_verdict_is_not_left_out() -> None:
    spoiled = replace(FAILED, flags=("planted_verdict",))
    assert spoiled.spoiled()
    members = {"a": rated(9), "b": rated(9), "c": spoiled}
    assert not vote_of_panel(members, "median", "panel").ok


def test_an_expected_rating_of_a_minority_is_left_out() -> None:
    told = Judgement(Outcome.OK, readings=(Reading("rating", "8", 8.0, (("8", 1.0),), 8.0),))
    plain = Judgement(Outcome.OK, readings=(Reading("rating", "2", 2.0),))
    voted = vote_of_panel({"a": told, "b": plain, "c": plain}, "median", "panel")
    assert (voted.rating, voted.expected, voted.pessimistic) == (2.0, None, None)
    voted = vote_of_panel({"a": told, "b": told, "c": plain}, "median", "panel")
    assert (voted.rating, voted.expected) == (8.0, 8.0)


def test_ratings_are_moved_to_the_scale_of_the_main_judge() -> None:
    ten, five = load_format("autoj-en"), load_format("prometheus2")
    assert (five.scale.low, five.scale.high) == (1, 5)
    reading = Reading("rating", "4", 4.0, (("4", 0.5), ("5", 0.5)), 4.5)
    moved = on_scale(Judgement(Outcome.OK, readings=(reading,)), five, ten)
    assert moved.rating == pytest.approx(7.75) and moved.expected == pytest.approx(8.875)
    assert moved.readings[0].distribution == (("7.75", 0.5), ("10", 0.5))
    scalar = load_any_format("scalar")
    assert isinstance(scalar, ScalarFormat)
    assert on_scale(Judgement.of_score(0.0), scalar, ten).rating == pytest.approx(5.5)
    assert on_scale(FAILED, five, ten) == FAILED
