"""The config of a training run. Its defaults are the paper's recipe (section 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from autoj_reward.capacity.memory import Training
from autoj_reward.config import Block, load_config
from autoj_reward.config.load import read_config
from autoj_reward.config.models import JudgeConfig, Wrapper
from autoj_reward.errors import ConfigError
from autoj_reward.training.common import FineTuningConfig, dpo_load, memory_load
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


class JudgeTrainingConfig(FineTuningConfig):
    """Settings that all methods of training a judge share."""

    format: str = "auto"
    """Format with which the judge will be served."""
    wrapper: Wrapper = "auto"
    """Wrapper with which the judge will be served."""
    mix: MixConfig = MixConfig()
    """Number of times that an epoch shows each kind of row."""
    groups: GroupsConfig = GroupsConfig()
    """Groups of graded outputs, for `mix.ranked`."""
    epochs: float = Field(5.0, gt=0)
    """Passes over the mix."""
    max_steps: int | None = Field(None, ge=1)
    """Optimizer steps after which the run ends, if `epochs` has more. The learning rate then falls
    within these steps. null: all of `epochs`."""
    validations: int = Field(4, ge=1)
    """Number of validations in the run, the last at its end."""
    validation_items: int = Field(500, ge=1)
    """Maximum number of examples of each part in a validation."""


class TrainJudgeConfig(JudgeTrainingConfig):
    """Config of a judge's training on critiques, ratings and labels: `method: sft`."""

    method: Literal["sft"] = "sft"
    """How the judge learns: from given texts and labels (`sft`), from the verdicts of its own
    outputs (`grpo`), or from pairs of a right and a wrong output (`dpo`)."""
    adapter: Path | None = None
    """Folder of an adapter to continue from; its blocks below lora.first_layer are frozen."""
    losses: LossConfig = LossConfig()
    """Weights of the losses."""
    brief: int | None = Field(None, ge=16)
    """Tokens that a reference critique may have before its rating; a longer one keeps its first
    sentences and its last. null keeps it whole, as in the paper. Small models learn to end brief
    critiques long before whole ones."""
    attention: Literal["auto", "sdpa", "flash_attention_2"] = "auto"
    """Attention implementation; `auto` takes flash attention where it is installed and fits."""

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


class OutcomeRewards(Block):
    """Weights of the rewards of a judge's own outputs. A reward of weight 0 is not computed.

    Each is between 0 and 1, `length` between -1 and 0. An output without a verdict of its own gets
    the lowest value of each.
    """

    verdict: float = Field(1.0, ge=0)
    """A comparison decides as the label of its pair does: 1, else 0 (J1, arXiv 2505.10320)."""
    both_orders: float = Field(1.0, ge=0)
    """A right comparison gets the share of right ones among the outputs on the same pair in the
    other order, so that a verdict by position earns nothing."""
    order: float = Field(1.0, ge=0)
    """Two responses of a pair are rated apart: the share of the other response's outputs whose
    rating lies on the right side, an equal one counting half."""
    best: float = Field(1.0, ge=0)
    """A group is judged in one prompt: 1 if a best response alone has the best score, else 0."""
    distance: float = Field(1.0, ge=0)
    """A rated response: 1 less the distance to the reference rating, in widths of the scale."""
    ended: float = Field(0.5, ge=0)
    """The output ended by itself and has a verdict at its slot: 1, else 0."""
    length: float = Field(0.0, ge=0)
    """Minus the output's share of the longest one that is allowed."""


