"""Config and set-up shared by the trainings of policies, judges and scalar reward models."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from autoj_reward.capacity.memory import Training, TrainingDevices, find_shape, require_memory
from autoj_reward.config import Block
from autoj_reward.data.labelled import JudgeData, data_files
from autoj_reward.errors import ConfigError, InputError, ModelError
from autoj_reward.io.claims import claim
from autoj_reward.io.files import require_apart
from autoj_reward.io.rows import LISTED
from autoj_reward.models.device import AMPERE, detect_device
from autoj_reward.processes import processes
from autoj_reward.types import BadRow


class LoraBlock(Block):
    """LoRA adapter on every linear layer of the transformer blocks from `first_layer` up."""

    rank: int = Field(16, ge=1)
    """Rank of the adapter matrices."""
    alpha: float = Field(32, gt=0)
    """LoRA scaling numerator: updates are scaled by alpha / rank."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout probability on the adapter's input."""
    first_layer: int = Field(0, ge=0)
    """Index of the first transformer block with an adapter."""


class FineTuningConfig(Block):
    """A training run; the defaults are the paper's recipe (section 4)."""

    model: str
    """The base model."""
    revision: str | None = None
    """Revision of the base model; null takes the default one."""
    data: JudgeData
    """Training and validation rows."""
    output: Path
    """Output folder of the run."""
    lora: LoraBlock | None = None
    """null trains all weights."""
    max_length: int = Field(4096, ge=64)
    """Maximum length of an example in tokens."""
    bad_rows: Literal["skip", "stop"] = "skip"
    """`skip` names, counts and leaves out malformed and over-long rows; `stop` refuses to start."""
    batch_size: int = Field(64, ge=1)
    """Examples per optimizer step, over all processes."""
    device_batch_size: int = Field(1, ge=1)
    """Examples per forward pass on one device."""
    learning_rate: float = Field(1e-5, gt=0)
    """Peak learning rate, reached after the warm-up; a cosine schedule then takes it to 0."""
    warmup: float = Field(0.03, ge=0, lt=1)
    """Share of all steps spent on warm-up."""
    weight_decay: float = Field(0.1, ge=0)
    """Weight decay of the optimizer."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Adam's beta1 and beta2."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """`auto` is bfloat16 (full weights: mixed precision) on a GPU and float32 on a CPU; `bfloat16`
    is faster on a CPU that has instructions for it."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass, which saves memory and costs time."""
    save_steps: int = Field(50, ge=1)
    """Optimizer steps between checkpoints."""
    seed: int = 0
    """Seed of data order and initialisation."""

    @model_validator(mode="after")
    def _require_whole_batches(self) -> FineTuningConfig:
        if self.batch_size % self.device_batch_size:
            raise ValueError(
                f"batch_size {self.batch_size} is no multiple of device_batch_size "
                f"{self.device_batch_size}"
            )
        return self


def claim_output(
    config: FineTuningConfig, files: Sequence[str], adapter: Path | None = None
) -> None:
    """Claim the output folder for this run's config.

    files: data files beside the config's own. adapter: folder of the adapter to continue from.
    Raises OutputError if an input of the run lies in the folder, ConfigError as of `claim`.
    """
    inputs = (config.model, adapter, *data_files(config.data, *files))
    require_apart(inputs, folder=config.output)
    claim(config.output, config, changeable={"output", "save_steps"})


def refuse_bad(config: FineTuningConfig, bad: Sequence[BadRow]) -> None:
    """Raise InputError with the first bad rows if there are any and `bad_rows` is `stop`."""
    if bad and config.bad_rows == "stop":
        lines = [f"{len(bad)} rows cannot be trained on; correct them, or set bad_rows: skip"]
        raise InputError("\n  ".join([*lines, *map(str, bad[:LISTED])]))


