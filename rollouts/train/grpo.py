"""GRPO and RLOO: a group of responses a query, each judged while the others still are."""

from __future__ import annotations

from typing import Any

from autoj_reward.trainer.reward import RewardModel
from autoj_reward.trainer.trl import GRPOReward
from rollouts.train.config import TrainConfig
from rollouts.train.learner import Learner, model_options
from rollouts.train.online import run


def train_grpo(config: TrainConfig, learner: Learner, reward: RewardModel) -> None:
    """Run TRL's GRPOTrainer to its end, or go on with it."""
    from trl import GRPOConfig, GRPOTrainer

    _train(config, learner, reward, (GRPOTrainer, GRPOConfig))


def train_rloo(config: TrainConfig, learner: Learner, reward: RewardModel) -> None:
    """Run TRL's RLOOTrainer to its end, or go on with it."""
    from trl import RLOOConfig, RLOOTrainer

    _train(config, learner, reward, (RLOOTrainer, RLOOConfig))


def _train(
    config: TrainConfig, learner: Learner, reward: RewardModel, kind: tuple[Any, Any]
) -> None:
    own = {
        "num_generations": config.group,
        "max_completion_length": config.learner.max_response_tokens,
        "model_init_kwargs": model_options(config.learner),
    }
    # By name, since RLOO loads its reference by the policy's name.
    model, judge = learner.path, GRPOReward(reward).judge
    run(config, learner, reward, kind, own, model=model, reward_funcs=judge)