class JudgeGRPOConfig(JudgeTrainingConfig):
    """Config of a judge's training on the verdicts of its own outputs: `method: grpo`."""

    method: Literal["grpo"]
    """How the judge learns."""
    rewards: OutcomeRewards = OutcomeRewards()
    """Weights of the rewards."""
    expected: bool = False
    """Whether `order` and `distance` take the expected rating at the slot of the output, in place
    of the rating that is written there. Equal ratings then have a signal too."""
    outputs: int = Field(8, ge=2)
    """Outputs sampled for each prompt, which are compared with each other."""
    max_tokens: int = Field(1024, ge=1)
    """Longest output after its thinking, in tokens."""
    thinking_tokens: int = Field(1024, ge=1)
    """Longest thinking block, in tokens, for a format that has one."""
    temperature: float = Field(1.0, gt=0)
    """Sampling temperature."""
    kl: float = Field(0.0, ge=0)
    """Weight of the KL divergence from the initial judge."""
    learning_rate: float = Field(1e-6, gt=0)
    """Peak learning rate, reached after the warm-up; a cosine schedule then takes it to 0."""
    epochs: float = Field(1.0, gt=0)
    """Passes over the mix."""
    mix: MixConfig = MixConfig(rated=1)
    """Number of times that an epoch asks about each kind of row: `rated` responses, `compared`
    pairs in both orders, the two responses of `preferred` pairs each alone, and `ranked` groups in
    one prompt."""
    trainer: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of TRL's GRPOConfig by their names there, such as `use_vllm: true`."""

    @model_validator(mode="after")
    def _require_sense(self) -> JudgeGRPOConfig:
        _require_room(self.max_tokens, self.max_length, "max_tokens")
        _refuse_arguments(self.trainer, SET_ELSEWHERE_GRPO)
        if self.expected and not (self.mix.rated or self.mix.preferred):
            raise ValueError(
                "expected is for ratings, and the mix asks for none: set expected: false, or a "
                "mix.rated or mix.preferred above 0"
            )
        return self


class SampleConfig(Block):
    """Outputs that `autoj train judge sample` draws, and the pairs that it makes of them."""

    outputs: int = Field(8, ge=2, le=64)
    """Outputs sampled for each question."""
    pairs: int = Field(1, ge=1)
    """Pairs of a right and a wrong output that are kept of a question at most."""
    margin: float = Field(1.0, gt=0)
    """Points of rating by which the wrong output of a rated response must be farther from the
    reference than the right one, which is the nearest."""
    temperature: float = Field(1.0, gt=0)
    """Sampling temperature."""
    max_tokens: int = Field(1024, ge=1)
    """Longest output after its thinking, in tokens, also in validations."""
    thinking_tokens: int = Field(1024, ge=1)
    """Longest thinking block, in tokens, for a format that has one, also in validations."""
    engine: dict[str, Any] = Field(default_factory=dict)
    """Further keys of a judge by their names there, for its engine and replicas, such as
    `kv_cache_gib: 1`, `serve: {num_cpus: 2}` or `tensor_parallel: 2`. By default each GPU has a
    replica."""


