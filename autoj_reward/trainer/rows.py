"""Rewards of a framework's rows, with one reward model per process."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from autoj_reward.config import RewardConfig
from autoj_reward.errors import ConfigError
from autoj_reward.models.unused import load_run
from autoj_reward.trainer.parts import RewardSource
from autoj_reward.trainer.prompts import Turn, candidate, prompt_turns, strip_end_token
from autoj_reward.trainer.reward import RewardModel
from autoj_reward.trainer.shaping import Budgets

VARIABLE = "AUTOJ_REWARD"
"""Environment variable that names the YAML file of the reward config."""
REWARD_MODELS: dict[str, RewardModel] = {}
"""Reward models of this process, by the path of their config file."""


def reward_model() -> RewardModel:
    """Return this process's reward model, built once from the file that AUTOJ_REWARD names.

    Raises ConfigError if the variable is not set.
    """
    path = reward_file()
    if path not in REWARD_MODELS:
        # Several threads may get here. They all return the first model; the others are not opened.
        REWARD_MODELS.setdefault(path, RewardModel(load_run(RewardConfig, path)))
    return REWARD_MODELS[path]


def reward_file() -> str:
    """Return the path of the reward config that AUTOJ_REWARD names. Raises ConfigError."""
    path = os.environ.get(VARIABLE)
    if not path:
        raise ConfigError(f"set {VARIABLE} to the YAML file of a reward config")
    return path


async def row_rewards(
    model: RewardSource,
    rows: Sequence[tuple[Turn, str, Mapping[str, Any]]],
    budgets: Budgets | None = None,
) -> list[float]:
    """Return one number for each (prompt, response, row). Failures get the configured fallback.

    A prompt is messages, or text with or without a chat template. The row holds the context that
    the judge shows, with `label` as the reference. budgets: failure budgets of the calling run, if
    several share the model. Raises BudgetExceeded when too many judgements have failed.
    """
    candidates = [
        candidate(
            prompt_turns(prompt) if isinstance(prompt, str) else prompt,
            strip_end_token(response),
            model.fields.try_read(row, "label"),
        )
        for prompt, response, row in rows
    ]
    return model.numbers(await model.rewards(candidates, budgets), candidates)
