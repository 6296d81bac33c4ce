"""What a training run settles before its trainer: passes of a batch, and where its logs go."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from autoj_reward.capacity.memory import Training, TrainingDevices, require_room
from autoj_reward.errors import ConfigError, ModelError
from autoj_reward.models.device import device_here
from autoj_reward.processes import processes


def accumulation(batch_size: int, device_batch_size: int) -> int:
    """Backward passes of each process for one optimizer step of batch_size examples.

    Raises ConfigError for a batch that the processes cannot share.
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
    """Whether accelerate was launched with FSDP."""
    return os.environ.get("ACCELERATE_USE_FSDP", "").lower() in ("1", "true")


def require_fit(load: Callable[[], Training]) -> None:
    """ConfigError with the numbers for a training that does not fit on this machine's GPUs.

    Passes a CPU, and a model whose shape is not known."""
    device = device_here()
    if device.kind == "cpu":
        return
    try:
        training = load()
    except ModelError:
        return
    require_room(training, TrainingDevices(device.memory_gib, processes(), sharded()))


def log_to(folder: Path) -> None:
    """Let this process's trainer write for TensorBoard there: it reads that from the environment
    alone."""
    os.environ["TENSORBOARD_LOGGING_DIR"] = str(folder)
