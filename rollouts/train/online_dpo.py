"""Online DPO: two responses a query; the judge says which is the better one."""

from __future__ import annotations

from datasets import Dataset

from autoj_reward.trainer.reward import RewardModel
from autoj_reward.trainer.trl import OnlineDPOReward
from autoj_reward.training.checkpoints import train_on
from rollouts.train.config import TrainConfig
from rollouts.train.learner import Learner, arguments, load_policy, lora
from rollouts.train.log import JudgeLog


def train(config: TrainConfig, learner: Learner, reward: RewardModel) -> None:
    """Run TRL's OnlineDPOTrainer on the decided pairs to its end, or go on with it."""
    from trl.experimental.online_dpo import OnlineDPOConfig

    from autoj_reward.trainer.online_dpo import DecidedPairsTrainer

    adapter = OnlineDPOReward(reward)
    args = arguments(config) | {
        "max_steps": config.steps,
        "max_new_tokens": config.learner.max_response_tokens,
        "max_length": config.learner.max_prompt_tokens + config.learner.max_response_tokens,
        "temperature": config.learner.temperature,
        "beta": config.kl,
        **config.trainer,
    }
    trainer = DecidedPairsTrainer(
        model=load_policy(config.learner, learner.path, learner.tokenizer),
        reward_funcs=adapter.compare if config.pairwise else adapter.judge,
        args=OnlineDPOConfig(**args),
        train_dataset=Dataset.from_dict(learner.rows),
        processing_class=learner.tokenizer,
        peft_config=lora(config.learner),
        callbacks=[JudgeLog(reward, config.output / "logs")],
    )
    train_on(trainer, config.output)
    trainer.save_model(str(config.output / "policy"))