class JudgeDPOConfig(JudgeTrainingConfig):
    """Config of a judge's training on pairs of its own right and wrong outputs: `method: dpo`.

    `autoj train judge sample` writes the pairs, and `autoj train judge` trains on them, both with
    this run file.
    """

    method: Literal["dpo"]
    """How the judge learns."""
    pairs: Path | None = None
    """File of the pairs, which `autoj train judge sample` writes. null: beside the output folder,
    with its name and `_pairs.jsonl`."""
    sample: SampleConfig = SampleConfig()
    """Settings of `autoj train judge sample`."""
    beta: float = Field(0.1, gt=0)
    """Weight of the KL divergence from the initial judge in the loss (DPO's beta)."""
    learning_rate: float = Field(1e-6, gt=0)
    """Peak learning rate, reached after the warm-up; a cosine schedule then takes it to 0."""
    epochs: float = Field(1.0, gt=0)
    """Passes over the mix."""
    mix: MixConfig = MixConfig(rated=1)
    """Number of times that an epoch shows the pairs of each kind of row: `rated` responses,
    `compared` pairs in both orders, the two responses of `preferred` pairs each alone, and `ranked`
    groups in one prompt. Rows of a kind with 0 are not sampled either."""
    trainer: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of TRL's DPOConfig by their names there, such as
    `precompute_ref_log_probs: true`."""

    @model_validator(mode="after")
    def _check_engine(self) -> JudgeDPOConfig:
        own_keys = {"model", "revision", "format", "wrapper", *self.judge_keys()}
        if twice := sorted(own_keys & self.sample.engine.keys()):
            raise ValueError(f"sample.engine sets {', '.join(twice)}, as other keys here do")
        _require_room(self.sample.max_tokens, self.max_length, "sample.max_tokens")
        _refuse_arguments(self.trainer, SET_ELSEWHERE_DPO)
        self.sampled_judge()  # which refuses a key that it does not know
        return self

    @property
    def pairs_file(self) -> Path:
        """File of the pairs."""
        return self.pairs or self.output.with_name(f"{self.output.name}_pairs.jsonl")

    def judge_keys(self) -> dict[str, Any]:
        """Return the keys of the judge, beside its model and format, that sampling, training and
        validation share."""
        return {
            "max_model_len": self.max_length,
            "max_tokens": self.sample.max_tokens,
            "thinking_tokens": self.sample.thinking_tokens,
            "temperature": self.sample.temperature,
            # What counts is what the judge writes.
            "distribution": False,
            "over_long": "reject",
            "seed": self.seed,
        }

    def sampled_judge(self) -> JudgeConfig:
        """Return the judge that is sampled."""
        return JudgeConfig(
            model=self.model,
            revision=self.revision,
            format=self.format,
            wrapper=self.wrapper,
            **self.judge_keys() | self.sample.engine,
        )


SET_ELSEWHERE = {
    "output_dir": "output",
    "per_device_train_batch_size": "device_batch_size",
    "gradient_accumulation_steps": "batch_size",
    "num_train_epochs": "epochs",
    "max_steps": "max_steps",
    "learning_rate": "learning_rate",
    "warmup_steps": "warmup",
    "warmup_ratio": "warmup",
    "adam_beta1": "betas",
    "adam_beta2": "betas",
    "weight_decay": "weight_decay",
    "bf16": "dtype",
    "fp16": "dtype",
    "gradient_checkpointing": "gradient_checkpointing",
    "save_steps": "save_steps",
    "seed": "seed",
}
"""Arguments of TRL that keys of the run file set, with these keys."""
SET_ELSEWHERE_GRPO = SET_ELSEWHERE | {
    "num_generations": "outputs",
    "max_completion_length": "max_tokens",
    "temperature": "temperature",
    "beta": "kl",
    "reward_weights": "rewards",
    # Both questions of a pair are asked in one step.
    "shuffle_dataset": "batch_size",
    "steps_per_generation": "batch_size",
    "generation_batch_size": "batch_size",
}
SET_ELSEWHERE_DPO = SET_ELSEWHERE | {"beta": "beta", "max_length": "max_length"}


def _refuse_arguments(trainer: Mapping[str, Any], elsewhere: Mapping[str, str]) -> None:
    """Raise ValueError if `trainer` sets what another key of the run file does."""
    for name in trainer:
        if name in elsewhere:
            raise ValueError(f"trainer sets {name}, for which the run file has {elsewhere[name]}")


def _require_room(max_tokens: int, max_length: int, name: str) -> None:
    """Raise ValueError if outputs of the length of the key `name` leave nothing for a question."""
    if max_tokens >= max_length:
        raise ValueError(
            f"{name} {max_tokens} leaves no room for a question in max_length {max_length}"
        )


def sequences_of(config: TrainJudgeConfig) -> int:
    """Return the maximum sequences of an example: a group's size, 2 with preferred pairs, or 1."""
    if config.mix.ranked:
        return config.groups.size
    return 2 if config.mix.preferred else 1


def step_load(config: JudgeTrainingConfig, gpus: int) -> Training:
    """Return the memory load of a step on each of `gpus` GPUs.

    Raises ModelError for a model of unknown shape.
    """
    if isinstance(config, JudgeGRPOConfig):
        # A step is sampled at once, and full weights keep the first judge beside them for the KL.
        return replace(
            memory_load(config, 1),
            references=int(config.kl > 0 and config.lora is None),
            sampled=config.batch_size // gpus,
            # As long as an output can be, for a format with a thinking block.
            written=config.max_tokens + config.thinking_tokens,
        )
    if isinstance(config, JudgeDPOConfig):
        return dpo_load(config)
    assert isinstance(config, TrainJudgeConfig)
    return memory_load(config, sequences_of(config))


METHODS: dict[str, type[JudgeTrainingConfig]] = {
    "sft": TrainJudgeConfig,
    "grpo": JudgeGRPOConfig,
    "dpo": JudgeDPOConfig,
}
"""Config class of each method."""


def load_training(path: str | Path, sets: Sequence[str] = ()) -> JudgeTrainingConfig:
    """Read the run file of a judge's training, by the keys of the method that it names.

    Raises ConfigError as `load_config`, and for an unknown method.
    """
    method = read_config(path, sets).get("method", "sft")
    if method not in METHODS:
        raise ConfigError(f"{path}: method: {method!r} is none of {', '.join(METHODS)}")
    return load_config(METHODS[method], path, sets)
