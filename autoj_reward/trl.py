"""LLM judges as rewards in TRL's trainers. Each adapter imports its trainer's modules on first use.

    with RewardModel("GAIR/autoj-13b") as reward:
        GRPOTrainer(model, reward_funcs=reward.trl(), ...)

- `GRPOReward`: reward functions for GRPOTrainer and RLOOTrainer; `reward.trl()` is its async one.
- `OnlineDPOReward`: reward functions for OnlineDPOTrainer.
- `DecidedPairsTrainer`: an OnlineDPOTrainer that skips pairs with equal rewards.
- `PPOReward`: reward model for PPOTrainer; it finds its prompts in a `prompt_table`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autoj_reward.trainer.online_dpo import DecidedPairsTrainer
    from autoj_reward.trainer.ppo import PPOReward, prompt_table
    from autoj_reward.trainer.trl import GRPOReward, OnlineDPOReward

__all__ = ["DecidedPairsTrainer", "GRPOReward", "OnlineDPOReward", "PPOReward", "prompt_table"]

_MODULES = {
    "DecidedPairsTrainer": "online_dpo",
    "GRPOReward": "trl",
    "OnlineDPOReward": "trl",
    "PPOReward": "ppo",
    "prompt_table": "ppo",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"autoj_reward.trainer.{_MODULES[name]}"), name)
