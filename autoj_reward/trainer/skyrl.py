"""SkyRL: an environment of one turn whose step is rewarded by the judge.

    skyrl_gym.register(id="autoj", entry_point="autoj_reward.trainer.skyrl:JudgeEnv")

in the entry point of the run, and `env_class: autoj` in its rows. Set AUTOJ_REWARD to the YAML file
of a reward config (a `RewardConfig`; name a running service in it).
"""

from __future__ import annotations

from functools import cache
from typing import Any

from autoj_reward.trainer.prompts import candidate, without_end
from autoj_reward.trainer.rows import reward_model
from autoj_reward.trainer.shaping import refuse_groups
from autoj_reward.trainer.stats import row_figures

ALONE = "SkyRL steps one environment at a time"


def __getattr__(name: str) -> Any:
    # A subclass of SkyRL's, which only its own environment can import.
    if name == "JudgeEnv":
        return _judge_env()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@cache
def _judge_env() -> type:
    from skyrl_gym.envs.base_text_env import BaseTextEnv

    class JudgeEnv(BaseTextEnv):
        """The prompt is the query, and the first action the response; then the episode is over."""

        def __init__(self, env_config: Any = None, extras: Any = None) -> None:
            super().__init__()
            refuse_groups(reward_model().config, ALONE)
            self.figures: dict[str, float] = {}

        def init(self, prompt: Any) -> tuple[Any, dict[str, Any]]:
            self.prompt = prompt
            return prompt, {}

        def step(self, action: str) -> dict[str, Any]:
            """Raises BudgetExceeded, which ends the run with its words, when too many judgements of
            this process have failed; failures below that get the configured fallback."""
            model, asked = reward_model(), [candidate(self.prompt, without_end(action))]
            [reward] = found = model.rewards_now(asked)
            [number] = model.numbers(found, asked)
            self.figures = row_figures(reward, model.parts)
            return {"observations": [], "reward": number, "done": True, "metadata": self.figures}

        def get_metrics(self) -> dict[str, Any]:
            return self.figures

    return JudgeEnv
