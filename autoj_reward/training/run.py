"""What a training run settles before its trainer: passes of a batch, and where its logs go."""

from __future__ import annotations

import os
from pathlib import Path

from autoj_reward.errors import ConfigError


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
