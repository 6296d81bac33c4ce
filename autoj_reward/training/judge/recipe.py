"""The config of a training run. Its defaults are the paper's recipe (section 4.4)."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from autoj_reward.config import Block
from autoj_reward.config.models import Wrapper
from autoj_reward.training.fine_tuning import FineTuningConfig
from autoj_reward.training.groups import GroupsConfig


class LossConfig(Block):
    """Weights of the parts of the loss; a part of weight 0 is not computed.

    judgement: cross entropy of the output's tokens, mean over an example. Without a judgement in
        the data, a pair's output is the decision alone.
    slot_after, slot_direct: the rating slot after the judgement, and one right after the prompt:
        cross entropy of the rating distribution against a normal curve of standard deviation
        `spread` (in ratings) around the reference.
    verdict: cross entropy of a comparison's verdict over the verdict labels.
    preference: Bradley-Terry: cross entropy of the human label under a logit that is the
        difference of the expected ratings at the direct slots times `preference_scale`.
    ranking: the same over all pairs of a group of graded outputs, against the logistic function of
        the difference of their scores.
    """

    judgement: float = Field(1.0, ge=0)
    slot_after: float = Field(0.0, ge=0)
    slot_direct: float = Field(0.0, ge=0)
    spread: float = Field(0.8, gt=0)
    verdict: float = Field(0.0, ge=0)
    preference: float = Field(0.0, ge=0)
    ranking: float = Field(0.0, ge=0)
    preference_scale: float = Field(1.0, gt=0)

    @property
    def branching(self) -> bool:
        """Whether examples have several continuations of one prompt: the readings of a slot."""
        return self.slot_after > 0 or self.slot_direct > 0 or self.verdict > 0


class MixConfig(Block):
    """How many times an epoch shows each row; a fraction draws that share anew in every epoch.

    rated: rated responses with their judgements, doubled in the paper to balance pairs in two
    orders. direct: rated responses at the slot right after the prompt alone, at half the tokens.
    compared: pairs in each of their two orders. preferred: pairs for the preference loss.
    ranked: groups of graded outputs for the ranking loss.
    """

    rated: float = Field(2.0, ge=0)
    direct: float = Field(0.0, ge=0)
    compared: float = Field(1.0, ge=0)
    preferred: float = Field(0.0, ge=0)
    ranked: float = Field(0.0, ge=0)


class TrainJudgeConfig(FineTuningConfig):
    """A training run of a judge.

    format, wrapper: what the judge is to be served with.
    adapter: folder of an adapter to go on from; its blocks below lora.first_layer stay as they are.
    brief: tokens that a reference critique may have before its rating; a longer one keeps its first
        sentences and its last. null keeps it whole, as in the paper. Small models learn to end
        brief critiques long before whole ones.
    epochs: passes over the mix.
    validations: how many in all, the last at the end; validation_items: most examples of each part
        in one.
    """

    format: str = "auto"
    wrapper: Wrapper = "auto"
    adapter: Path | None = None
    losses: LossConfig = LossConfig()
    mix: MixConfig = MixConfig()
    groups: GroupsConfig = GroupsConfig()
    brief: int | None = Field(None, ge=16)
    epochs: float = Field(5.0, gt=0)
    attention: Literal["auto", "sdpa", "flash_attention_2"] = "auto"
    validations: int = Field(4, ge=1)
    validation_items: int = Field(500, ge=1)

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
    """Most sequences of one example: a pair with a preference has two, a group one an output."""
    if config.mix.ranked:
        return config.groups.size
    return 2 if config.mix.preferred else 1
