"""What the trainers of TRL that sample as they learn have in common, from start to saved policy."""

from __future__ import annotations

from typing import Any

from datasets import Dataset

from autoj_reward.trainer.reward import RewardModel
from autoj_reward.training.checkpoints import train_on
from rollouts.train.config import TrainConfig
from rollouts.train.learner import Learner, arguments, lora
from rollouts.train.log import JudgeLog


def run(
    config: TrainConfig,
    learner: Learner,
    reward: RewardModel,
    kind: tuple[Any, Any],
    own: dict[str, Any],
    **parts: Any,
) -> None:
    """Train to the end, or go on from the last checkpoint, and save the policy.

    kind: the trainer and its class of arguments. own: arguments of this trainer alone. parts: what
    the trainer is given beside them: `model` and `reward_funcs`.
    """
    make, make_arguments = kind
    args = arguments(config) | {
        "max_steps": config.steps,
        "temperature": config.learner.temperature,
        "beta": config.kl,
        **own,
        **config.trainer,
    }
    trainer = make(
        args=make_arguments(**args),
        train_dataset=Dataset.from_dict(learner.rows),
        processing_class=learner.tokenizer,
        peft_config=lora(config.learner),
        callbacks=[JudgeLog(reward, config.output / "logs")],
        **parts,
    )
    train_on(trainer, config.output)
    trainer.save_model(str(config.output / "policy"))
