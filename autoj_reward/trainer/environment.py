"""The reward model of processes that a framework starts: named in the environment."""

from __future__ import annotations

import os
from functools import cache

from autoj_reward.config import RewardConfig
from autoj_reward.errors import ConfigError
from autoj_reward.models.unused import load_run
from autoj_reward.trainer.reward import RewardModel

VARIABLE = "AUTOJ_REWARD"


@cache
def reward_model() -> RewardModel:
    """Return the reward model of the config file that AUTOJ_REWARD names, made once a process.

    Raises ConfigError where the variable is not set."""
    path = os.environ.get(VARIABLE)
    if not path:
        raise ConfigError(f"set {VARIABLE} to the YAML file of a reward config")
    return RewardModel(load_run(RewardConfig, path))
