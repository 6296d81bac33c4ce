"""The policy that learns: its config, weights, tokenizer, prompts, and arguments of its trainer."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field

from autoj_reward.config import Block, EngineConfig, JudgedConfig, RewardConfig
from autoj_reward.conversation import ContextColumn, media_of, messages_of
from autoj_reward.errors import ConfigError, InputError
from autoj_reward.io.candidates import read_queries
from autoj_reward.io.rows import require_usable
from autoj_reward.media import explain_media
from autoj_reward.models import resolve
from autoj_reward.models.device import detect_device
from autoj_reward.thinking import KNOWN_MARKS, opened_at_end
from autoj_reward.trainer.parts import reward_judges
from autoj_reward.trainer.prompts import Beside, ContextFields
from autoj_reward.training.common import (
    accumulation,
    half_precision,
    lora_config,
    on_gpu,
    set_own_pad,
)
from autoj_reward.types import BadRow

J = TypeVar("J", bound=JudgedConfig)


class LearnerConfig(Block):
    """The policy that is trained, and how it samples."""

    model: str = "smollm2-135m-instruct"
    """Name on the model hub, or a local folder."""
    revision: str | None = None
    """Branch, tag or commit of a model on the hub. null: its main branch."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Number type of the weights. `auto` is half precision with LoRA on a GPU, else float32."""
    lora_rank: int | None = Field(None, ge=1)
    """Rank of a LoRA adapter. null trains all weights."""
    max_prompt_tokens: int = Field(512, ge=1)
    """Longest prompt in tokens. Longer ones are named and left out."""
    max_response_tokens: int = Field(256, ge=1)
    """Longest response in tokens."""
    temperature: float = Field(1.0, gt=0)
    """Sampling temperature."""
    system: str | None = None
    """System prompt for rows without a system turn of their own. null: none."""


class TrainConfig(Block):
    """Settings of a run of PPO, GRPO, RLOO or online DPO."""

    input: str
    """Rows of `query`, as for best-of-n, with the context fields that the judge shows."""
    output: Path
    """Folder for checkpoints, logs and the trained policy."""
    learner: LearnerConfig = LearnerConfig()
    """The policy that is trained."""
    reward: RewardConfig = RewardConfig()
    """The judge, and how its judgements become rewards."""
    steps: int = Field(100, ge=1)
    """Optimizer steps."""
    batch_size: int = Field(8, ge=1)
    """Responses in a step (pairs for online DPO), over all processes."""
    device_batch_size: int = Field(8, ge=1)
    """Responses (or pairs) that one device processes at a time."""
    group: int = Field(4, ge=2)
    """Responses to each query in GRPO and RLOO."""
    learning_rate: float = Field(1e-6, gt=0)
    """Learning rate of the optimizer."""
    kl: float = Field(0.05, ge=0)
    """Weight of the KL divergence from the initial policy."""
    pairwise: bool = False
    """Whether online DPO orders its pairs by comparisons in both orders, not by two ratings."""
    save_steps: int = Field(50, ge=1)
    """Steps between checkpoints."""
    seed: int = 0
    """Random seed of the run."""
    threads: int | None = Field(None, ge=1)
    """CPU cores for the trainer on a machine without GPUs. null: half of them beside a judge that
    starts with the run, else all."""
    trainer: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of the TRL trainer's own config, by their names there."""


Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Learner:
    """Model, tokenizer and prompts that a trainer starts from."""

    path: str
    """Folder or hub name of the policy."""
    tokenizer: Any
    prompts: tuple[list[Message], ...]
    """One conversation for each row of the input."""
    columns: dict[str, tuple[str | None, ...]] = field(default_factory=dict)
    """Context fields that the judge shows: a text or None for each row, by column."""

    @property
    def rows(self) -> dict[str, Any]:
        """Return the trainer's dataset by column: prompts and context fields."""
        return {"prompt": self.prompts, **self.columns}


def load_learner(config: TrainConfig) -> Learner:
    """Load the tokenizer and the prompts of a run. Prompts that are too long are left out.

    The prompts are repeated until they fill a batch. Raises InputError if none is left.
    """
    path, tokenizer = load_policy_tokenizer(config.learner)
    context_columns = ContextFields(config.reward, reward_judges(config.reward)).asked
    rows = read_prompts(config, tokenizer, context_columns)
    # Trainers drop a batch that is not full, so fewer prompts than a batch would train nothing.
    rows *= math.ceil(config.batch_size / len(rows))
    columns = {
        column.column: tuple(_column_text(beside, column) for _, beside in rows)
        for column in context_columns
    }
    return Learner(path, tokenizer, tuple(prompt for prompt, _ in rows), columns)


def _column_text(beside: Beside, column: ContextColumn) -> str | None:
    """Return a row's text in a column of the trainer's dataset; rubric items as JSON."""
    if not column.items:
        return beside.context.get(column.field)
    items = [item.record() for item in beside.rubric]
    return json.dumps(items, ensure_ascii=False) if items else None


