"""SkyRL's own gym makes our environment from its registry, with a scripted judge."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest

from autoj_reward.errors import BudgetExceeded, ConfigError
from tests.trainer.conftest import FRAMEWORKS, RATING_BY_SHOWS, TURNS

pytestmark = pytest.mark.filterwarnings("ignore")  # of their code
PROMPT = [{"role": "user", "content": "Why?"}]


@pytest.fixture
def gym(require_packages: Any) -> Iterator[Any]:
    """Yield skyrl_gym with our environment registered as `autoj`."""
    require_packages(FRAMEWORKS, "skyrl_gym")
    skyrl_gym = importlib.import_module("skyrl_gym")
    skyrl_gym.register(id="autoj", entry_point="autoj_reward.trainer.skyrl:JudgeEnv")
    yield skyrl_gym
    skyrl_gym.envs.deregister("autoj")


def run_episode(gym: Any, response: str, prompt: Any = PROMPT) -> tuple[Any, dict[str, Any]]:
    """Run one step as SkyRL's generator does. Return the environment and the step's result."""
    env = gym.make("autoj", env_config={}, extras={"max_turns": 1})
    assert env.init(prompt) == (prompt, {})
    return env, env.step(response)


def test_rows_good_and_failed(gym: Any, make_model: Any) -> None:
    model = make_model(hangs_s=5.0, budget=1.0, fallback=4.5)
    episodes = [
        run_episode(gym, response) for response in ("good<|im_end|>", "poor", "lost", "slow")
    ]
    assert [step["reward"] for _, step in episodes] == [9.0, 2.0, 4.5, 4.5]
    assert all(step["done"] and step["observations"] == [] for _, step in episodes)
    assert [candidate.prompt.text for candidate, _ in model.recent()] == ["Why?"] * 4
    metrics = importlib.import_module("skyrl_gym.metrics")
    aggregate = metrics.aggregate_for_environment(
        "autoj", [env.get_metrics() for env, _ in episodes]
    )
    assert (aggregate["judge_ok"], aggregate["judge_truncated"]) == (0.5, 0.25)


@pytest.mark.parametrize("shows", RATING_BY_SHOWS)
def test_an_environment_of_several_steps_is_rewarded_at_its_end(
    gym: Any, make_model: Any, shows: str
) -> None:
    ours = importlib.import_module("autoj_reward.trainer.skyrl")

    class ToolEnv(ours.JudgeEnv):  # type: ignore[name-defined]
        def step(self, action: str) -> Any:
            self.turns += 1
            if self.turns == 1:
                return {"observations": TURNS[1:2], "reward": 0.0, "done": False, "metadata": {}}
            return self.finish(TURNS)

    make_model(shows=shows)
    env = ToolEnv()
    env.init(PROMPT)
    assert [env.step(turn["content"])["reward"] for turn in TURNS[::2]] == [
        0.0,
        RATING_BY_SHOWS[shows],
    ]
    assert env.get_metrics()["judge_ok"] == 1.0


ENDS: dict[str, tuple[dict[str, Any], Any, type[Exception], str]] = {
    "a spent budget": ({"budget": 0.0}, PROMPT, BudgetExceeded, "training stops"),
    "a lone rollout": ({"fallback": "group"}, PROMPT, ConfigError, "one environment at a time"),
}


@pytest.mark.parametrize("case", ENDS)
def test_what_ends_a_run(gym: Any, make_model: Any, case: str) -> None:
    failures, prompt, error, words = ENDS[case]
    make_model(**failures)
    with pytest.raises(error, match=words):
        run_episode(gym, "lost", prompt)
