"""Metrics of a judge's health against values computed by hand, and the conditions of alarms."""

from __future__ import annotations

import logging
import math

import pytest

from autoj_reward.config import FailureConfig, JudgeConfig, RewardConfig
from autoj_reward.judge.health import BOUNDS, JudgeHealth, length_correlation, saturation
from autoj_reward.trainer.reward import RewardModel
from autoj_reward.trainer.stats import health_figures
from autoj_reward.types import Candidate, Judgement, Outcome, Verdict
from tests.judgements import compared, rated

LOST = Judgement(Outcome.UNAVAILABLE, reason="gone")


def test_nothing_is_known_at_first() -> None:
    health = JudgeHealth()
    assert all(math.isnan(value) for value in health.figures().values())
    assert health.alarms() == ()


def test_figures_by_hand() -> None:
    health = JudgeHealth()
    for judgement, characters in ((rated(5), 10), (rated(5, forced=True), 20), (rated(7), 40)):
        health.observe(judgement, characters)
    health.observe(LOST, 5)
    health.observe(compared(Verdict.TIE), 9)
    figures = health.figures()
    assert figures["failure_rate"] == 1 / 5
    assert figures["forced_rate"] == 1 / 4
    assert figures["saturation"] == 2 / 3
    assert figures["length_correlation"] == pytest.approx(0.8709, abs=1e-4)
    assert math.isnan(figures["length_drift"])  # not before `least` judgements


def test_the_window_slides() -> None:
    health = JudgeHealth(window=4, least=2)
    for _ in range(4):
        health.observe(LOST, 1)
    assert "failure_rate" in health.alarms()
    for _ in range(4):
        health.observe(rated(5), 1)
    assert health.figures()["failure_rate"] == 0
    assert health.alarms() == ("saturation",)


@pytest.mark.parametrize(
    ("ratings", "characters", "expected"),
    [
        pytest.param([1, 2, 3], [math.e, math.e**2, math.e**3], 1, id="rising"),
        pytest.param([3, 2, 1], [10, 20, 40], -1, id="falling"),
        pytest.param([5, 5, 5], [1, 2, 3], math.nan, id="constant rating"),
        pytest.param([1, 2, 3], [7, 7, 7], math.nan, id="constant length"),
        pytest.param([], [], math.nan, id="nothing"),
    ],
)
def test_length_correlation(ratings: list[float], characters: list[int], expected: float) -> None:
    correlation = length_correlation(ratings, characters)
    assert correlation == pytest.approx(expected, abs=0.02, nan_ok=True)


def test_saturation_of_nothing_is_unknown() -> None:
    assert math.isnan(saturation([])) and saturation([3.0]) == 1


def test_a_policy_that_learns_to_write_long_drifts() -> None:
    health = JudgeHealth(window=100, least=100)
    for n in range(100):
        health.observe(rated(1 + n * 7 % 10), 100 + n * 13 % 50)
    assert abs(health.figures()["length_correlation"]) < 0.2 and health.alarms() == ()
    for n in range(100):
        health.observe(rated(1 + n % 10), 100 + 100 * (n % 10))
    assert health.figures()["length_correlation"] > 0.9
    assert health.alarms() == ("length_drift",)


@pytest.mark.parametrize("name", BOUNDS)
def test_every_bound_is_on_a_figure(name: str) -> None:
    assert name in JudgeHealth().figures()


@pytest.mark.parametrize("critique", [False, True])
def test_only_a_judge_that_was_to_write_can_be_forced_too_often(critique: bool) -> None:
    """Without critiques every rating is read at the slot, which is no fault."""
    ratings = {f"answer {n}": 1 + n % 10 for n in range(100)}
    script: dict[str, object] = {"direct": ratings}
    if critique:  # one that writes all but the rating
        script["ratings"] = dict.fromkeys(ratings, "Fair.")
    judge = JudgeConfig(kind="fake", critique=critique, script=script)
    with RewardModel(RewardConfig(judge=judge, view="rating")) as model:
        rewards = model.rewards_now([Candidate("q", response) for response in ratings])
    assert all(reward.raw is not None for reward in rewards)
    assert model.health.figures()["forced_rate"] == critique
    assert ("forced_rate" in model.health.alarms()) == critique


def test_a_trainers_log_shows_alarms(caplog: pytest.LogCaptureFixture) -> None:
    judge = JudgeConfig(kind="fake", script={"fail": {"lost": "unavailable"}, "ratings": {"a": 3}})
    config = RewardConfig(judge=judge, view="rating", failures=FailureConfig(budget=1))
    with caplog.at_level(logging.WARNING, "autoj_reward"), RewardModel(config) as model:
        for _ in range(2):
            model.rewards_now([Candidate("q", "x" * (1 + n % 9)) for n in range(45)])
        calm = health_figures(model.health)
        for _ in range(2):
            model.rewards_now([Candidate("q", "lost")] * 10)
        figures = health_figures(model.health)
    assert calm["judge/alarm_failure_rate"] == 0 and figures["judge/alarm_failure_rate"] == 1
    assert figures["judge/window_failure_rate"] == pytest.approx(20 / 110)
    assert figures["judge/alarm_saturation"] == 0
    [message] = [r.getMessage() for r in caplog.records]
    assert message == "judge health alarm: failure_rate is 0.1, over 0.05"
