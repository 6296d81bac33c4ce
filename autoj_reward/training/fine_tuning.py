"""What the trainings of judges and of scalar reward models have in common."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from autoj_reward.capacity.memory import Training
from autoj_reward.capacity.shape import find_shape
from autoj_reward.config import Block
from autoj_reward.data.labelled import JudgeData, data_files
from autoj_reward.errors import ConfigError, InputError
from autoj_reward.io.claims import claim
from autoj_reward.io.files import require_apart, write_json
from autoj_reward.io.provenance import describe_machine, installed_versions
from autoj_reward.io.stream import LISTED
from autoj_reward.models.device import AMPERE, device_here
from autoj_reward.training.adapters import linear_layers, lora_config
from autoj_reward.training.run import accumulation
from autoj_reward.types import BadRow


class LoraBlock(Block):
    """LoRA on every linear layer of the transformer blocks from `first_layer` up."""

    rank: int = Field(16, ge=1)
    alpha: float = Field(32, gt=0)
    dropout: float = Field(0.0, ge=0, lt=1)
    first_layer: int = Field(0, ge=0)


class FineTuningConfig(Block):
    """A training run; the defaults are the paper's recipe (section 4.4).

    model, revision: the base model. lora: null trains all weights.
    max_length: tokens of a whole example. bad_rows: `skip` names, counts and leaves out malformed
        and over-long rows; `stop` refuses to start with any.
    batch_size: examples an optimizer step, over all processes; device_batch_size: of these, at a
        time on one device.
    learning_rate: peak, after a warm-up over the share `warmup` of all steps; then cosine to 0.
    dtype: `auto` is bfloat16 (full weights: mixed precision) on a GPU and float32 on a CPU;
        `bfloat16` is faster on a CPU that has instructions for it.
    save_steps: optimizer steps between checkpoints.
    """

    model: str
    revision: str | None = None
    data: JudgeData
    output: Path
    lora: LoraBlock | None = None
    max_length: int = Field(4096, ge=64)
    bad_rows: Literal["skip", "stop"] = "skip"
    batch_size: int = Field(64, ge=1)
    device_batch_size: int = Field(1, ge=1)
    learning_rate: float = Field(1e-5, gt=0)
    warmup: float = Field(0.03, ge=0, lt=1)
    weight_decay: float = Field(0.1, ge=0)
    betas: tuple[float, float] = (0.9, 0.95)
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    gradient_checkpointing: bool = False
    save_steps: int = Field(50, ge=1)
    seed: int = 0

    @model_validator(mode="after")
    def _whole_batches(self) -> FineTuningConfig:
        if self.batch_size % self.device_batch_size:
            raise ValueError(
                f"batch_size {self.batch_size} is no multiple of device_batch_size "
                f"{self.device_batch_size}"
            )
        return self


def claim_output(
    config: FineTuningConfig, files: Sequence[str], adapter: Path | None = None
) -> None:
    """Make the output folder this run's, unless something that the run reads lies in it.

    files: data beside the config's own. adapter: what the run goes on from. Raises OutputError, or
    ConfigError as of `claim`.
    """
    read = (config.model, adapter, *data_files(config.data, *files))
    require_apart(read, folder=config.output)
    claim(config.output, config, changeable={"output", "save_steps"})


def refuse_bad(config: FineTuningConfig, bad: Sequence[BadRow]) -> None:
    """InputError with the first bad rows, if the config says to stop at any."""
    if bad and config.bad_rows == "stop":
        lines = [f"{len(bad)} rows cannot be trained on; correct them, or set bad_rows: skip"]
        raise InputError("\n  ".join([*lines, *map(str, bad[:LISTED])]))


def common_arguments(config: FineTuningConfig, steps: int) -> dict[str, Any]:
    """The Trainer's arguments for a schedule of that many optimizer steps.

    Raises ConfigError for a batch that the processes cannot share, or several GPUs in one process.
    """
    passes = accumulation(config.batch_size, config.device_batch_size)
    if (gpus := _gpus()) > 1 and "LOCAL_RANK" not in os.environ:
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
        "tf32": True if on_gpu() and device_here().capability >= AMPERE else None,
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
    """The Trainer's arguments for arithmetic in half precision: on GPUs unless float32 is named, in
    float16 on cards without bfloat16."""
    half = dtype == "bfloat16" or (on_gpu() and dtype != "float32")
    bf16 = half and (dtype == "bfloat16" or device_here().half == "bfloat16")
    return {"bf16": bf16, "fp16": half and not bf16}


def memory_load(config: FineTuningConfig, sequences: int) -> Training:
    """A step's load, with so many sequences an example. Raises ModelError for a shape not known."""
    return Training(
        find_shape(config.model),
        sequences=sequences * config.device_batch_size,
        length=config.max_length,
        lora_rank=config.lora.rank if config.lora else None,
        checkpointing=config.gradient_checkpointing,
    )


