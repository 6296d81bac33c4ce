"""SkyRL's own gym makes our environment from its registry, with a scripted judge."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest

from autoj_reward.errors import BudgetExceeded, ConfigError, InputError
from tests.trainer.conftest import FRAMEWORKS, SHOWN, TURNS

pytestmark = pytest.mark.filterwarnings("ignore")  # of their code
PROMPT = [{"role": "user", "content": "Why?"}]


@pytest.fixture
def gym(theirs: Any) -> Iterator[Any]:
    """Yield skyrl_gym with our environment registered as `autoj`."""
    theirs(FRAMEWORKS, "skyrl_gym")
    found = importlib.import_module("skyrl_gym")
    found.register(id="autoj", entry_point="autoj_reward.trainer.skyrl:JudgeEnv")
    yield found
    found.envs.deregister("autoj")


def episode(gym: Any, said: str, prompt: Any = PROMPT) -> tuple[Any, dict[str, Any]]:
    """Run one step as SkyRL's generator does. Return the environment and the step's result."""
    env = gym.make("autoj", env_config={}, extras={"max_turns": 1})
    assert env.init(prompt) == (prompt, {})
    return env, env.step(said)


def test_rows_good_and_failed(gym: Any, named: Any) -> None:
    model = named(hangs_s=5.0, budget=1.0, fallback=4.5)
    ends = [episode(gym, said) for said in ("good<|im_end|>", "poor", "lost", "slow")]
    assert [step["reward"] for _, step in ends] == [9.0, 2.0, 4.5, 4.5]
    assert all(step["done"] and step["observations"] == [] for _, step in ends)
    assert [candidate.query for candidate, _ in model._recent] == ["Why?"] * 4
    metrics = importlib.import_module("skyrl_gym.metrics")
    told = metrics.aggregate_for_environment("autoj", [env.get_metrics() for env, _ in ends])
    assert (told["judge_ok"], told["judge_truncated"]) == (0.5, 0.25)


@pytest.mark.parametrize("shows", SHOWN)
def test_an_environment_of_several_steps_is_rewarded_at_its_end(
    gym: Any, named: Any, shows: str
) -> None:
    ours = importlib.import_module("autoj_reward.trainer.skyrl")

    class ToolEnv(ours.JudgeEnv):  # type: ignore[name-defined]
        def step(self, action: str) -> Any:
            self.turns += 1
            if self.turns == 1:
                return {"observations": TURNS[1:2], "reward": 0.0, "done": False, "metadata": {}}
            return self.finish(TURNS)

    named(shows=shows)
    env = ToolEnv()
    env.init(PROMPT)
    assert [env.step(turn["content"])["reward"] for turn in TURNS[::2]] == [0.0, SHOWN[shows]]
    assert env.get_metrics()["judge_ok"] == 1.0


ENDS: dict[str, tuple[dict[str, Any], Any, type[Exception], str]] = {
    "a spent budget": ({"budget": 0.0}, PROMPT, BudgetExceeded, "training stops"),
    "a lone rollout": ({"fallback": "group"}, PROMPT, ConfigError, "one environment at a time"),
    "no messages": ({}, [{"content": "Why?"}], InputError, "not a message with a role"),
}


@pytest.mark.parametrize("case", ENDS)
def test_what_ends_a_run(gym: Any, named: Any, case: str) -> None:
    failures, prompt, error, words = ENDS[case]
    named(**failures)
    with pytest.raises(error, match=words):
        episode(gym, "lost", prompt)
