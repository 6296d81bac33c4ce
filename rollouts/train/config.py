"""The config of `autoj train`: a policy that learns from a judge."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from autoj_reward.config import Block, RewardConfig


class LearnerConfig(Block):
    """The policy that learns, and what it samples.

    lora_rank: null trains all weights. max_prompt_tokens: longer prompts are named and left out.
    """

    model: str = "smollm2-135m-instruct"
    revision: str | None = None
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    lora_rank: int | None = Field(None, ge=1)
    max_prompt_tokens: int = Field(512, ge=1)
    max_response_tokens: int = Field(256, ge=1)
    temperature: float = Field(1.0, gt=0)
    system: str | None = None


class TrainConfig(Block):
    """One run of PPO, GRPO, RLOO or online DPO.

    input: rows of `query`, as for best-of-n, with the context that the judge shows. output:
        checkpoints, logs, the trained policy.
    steps: optimizer steps. batch_size: responses a step (pairs for online DPO), over all processes;
        device_batch_size: at a time on one device. group: responses a query in GRPO and RLOO.
    kl: weight of the divergence from the first policy. pairwise: online DPO orders its pairs by
        comparisons in both orders, instead of by two ratings.
    threads: cores that the trainer keeps to on a machine without GPUs; null takes half of them
        beside a judge that starts with the run, else all.
    trainer: further arguments of the TRL trainer's own config, by their names there.
    """

    input: str
    output: Path
    learner: LearnerConfig = LearnerConfig()
    reward: RewardConfig = RewardConfig()
    steps: int = Field(100, ge=1)
    batch_size: int = Field(8, ge=1)
    device_batch_size: int = Field(8, ge=1)
    group: int = Field(4, ge=2)
    learning_rate: float = Field(1e-6, gt=0)
    kl: float = Field(0.05, ge=0)
    pairwise: bool = False
    save_steps: int = Field(50, ge=1)
    seed: int = 0
    threads: int | None = Field(None, ge=1)
    trainer: dict[str, Any] = Field(default_factory=dict)