def _gpus() -> int:
    import torch

    return int(torch.cuda.device_count())


def on_gpu() -> bool:
    """Whether this machine trains on a GPU."""
    return _gpus() > 0


def weights_dtype(config: FineTuningConfig) -> Any:
    """The torch dtype that a run's weights are loaded in."""
    import torch

    # Full weights stay in float32 beside bfloat16 arithmetic: updates of 1e-5 vanish in bfloat16.
    half = half_precision(config.dtype)
    frozen = torch.bfloat16 if half["bf16"] else torch.float16 if half["fp16"] else torch.float32
    return frozen if config.lora or config.dtype == "bfloat16" else torch.float32


def with_lora(model: Any, lora: LoraBlock, task: str) -> Any:
    """The model with a fresh adapter for one of PEFT's tasks; with SEQ_CLS the head `score` is
    trained and saved whole beside it."""
    from peft import get_peft_model

    blocks = list(range(lora.first_layer, model.config.num_hidden_layers))
    config = lora_config(
        lora.rank,
        task,
        alpha=lora.alpha,
        dropout=lora.dropout,
        target_modules=linear_layers(model),
        layers_to_transform=blocks,
    )
    return get_peft_model(model, config)


def freeze_below(model: Any, first_layer: int) -> None:
    """Train an adapter from this block up alone; what it has below stays as it is."""
    for name, parameter in model.named_parameters():
        block = re.search(r"\.layers\.(\d+)\.", name)
        if block and int(block[1]) < first_layer:
            parameter.requires_grad_(False)


def save_weights(
    trainer: Any, config: FineTuningConfig, name: str, merge: Callable[[Path, Path], None]
) -> None:
    """Full weights in the folder `name` of the output; with LoRA the adapter, fit to be published,
    in `adapter/`, and in `name` what `merge` makes of it: (adapter, target)."""
    target = config.output / name
    folder = config.output / "adapter" if config.lora else target
    trainer.save_model(str(folder))
    if not trainer.is_world_process_zero():
        return
    (folder / "training_args.bin").unlink(missing_ok=True)  # a pickle
    if config.lora:
        for path in folder.iterdir():  # the tokenizer is the base's, the card is yet to write
            if not path.name.startswith("adapter_"):
                path.unlink()
        slim_adapter(folder, config.model)
        merge(folder, target)


def write_record(
    trainer: Any, config: FineTuningConfig, command: str, seconds: float, found: Mapping[str, Any]
) -> dict[str, Any]:
    """Write `training.json`: what was found, and by which command, config, versions and machine.

    seconds: since the last start. found: data and validation.
    """
    record = {
        "command": command,
        "config": json.loads(config.model_dump_json(exclude={"data": {"folder"}, "output": True})),
        **found,
        "steps": trainer.state.global_step,
        "history": trainer.state.log_history,
        "seconds_since_last_start": round(seconds),
        "machine": describe_machine(),
        "versions": installed_versions(),
    }
    if trainer.is_world_process_zero():
        write_json(config.output / "training.json", record)
    return record


def slim_adapter(folder: Path, base: str) -> None:
    """Make a saved adapter fit to be published: float16, and the base by its configured name."""
    from safetensors.torch import load_file, save_file

    weights = folder / "adapter_model.safetensors"
    halved = {name: value.half() for name, value in load_file(weights).items()}
    save_file(halved, weights, metadata={"format": "pt"})
    # A path into this machine's cache would mean nothing elsewhere.
    path = folder / "adapter_config.json"
    facts = json.loads(path.read_text(encoding="utf-8"))
    facts["base_model_name_or_path"] = base
    path.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
