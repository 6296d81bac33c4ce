"""Rewards for a framework's rows, and the reward model of the process that it starts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from autoj_reward.config import RewardConfig
from autoj_reward.errors import ConfigError
from autoj_reward.models.unused import load_run
from autoj_reward.trainer.prompts import Turn, candidate, prompt_turns, without_end
from autoj_reward.trainer.reward import RewardModel
from autoj_reward.trainer.shaping import Budgets

VARIABLE = "AUTOJ_REWARD"


@cache
def reward_model() -> RewardModel:
    """Return the reward model of the config file that AUTOJ_REWARD names, made once a process.

    Raises ConfigError where the variable is not set."""
    path = os.environ.get(VARIABLE)
    if not path:
        raise ConfigError(f"set {VARIABLE} to the YAML file of a reward config")
    return RewardModel(load_run(RewardConfig, path))


async def row_rewards(
    model: RewardModel,
    rows: Sequence[tuple[Turn, str, Mapping[str, Any]]],
    budgets: Budgets | None = None,
) -> list[float]:
    """One number for each (prompt, response, row): a prompt is messages, or a text with a chat
    template or without; the row holds the context that the judge shows, `label` the reference.
    Failures get the configured fallback; raises BudgetExceeded once too many have
    failed, InputError for what is neither text nor messages."""
    candidates = [
        candidate(
            prompt_turns(prompt) if isinstance(prompt, str) else prompt,
            without_end(response),
            model.fields.read(row, "label"),
        )
        for prompt, response, row in rows
    ]
    return model.numbers(await model.rewards(candidates, budgets), candidates)
