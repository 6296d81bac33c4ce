"""SkyRL: a single-turn environment whose step is rewarded by the judge, and a base for others.

    skyrl_gym.register(id="autoj", entry_point="autoj_reward.trainer.skyrl:JudgeEnv")

Put this into the entry point of the run, and `env_class: autoj` into its rows. Set AUTOJ_REWARD to
the YAML file of a reward config (a `RewardConfig`) that names a running service.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from autoj_reward.trainer.prompts import Turn, candidate, strip_end_token
from autoj_reward.trainer.rows import reward_model
from autoj_reward.trainer.shaping import refuse_groups
from autoj_reward.trainer.stats import row_figures

ALONE = "SkyRL steps one environment at a time"
"""Reason for refusing settings that need groups."""


def __getattr__(name: str) -> Any:
    # Made on first use: SkyRL can be imported only in its own environment.
    if name == "JudgeEnv":
        return _make_judge_env()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@cache
def _make_judge_env() -> type:
    from skyrl_gym.envs.base_text_env import BaseTextEnv

    class JudgeEnv(BaseTextEnv):
        """Environment of one step. The prompt is the query, and the first action the response.

        A subclass of several steps returns `finish` with all its messages from its last step.
        """

        def __init__(self, env_config: Any = None, extras: Any = None) -> None:
            super().__init__()
            refuse_groups(reward_model().config, ALONE)
            self.figures: dict[str, float] = {}

        def init(self, prompt: Any) -> tuple[Any, dict[str, Any]]:
            self.prompt = prompt
            return prompt, {}

        def step(self, action: str) -> dict[str, Any]:
            """Reward the action and end the episode; see `finish`."""
            return self.finish(strip_end_token(action))

        def finish(self, completion: Turn) -> dict[str, Any]:
            """Return the output of an episode's last step, with the reward of the completion.

            Of messages the judge reads the last one of the assistant, or what `judge.shows` says.
            Failed judgements get the configured fallback. Raises BudgetExceeded, which ends the run
            with its message, when too many judgements of this process have failed.
            """
            model, candidates = reward_model(), [candidate(self.prompt, completion)]
            [reward] = rewards = model.rewards_now(candidates)
            [number] = model.numbers(rewards, candidates)
            self.figures = row_figures(reward, model.parts)
            return {"observations": [], "reward": number, "done": True, "metadata": self.figures}

        def get_metrics(self) -> dict[str, Any]:
            return self.figures

    return JudgeEnv