def explain_no_row(bad: Sequence[BadRow]) -> InputError:
    """Return the error of a run without a row to train on, with the first of its bad rows."""
    reason = "no row is left to train on; see data, mix and max_length in the config"
    if not bad:
        return InputError(reason)
    lines = [f"{reason}. {len(bad)} rows are left out", *map(str, bad[:LISTED])]
    return InputError("\n  ".join(lines))


def common_arguments(config: FineTuningConfig, steps: int) -> dict[str, Any]:
    """Return the Trainer's arguments for a schedule of `steps` optimizer steps.

    Raises ConfigError if the batch does not divide among the processes, or if one process sees
    several GPUs.
    """
    passes = accumulation(config.batch_size, config.device_batch_size)
    if (gpus := _count_gpus()) > 1 and "LOCAL_RANK" not in os.environ:
        raise ConfigError(
            f"{gpus} GPUs and one process: start it with accelerate launch, or show it "
            "one GPU by CUDA_VISIBLE_DEVICES"
        )
    return {
        "output_dir": str(config.output),
        "per_device_train_batch_size": config.device_batch_size,
        "per_device_eval_batch_size": config.device_batch_size,
        "gradient_accumulation_steps": passes,
        "learning_rate": config.learning_rate,
        "lr_scheduler_type": "cosine",
        "warmup_steps": math.ceil(config.warmup * steps),
        "adam_beta1": config.betas[0],
        "adam_beta2": config.betas[1],
        "weight_decay": config.weight_decay,
        **half_precision(config.dtype),
        "tf32": True if on_gpu() and detect_device().capability >= AMPERE else None,
        "gradient_checkpointing": config.gradient_checkpointing,
        "save_steps": config.save_steps,
        "save_total_limit": 2,
        "logging_steps": 5,
        "report_to": ["tensorboard"],
        "dataloader_pin_memory": on_gpu(),
        "use_cpu": not on_gpu(),
        "seed": config.seed,
    }


def half_precision(dtype: str) -> dict[str, bool]:
    """Return the Trainer's `bf16` and `fp16` arguments for a dtype of the config.

    `auto` is half precision on a GPU (float16 on cards without bfloat16), float32 on a CPU.
    """
    half = dtype == "bfloat16" or (on_gpu() and dtype != "float32")
    bf16 = half and (dtype == "bfloat16" or detect_device().half == "bfloat16")
    return {"bf16": bf16, "fp16": half and not bf16}


def memory_load(config: FineTuningConfig, sequences: int) -> Training:
    """Return the memory load of a step. Raises ModelError for a model of unknown shape.

    sequences: number of sequences per example.
    """
    return Training(
        find_shape(config.model),
        sequences=sequences * config.device_batch_size,
        length=config.max_length,
        lora_rank=config.lora.rank if config.lora else None,
        checkpointing=config.gradient_checkpointing,
    )


def dpo_load(config: FineTuningConfig) -> Training:
    """Return the memory load of a step of DPO. Raises ModelError for a model of unknown shape.

    Both outputs of a pair are one forward pass. Beside full weights the initial ones are kept.
    """
    return replace(memory_load(config, 2), references=int(config.lora is None))


def _count_gpus() -> int:
    import torch

    return int(torch.cuda.device_count())


def on_gpu() -> bool:
    """Return whether this machine has a GPU to train on."""
    return _count_gpus() > 0


def weights_dtype(config: FineTuningConfig) -> Any:
    """Return the torch dtype that a run's weights are loaded in."""
    import torch

    # Full weights stay in float32 beside bfloat16 arithmetic: updates of 1e-5 vanish in bfloat16.
    half = half_precision(config.dtype)
    frozen = torch.bfloat16 if half["bf16"] else torch.float16 if half["fp16"] else torch.float32
    return frozen if config.lora or config.dtype == "bfloat16" else torch.float32


def with_lora(model: Any, lora: LoraBlock, task: str) -> Any:
    """Return the model with a new adapter for a PEFT task type.

    With SEQ_CLS the head `score` is trained too, and saved in full with the adapter.
    """
    from peft import get_peft_model

    return get_peft_model(model, adapter_config(model, lora, task))


