"""GRPO, RLOO and online DPO by TRL's trainers: the judge rewards what the policy samples."""

from __future__ import annotations

from typing import Any

from datasets import Dataset

from autoj_reward.trainer.reward import RewardModel
from autoj_reward.trainer.trl import GRPOReward, OnlineDPOReward
from autoj_reward.training.checkpoints import train_on
from rollouts.train.config import TrainConfig
from rollouts.train.learner import Learner, arguments, load_policy, lora, model_options
from rollouts.train.log import JudgeLog


def grpo(config: TrainConfig, learner: Learner, reward: RewardModel) -> None:
    """Run TRL's GRPOTrainer to its end, or go on with it."""
    from trl import GRPOConfig, GRPOTrainer

    _grouped(config, learner, reward, GRPOConfig, GRPOTrainer)


def rloo(config: TrainConfig, learner: Learner, reward: RewardModel) -> None:
    """Run TRL's RLOOTrainer to its end, or go on with it."""
    from trl import RLOOConfig, RLOOTrainer

    _grouped(config, learner, reward, RLOOConfig, RLOOTrainer)


def online_dpo(config: TrainConfig, learner: Learner, reward: RewardModel) -> None:
    """Run TRL's OnlineDPOTrainer on the decided pairs to its end, or go on with it."""
    from trl.experimental.online_dpo import OnlineDPOConfig

    from autoj_reward.trainer.online_dpo import DecidedPairsTrainer

    adapter, own = OnlineDPOReward(reward), config.learner
    args = _arguments(config) | {
        "max_new_tokens": own.max_response_tokens,
        "max_length": own.max_prompt_tokens + own.max_response_tokens,
        **config.trainer,
    }
    trainer = DecidedPairsTrainer(
        model=load_policy(own, learner.path, learner.tokenizer),
        reward_funcs=adapter.compare if config.pairwise else adapter.judge,
        args=OnlineDPOConfig(**args),
        **_inputs(config, learner, reward),
    )
    _run(trainer, config)


def _grouped(
    config: TrainConfig, learner: Learner, reward: RewardModel, make_config: Any, make: Any
) -> None:
    """A group of responses a query, each judged while the others still are."""
    args = _arguments(config) | {
        "num_generations": config.group,
        "max_completion_length": config.learner.max_response_tokens,
        "model_init_kwargs": model_options(config.learner),
        **config.trainer,
    }
    trainer = make(
        # By name, since RLOO loads its reference by the policy's name.
        model=learner.path,
        reward_funcs=GRPOReward(reward).judge,
        args=make_config(**args),
        **_inputs(config, learner, reward),
    )
    _run(trainer, config)


def _arguments(config: TrainConfig) -> dict[str, Any]:
    own = {"temperature": config.learner.temperature, "beta": config.kl}
    return arguments(config) | {"max_steps": config.steps} | own


def _inputs(config: TrainConfig, learner: Learner, reward: RewardModel) -> dict[str, Any]:
    return {
        "train_dataset": Dataset.from_dict({"prompt": learner.prompts}),
        "processing_class": learner.tokenizer,
        "peft_config": lora(config.learner),
        "callbacks": [JudgeLog(reward, config.output / "logs")],
    }


def _run(trainer: Any, config: TrainConfig) -> None:
    train_on(trainer, config.output)
    trainer.save_model(str(config.output / "policy"))
