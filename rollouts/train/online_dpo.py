"""Online DPO: two responses a query; the judge says which is the better one."""

from __future__ import annotations

from trl.experimental.online_dpo import OnlineDPOConfig

from autoj_reward.trainer.online_dpo import DecidedPairsTrainer
from autoj_reward.trainer.reward import RewardModel
from autoj_reward.trainer.trl import OnlineDPOReward
from rollouts.train.config import TrainConfig
from rollouts.train.learner import Learner, load_policy
from rollouts.train.online import run


def train(config: TrainConfig, learner: Learner, reward: RewardModel) -> None:
    """Run TRL's OnlineDPOTrainer on the decided pairs to its end, or go on with it."""
    adapter, limits = OnlineDPOReward(reward), config.learner
    own = {
        "max_new_tokens": limits.max_response_tokens,
        "max_length": limits.max_prompt_tokens + limits.max_response_tokens,
    }
    run(
        config,
        learner,
        reward,
        (DecidedPairsTrainer, OnlineDPOConfig),
        own,
        model=load_policy(config.learner, learner.path, learner.tokenizer),
        reward_funcs=adapter.compare if config.pairwise else adapter.judge,
    )
