"""SkyRL's own generator and its gym's registry, with a scripted engine and judge."""

from __future__ import annotations

import asyncio
import importlib
import math
from types import SimpleNamespace
from typing import Any

import pytest

from autoj_reward.errors import BudgetExceeded, ConfigError, InputError
from tests.trainer.conftest import FRAMEWORKS

pytestmark = pytest.mark.filterwarnings("ignore")  # of their code
PROMPT = [{"role": "user", "content": "Why?"}]


class Odd:
    """Makes environments that give one reward, or raise it."""

    def __init__(self, reward: Any) -> None:
        self.reward = reward

    def __call__(self, **_: Any) -> Any:
        from skyrl_gym.envs.base_text_env import BaseTextEnv

        def step(action: str) -> dict[str, Any]:
            if isinstance(self.reward, Exception):
                raise self.reward
            return {"observations": [], "reward": self.reward, "done": True, "metadata": {}}

        made = BaseTextEnv()
        made.step = step
        return made

    @staticmethod
    def aggregate_metrics(metrics: Any) -> dict[str, Any]:
        return {}


@pytest.fixture
def gym(theirs: Any) -> Any:
    """skyrl_gym, with our environment registered as `autoj`."""
    theirs(FRAMEWORKS, "skyrl", "skyrl_gym")
    found = importlib.import_module("skyrl_gym")
    found.register(id="autoj", entry_point="autoj_reward.trainer.skyrl:JudgeEnv")
    yield found
    found.envs.deregister("autoj")


@pytest.fixture
def generate(gym: Any, smollm2: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Rollouts of SkyRL's generator whose engine says one text after the other."""
    own = importlib.import_module("skyrl.train.generators.skyrl_gym_generator")
    monkeypatch.setattr(own, "InferenceEngineInput", dict)
    from skyrl.train.config import GeneratorConfig, SkyRLGymConfig

    def run(*said: str, batched: bool = False, prompt: Any = PROMPT, env: str = "autoj") -> Any:
        rest = iter(said)

        async def answer(asked: Any, **_: Any) -> dict[str, Any]:
            texts = [next(rest) for _ in asked["prompt_token_ids"]]
            ids = [smollm2(text, add_special_tokens=False).input_ids for text in texts]
            return {"responses": texts, "response_ids": ids, "stop_reasons": ["stop"] * len(ids)}

        async def finish_session(name: str) -> None:
            pass

        engine = SimpleNamespace(generate=answer, finish_session=finish_session)
        config = GeneratorConfig(batched=batched, max_input_length=4096)
        made = own.SkyRLGymGenerator(config, SkyRLGymConfig(), engine, smollm2)
        count = len(said)
        batch = {"prompts": [prompt] * count, "env_classes": [env] * count}
        batch |= {"env_extras": [{} for _ in said]}
        return asyncio.run(made.generate(batch, disable_tqdm=True))

    return run


def total(reward: Any) -> float:
    return float(sum(reward)) if isinstance(reward, list) else float(reward)


@pytest.mark.parametrize("batched", [False, True], ids=["a loop each", "batched"])
def test_rows_good_and_failed(generate: Any, named: Any, batched: bool) -> None:
    model = named(budget=1.0, fallback=4.5)
    found = generate("good", "poor", "lost", "slow", batched=batched)
    assert [total(reward) for reward in found["rewards"]] == [9.0, 2.0, 4.5, 4.5]
    assert found["rollout_metrics"]["environment/judge_ok"] == 0.5
    assert {candidate.query for candidate, _ in model._recent} == {"Why?"}


ENDS: dict[str, tuple[dict[str, Any], Any, type[Exception], str]] = {
    "a spent budget": ({"budget": 0.0}, PROMPT, BudgetExceeded, "training stops"),
    "a lone rollout": ({"fallback": "group"}, PROMPT, ConfigError, "one environment at a time"),
}


@pytest.mark.parametrize("case", ENDS)
@pytest.mark.parametrize("batched", [False, True], ids=["a loop each", "batched"])
def test_what_ends_a_run(generate: Any, named: Any, case: str, batched: bool) -> None:
    failures, prompt, error, words = ENDS[case]
    named(**failures)
    with pytest.raises(error, match=words):
        generate("lost", batched=batched, prompt=prompt)


def test_a_prompt_that_is_none_is_named(gym: Any, named: Any) -> None:
    named()
    with pytest.raises(InputError, match="not a message with a role"):
        gym.make("autoj", env_config={}, extras={}).init([{"content": "Why?"}])


THEIRS: dict[str, tuple[Any, Any]] = {
    "exception": (RuntimeError("broken"), RuntimeError),
    "None": (None, (AssertionError, TypeError)),
    "NaN": (math.nan, None),
}


@pytest.mark.parametrize("case", THEIRS)
@pytest.mark.parametrize("batched", [False, True], ids=["a loop each", "batched"])
def test_what_skyrl_makes_of_an_environment(
    generate: Any, gym: Any, case: str, batched: bool
) -> None:
    reward, error = THEIRS[case]
    gym.register(id="odd", entry_point=Odd(reward))
    try:
        if error is None:
            [found] = generate("x", env="odd", batched=batched)["rewards"]
            assert math.isnan(total(found))
            return
        with pytest.raises(error):
            generate("x", env="odd", batched=batched)
    finally:
        gym.envs.deregister("odd")
