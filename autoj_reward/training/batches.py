"""A batch shared out among processes and passes."""

from __future__ import annotations

import os

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
