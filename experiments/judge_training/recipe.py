"""The config of a training run. Its defaults are the paper's recipe (section 4.4)."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from autoj_reward.config import Block
from experiments.judge_data import JudgeData


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
    """

    judgement: float = Field(1.0, ge=0)
    slot_after: float = Field(0.0, ge=0)
    slot_direct: float = Field(0.0, ge=0)
    spread: float = Field(0.8, gt=0)
    verdict: float = Field(0.0, ge=0)
    preference: float = Field(0.0, ge=0)
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
    """

    rated: float = Field(2.0, ge=0)
    direct: float = Field(0.0, ge=0)
    compared: float = Field(1.0, ge=0)
    preferred: float = Field(0.0, ge=0)


class LoraBlock(Block):
    """LoRA on every linear layer of the transformer blocks from `first_layer` up."""

    rank: int = Field(16, ge=1)
    alpha: float = Field(32, gt=0)
    dropout: float = Field(0.0, ge=0, lt=1)
    first_layer: int = Field(0, ge=0)


class TrainJudgeConfig(Block):
    """A training run of a judge.

    model, revision, format, wrapper: the base model, and what it is to be served with.
    adapter: folder of an adapter to go on from. lora: null trains all weights.
    brief: tokens that a reference critique may have before its rating; a longer one keeps its first
        sentences and its last. null keeps it whole, as in the paper. Small models learn to end
        brief critiques long before whole ones.
    max_length: tokens of a whole example. bad_rows: `skip` names, counts and leaves out malformed
        and over-long rows; `stop` refuses to start with any.
    epochs: passes over the mix. batch_size: examples an optimizer step, over all processes;
        device_batch_size: of these, at a time on one device.
    learning_rate: peak, after a warm-up over the share `warmup` of all steps; then cosine to 0.
    dtype: `auto` is bfloat16 (full weights: mixed precision) on a GPU and float32 on a CPU.
    save_steps: optimizer steps between checkpoints. validations: how many in all, the last at the
        end; validation_items: most examples of each part in one.
    """

    model: str
    revision: str | None = None
    format: str = "auto"
    wrapper: Literal["auto", "chat", "llama2", "none"] = "auto"
    data: JudgeData
    output: Path
    adapter: Path | None = None
    lora: LoraBlock | None = None
    losses: LossConfig = LossConfig()
    mix: MixConfig = MixConfig()
    brief: int | None = Field(None, ge=16)
    max_length: int = Field(4096, ge=64)
    bad_rows: Literal["skip", "stop"] = "skip"
    epochs: float = Field(5.0, gt=0)
    batch_size: int = Field(64, ge=1)
    device_batch_size: int = Field(1, ge=1)
    learning_rate: float = Field(1e-5, gt=0)
    warmup: float = Field(0.03, ge=0, lt=1)
    weight_decay: float = Field(0.1, ge=0)
    betas: tuple[float, float] = (0.9, 0.95)
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    attention: Literal["auto", "sdpa", "flash_attention_2"] = "auto"
    gradient_checkpointing: bool = False
    save_steps: int = Field(50, ge=1)
    validations: int = Field(4, ge=1)
    validation_items: int = Field(500, ge=1)
    seed: int = 0

    @model_validator(mode="after")
    def _consistent(self) -> TrainJudgeConfig:
        if self.adapter and not self.lora:
            raise ValueError("adapter goes on from a LoRA adapter: give a lora block")
        if self.batch_size % self.device_batch_size:
            raise ValueError(
                f"batch_size {self.batch_size} is no multiple of device_batch_size "
                f"{self.device_batch_size}"
            )
        if self.attention == "flash_attention_2" and self.losses.branching:
            raise ValueError(
                "slot_direct, slot_after and verdict put several continuations behind one prompt, "
                "which flash_attention_2 cannot mask: set attention to sdpa"
            )
        return self
