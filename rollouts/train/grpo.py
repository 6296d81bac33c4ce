"""GRPO and RLOO: a group of responses a query, each judged while the others still are."""

from __future__ import annotations

from typing import Any

from datasets import Dataset

from autoj_reward.trainer.reward import RewardModel
from autoj_reward.trainer.trl import GRPOReward
from autoj_reward.training.checkpoints import train_on
from rollouts.train.config import TrainConfig
from rollouts.train.learner import Learner, arguments, lora, model_options
from rollouts.train.log import JudgeLog


def train_grpo(config: TrainConfig, learner: Learner, reward: RewardModel) -> None:
    """Run TRL's GRPOTrainer to its end, or go on with it."""
    from trl import GRPOConfig, GRPOTrainer

    _train(config, learner, reward, GRPOConfig, GRPOTrainer)


def train_rloo(config: TrainConfig, learner: Learner, reward: RewardModel) -> None:
    """Run TRL's RLOOTrainer to its end, or go on with it."""
    from trl import RLOOConfig, RLOOTrainer

    _train(config, learner, reward, RLOOConfig, RLOOTrainer)


def _train(
    config: TrainConfig, learner: Learner, reward: RewardModel, make_config: Any, make: Any
) -> None:
    args = arguments(config) | {
        "max_steps": config.steps,
        "num_generations": config.group,
        "max_completion_length": config.learner.max_response_tokens,
        "temperature": config.learner.temperature,
        "beta": config.kl,
        "model_init_kwargs": model_options(config.learner),
        **config.trainer,
    }
    trainer = make(
        # By name, since RLOO loads its reference by the policy's name.
        model=learner.path,
        reward_funcs=GRPOReward(reward).judge,
        args=make_config(**args),
        train_dataset=Dataset.from_dict(learner.rows),
        processing_class=learner.tokenizer,
        peft_config=lora(config.learner),
        callbacks=[JudgeLog(reward, config.output / "logs")],
    )
    train_on(trainer, config.output)
    trainer.save_model(str(config.output / "policy"))