def load_policy(learner: LearnerConfig, path: str, tokenizer: Any) -> Any:
    """Load the policy's weights from a folder or the hub."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, **model_options(learner))
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model


def model_options(learner: LearnerConfig) -> dict[str, Any]:
    """Return the `revision` and torch `dtype` to load a policy with.

    `auto` is half precision with LoRA on a GPU, else float32.
    """
    import torch

    dtype: str = learner.dtype
    if dtype == "auto":
        device = detect_device()
        half = learner.lora_rank and device.kind == "cuda"
        dtype = device.half if half else "float32"
    return {"revision": learner.revision, "dtype": getattr(torch, dtype)}


def load_policy_tokenizer(learner: LearnerConfig) -> tuple[str, Any]:
    """Load the tokenizer; return the model's folder or hub name, and the tokenizer.

    It pads on the left, with a pad token that differs from the end token.
    """
    from transformers import AutoTokenizer

    path = resolve(EngineConfig(model=learner.model, revision=learner.revision)).path
    tokenizer = AutoTokenizer.from_pretrained(path, revision=learner.revision, padding_side="left")
    set_own_pad(tokenizer)
    return path, tokenizer


def mark_opened_thinking(config: RewardConfig, tokenizer: Any) -> RewardConfig:
    """Return the reward config with the block of thinking that the policy's template opens.

    A judge reads conversations, which do not show what the template wrote. Judges that name their
    own `thinking_marks` keep them.
    """
    question = [{"role": "user", "content": "Why?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, tokenize=False)
    opened_by = opened_at_end(prompt)
    if opened_by is None:
        return config
    marks = {"": opened_by.close} | {known.open: known.close for known in KNOWN_MARKS}

    def mark(judged: J) -> J:
        if judged.judge.thinking_marks is not None:
            return judged
        judge = judged.judge.model_copy(update={"thinking_marks": marks})
        return judged.model_copy(update={"judge": judge})

    parts = {name: part if part.function else mark(part) for name, part in config.parts.items()}
    audit = config.audit and mark(config.audit)
    return mark(config).model_copy(update={"parts": parts, "audit": audit})


def read_prompts(
    config: TrainConfig, tokenizer: Any, context_columns: Sequence[ContextColumn]
) -> tuple[tuple[list[Message], Beside], ...]:
    """Return the conversations that the policy answers, each with what stands beside it.

    A row's own system turn replaces `learner.system`. Raises InputError if no prompt is left.
    """
    queries = read_queries(config.input, context_columns, config.reward.columns)
    require_usable(queries, config.input)
    system = config.learner.system
    head = [{"role": "system", "content": system}] if system else []
    prompts, limit = [], config.learner.max_prompt_tokens
    for row in queries.rows:
        if media := explain_media(media_of(row.prompt.turns), "policies"):
            print(f"left out {BadRow(config.input, row.line, 'messages', media)}", file=sys.stderr)
            continue
        turns = messages_of(row.prompt.as_turns)
        has_system = turns[0]["role"] == "system"
        prompt = turns if has_system else [*head, *turns]
        ids = tokenizer.apply_chat_template(prompt, add_generation_prompt=True)["input_ids"]
        if len(ids) > limit:
            reason = f"{len(ids)} tokens, learner.max_prompt_tokens is {limit}"
            print(f"left out {BadRow(config.input, row.line, 'query', reason)}", file=sys.stderr)
        else:
            prompts.append((prompt, Beside(row.context, row.rubric)))
    if not prompts:
        raise InputError(f"{config.input}: every prompt is over learner.max_prompt_tokens {limit}")
    return tuple(prompts)


def trainer_arguments(config: TrainConfig) -> dict[str, Any]:
    """Return the arguments that TRL's configs have in common; `trainer` overrides them."""
    steps = accumulation(config.batch_size, config.device_batch_size)
    return {
        "output_dir": str(config.output),
        "per_device_train_batch_size": config.device_batch_size,
        "gradient_accumulation_steps": steps,
        "learning_rate": config.learning_rate,
        "logging_steps": 1,
        "save_steps": config.save_steps,
        "save_total_limit": 2,
        "report_to": ["tensorboard"],
        "use_cpu": not on_gpu(),
        **half_precision(config.learner.dtype),
        "seed": config.seed,
    }


def import_object(name: str) -> Any:
    """Import and return the object that `module:name` names."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


def require_arguments(key: str, settings: Mapping[str, Any], arguments: str) -> None:
    """Raise ConfigError for a name that the trainer's class of arguments does not have.

    key: the config key that holds them. arguments: the class, as `module:name`. The class is not
    instantiated, since it would look for devices before the judge has been given its share.
    """
    if not settings:
        return
    known_names = [field.name for field in fields(import_object(arguments)) if field.init]
    for name in settings:
        if name not in known_names:
            near = get_close_matches(name, known_names, 1)
            hint = f"did you mean {key}.{near[0]}?" if near else "see TRL's documentation"
            raise ConfigError(
                f"unknown key '{key}.{name}': {arguments.partition(':')[2]} of TRL has no such "
                f"argument; {hint}"
            )


def lora(learner: LearnerConfig) -> Any:
    """Return PEFT's LoRA config, or None if all weights are trained."""
    return learner.lora_rank and lora_config(learner.lora_rank, "CAUSAL_LM")
