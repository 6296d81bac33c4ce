"""The config of a training run. Its defaults are the paper's recipe (section 4)."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from autoj_reward.config import Block
from autoj_reward.config.models import Wrapper
from autoj_reward.training.common import FineTuningConfig
from autoj_reward.training.groups import GroupsConfig


class LossConfig(Block):
    """Weights of the parts of the loss; a part of weight 0 is not computed."""

    judgement: float = Field(1.0, ge=0)
    """Cross entropy of the output's tokens, mean over an example. Without a judgement in the data,
    a pair's output is the decision alone."""
    slot_after: float = Field(0.0, ge=0)
    """The rating slot after the judgement: cross entropy of the rating distribution against a
    normal curve of standard deviation `spread` around the reference."""
    slot_direct: float = Field(0.0, ge=0)
    """The same at a rating slot right after the prompt."""
    spread: float = Field(0.8, gt=0)
    """Standard deviation of the target distribution, in points of rating."""
    verdict: float = Field(0.0, ge=0)
    """Cross entropy of a comparison's verdict over the verdict labels."""
    preference: float = Field(0.0, ge=0)
    """Bradley-Terry: cross entropy of the human label under a logit that is the difference of the
    expected ratings at the direct slots times `preference_scale`."""
    ranking: float = Field(0.0, ge=0)
    """The same over all pairs of a group of graded outputs, against the logistic function of the
    difference of their scores."""
    preference_scale: float = Field(1.0, gt=0)
    """Logits for each point of rating."""

    @property
    def branching(self) -> bool:
        """Whether a prompt may have several continuations, which is so if a loss reads a slot."""
        return self.slot_after > 0 or self.slot_direct > 0 or self.verdict > 0


class MixConfig(Block):
    """Repetitions of each row per epoch; a fraction draws a new share in every epoch."""

    rated: float = Field(2.0, ge=0)
    """Rated responses with judgements, doubled in the paper to balance pairs in two orders."""
    direct: float = Field(0.0, ge=0)
    """Rated responses at the slot right after the prompt alone, at half the tokens."""
    compared: float = Field(1.0, ge=0)
    """Pairs in each of their two orders."""
    preferred: float = Field(0.0, ge=0)
    """Pairs for the preference loss."""
    ranked: float = Field(0.0, ge=0)
    """Groups of graded outputs for the ranking loss."""


class TrainJudgeConfig(FineTuningConfig):
    """Config of a judge's training."""

    format: str = "auto"
    """Format with which the judge will be served."""
    wrapper: Wrapper = "auto"
    """Wrapper with which the judge will be served."""
    adapter: Path | None = None
    """Folder of an adapter to continue from; its blocks below lora.first_layer are frozen."""
    losses: LossConfig = LossConfig()
    """Weights of the losses."""
    mix: MixConfig = MixConfig()
    """Number of times that an epoch shows each kind of row."""
    groups: GroupsConfig = GroupsConfig()
    """Groups of graded outputs for the ranking loss."""
    brief: int | None = Field(None, ge=16)
    """Tokens that a reference critique may have before its rating; a longer one keeps its first
    sentences and its last. null keeps it whole, as in the paper. Small models learn to end brief
    critiques long before whole ones."""
    epochs: float = Field(5.0, gt=0)
    """Passes over the mix."""
    max_steps: int | None = Field(None, ge=1)
    """Optimizer steps after which the run ends, if `epochs` has more. The learning rate then falls
    within these steps. null: all of `epochs`."""
    attention: Literal["auto", "sdpa", "flash_attention_2"] = "auto"
    """Attention implementation; `auto` takes flash attention where it is installed and fits."""
    validations: int = Field(4, ge=1)
    """Number of validations in the run, the last at its end."""
    validation_items: int = Field(500, ge=1)
    """Maximum number of examples of each part in a validation."""

    @model_validator(mode="after")
    def _require_consistent(self) -> TrainJudgeConfig:
        if self.adapter and not self.lora:
            raise ValueError("adapter goes on from a LoRA adapter: give a lora block")
        if self.attention == "flash_attention_2" and self.losses.branching:
            raise ValueError(
                "slot_direct, slot_after and verdict put several continuations behind one prompt, "
                "which flash_attention_2 cannot mask: set attention to sdpa"
            )
        return self


def sequences_of(config: TrainJudgeConfig) -> int:
    """Return the maximum sequences of an example: a group's size, 2 with preferred pairs, or 1."""
    if config.mix.ranked:
        return config.groups.size
    return 2 if config.mix.preferred else 1
