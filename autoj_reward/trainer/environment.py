"""The reward model of processes that a framework starts: named in the environment."""

from __future__ import annotations

import os
from functools import cache

from autoj_reward.config import RewardConfig, load_config
from autoj_reward.errors import ConfigError
from autoj_reward.trainer.reward import RewardModel

VARIABLE = "AUTOJ_REWARD"


@cache
def reward_model() -> RewardModel:
    """The one of this process, of the config file that AUTOJ_REWARD names. ConfigError without."""
    path = os.environ.get(VARIABLE)
    if not path:
        raise ConfigError(f"set {VARIABLE} to the YAML file of a reward config")
    return RewardModel(load_config(RewardConfig, path))


# A process that is forked off has the model, but not the thread that answers for it.
os.register_at_fork(after_in_child=reward_model.cache_clear)
