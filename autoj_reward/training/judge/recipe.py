"""The config of a training run. Its defaults are the paper's recipe (section 4.4)."""

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
    """In ratings."""
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
        """Whether examples have several continuations of one prompt, to read a slot."""
        return self.slot_after > 0 or self.slot_direct > 0 or self.verdict > 0


class MixConfig(Block):
    """Number of times that an epoch shows each kind of row.

    A fraction draws that share of the rows anew in every epoch.
    """

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
    """A training run of a judge."""

    format: str = "auto"
    """The format that the judge is to be served with."""
    wrapper: Wrapper = "auto"
    """The wrapper that the judge is to be served with."""
    adapter: Path | None = None
    """Folder of an adapter to go on from; its blocks below lora.first_layer stay as they are."""
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
    attention: Literal["auto", "sdpa", "flash_attention_2"] = "auto"
    """Attention implementation; `auto` takes flash attention where it is installed and fits."""
    validations: int = Field(4, ge=1)
    """How many in all, the last at the end."""
    validation_items: int = Field(500, ge=1)
    """Most examples of each part in one validation."""

    @model_validator(mode="after")
    def _consistent(self) -> TrainJudgeConfig:
        if self.adapter and not self.lora:
            raise ValueError("adapter goes on from a LoRA adapter: give a lora block")
        if self.attention == "flash_attention_2" and self.losses.branching:
            raise ValueError(
                "slot_direct, slot_after and verdict put several continuations behind one prompt, "
                "which flash_attention_2 cannot mask: set attention to sdpa"
            )
        return self


def sequences_of(config: TrainJudgeConfig) -> int:
    """Return the most sequences of an example: a preferred pair has two, a group one an output."""
    if config.mix.ranked:
        return config.groups.size
    return 2 if config.mix.preferred else 1