def adapter_config(model: Any, lora: LoraBlock, task: str) -> Any:
    """Return PEFT's config of a new adapter of a model, for a PEFT task type.

    Raises ConfigError if the model has no block from `lora.first_layer` up.
    """
    blocks = model.config.num_hidden_layers
    if lora.first_layer >= blocks:
        # PEFT would take an empty list of blocks for all of them.
        raise ConfigError(
            f"lora.first_layer is {lora.first_layer}, and the model has {blocks} blocks: set it "
            f"below {blocks}"
        )
    return lora_config(
        lora.rank,
        task,
        alpha=lora.alpha,
        dropout=lora.dropout,
        target_modules=linear_layers(model),
        layers_to_transform=list(range(lora.first_layer, blocks)),
    )


def freeze_below(model: Any, first_layer: int) -> None:
    """Freeze the parameters of the transformer blocks below `first_layer`."""
    for name, parameter in model.named_parameters():
        block = re.search(r"\.layers\.(\d+)\.", name)
        if block and int(block[1]) < first_layer:
            parameter.requires_grad_(False)


def accumulation(batch_size: int, device_batch_size: int) -> int:
    """Return the gradient accumulation steps for `batch_size` examples per optimizer step.

    Raises ConfigError if the batch does not divide among the processes.
    """
    world = processes()
    passes, rest = divmod(batch_size, device_batch_size * world)
    if rest or not passes:
        raise ConfigError(
            f"batch_size {batch_size} is no multiple of {world} processes times "
            f"device_batch_size {device_batch_size}"
        )
    return passes


def sharded() -> bool:
    """Return whether accelerate was launched with FSDP."""
    return os.environ.get("ACCELERATE_USE_FSDP", "").lower() in ("1", "true")


def require_fit(load: Callable[[], Training]) -> None:
    """Raise ConfigError with the numbers if a training does not fit on this machine's GPUs.

    Nothing is checked on a CPU or for a model of unknown shape.
    """
    device = detect_device()
    if device.kind == "cpu":
        return
    try:
        training = load()
    except ModelError:
        return
    require_memory(training, TrainingDevices(device.memory_gib, processes(), sharded()))


def log_to(folder: Path) -> None:
    """Set the environment variable that makes the Trainer write TensorBoard logs to `folder`."""
    os.environ["TENSORBOARD_LOGGING_DIR"] = str(folder)


def lora_config(
    rank: int, task: str, *, alpha: float | None = None, dropout: float = 0.0, **where: Any
) -> Any:
    """Return PEFT's LoRA config for a task type. alpha: None for twice the rank.

    where: PEFT's `target_modules` and `layers_to_transform`; by default every linear layer.
    """
    from peft import LoraConfig

    return LoraConfig(
        r=rank,
        lora_alpha=2 * rank if alpha is None else alpha,
        lora_dropout=dropout,
        task_type=task,
        **{"target_modules": "all-linear", **where},
    )


def linear_layers(model: Any) -> list[str]:
    """Return the names of the linear layers in a model's transformer blocks."""
    import torch

    modules = model.named_modules()
    linear = (n for n, m in modules if isinstance(m, torch.nn.Linear) and ".layers." in n)
    return sorted({name.rpartition(".")[2] for name in linear})


def set_own_pad(tokenizer: Any) -> None:
    """Set an unused special token as pad token if it is missing or equals the end of sequence."""
    if tokenizer.pad_token_id in (None, tokenizer.eos_token_id):
        tokenizer.pad_token = _find_unused_token(tokenizer)


def _find_unused_token(tokenizer: Any) -> str:
    """Return a special token that is neither the end of sequence nor part of the chat template."""
    rendered_text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}], tokenize=False
    )
    for token in tokenizer.all_special_tokens:
        if token not in rendered_text and token != tokenizer.eos_token:
            return str(token)
    raise ConfigError(
        f"the tokenizer of {tokenizer.name_or_path} has no token to pad with but its end of "
        "sequence: save it with a pad token of its own and name that folder"
    )
