"""What every training run settles for its trainer: batches, device, and where its logs go."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

from autoj_reward.errors import ConfigError


class Batches(Protocol):
    """The keys that all configs of trainings have."""

    @property
    def batch_size(self) -> int: ...
    @property
    def device_batch_size(self) -> int: ...
    @property
    def learning_rate(self) -> float: ...
    @property
    def save_steps(self) -> int: ...


def trainer_arguments(config: Batches, output: Path, bf16: bool) -> dict[str, Any]:
    """Arguments that all of transformers' and TRL's trainers take.

    output: gets the checkpoints. bf16: mixed precision. Raises ConfigError for a batch that the
    processes cannot share.
    """
    return {
        "output_dir": str(output),
        "per_device_train_batch_size": config.device_batch_size,
        "gradient_accumulation_steps": accumulation(config.batch_size, config.device_batch_size),
        "learning_rate": config.learning_rate,
        "save_steps": config.save_steps,
        "save_total_limit": 2,
        "logging_steps": 1,
        "report_to": ["tensorboard"],
        "use_cpu": not on_gpu(),
        "bf16": bf16,
    }


def accumulation(batch_size: int, device_batch_size: int) -> int:
    """Backward passes of each process for one optimizer step of batch_size examples.

    Raises ConfigError for a batch that the processes cannot share.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    passes, rest = divmod(batch_size, device_batch_size * world)
    if rest or not passes:
        raise ConfigError(
            f"batch_size {batch_size} is no multiple of {world} processes times "
            f"device_batch_size {device_batch_size}"
        )
    return passes


def log_to(folder: Path) -> None:
    """Let this process's trainer write for TensorBoard there: it reads that from the environment
    alone."""
    os.environ["TENSORBOARD_LOGGING_DIR"] = str(folder)


def gpus() -> int:
    """The GPUs of this machine."""
    import torch

    return int(torch.cuda.device_count())


def on_gpu() -> bool:
    """Whether this machine trains on a GPU."""
    return gpus() > 0
