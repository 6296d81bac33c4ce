"""Where the trainer and the judge that starts with it run: cores and GPUs shared out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from autoj_reward.config import RewardConfig
from autoj_reward.errors import ConfigError
from autoj_reward.trainer.reward import RewardModel


def is_main_process() -> bool:
    """Whether this is the one process of several that writes what the run shares."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def beside_judge(config: RewardConfig, threads: int | None) -> Iterator[RewardModel]:
    """An opened reward model, with the machine shared out between it and the trainer.

    Without a GPU the trainer keeps `threads` cores to itself (half of them by default), and
    replicas that start with the run get the others. With several GPUs the trainer keeps the first,
    and the replicas get the others. Beside a running service the trainer keeps to `threads` cores,
    if given.

    Raises ConfigError where several training processes would each start a judge.
    """
    if config.started and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            "several training processes share one judge: start it with `autoj serve` and name its "
            "address in reward.service"
        )
    model = RewardModel(config)
    own_judge = any(judge.kind == "vllm" for judge in config.started)
    try:
        if own_judge:
            _share_out(model, threads)
        elif threads:
            _keep(threads)
        model.open()
        yield model
    finally:
        model.close()


def _share_out(model: RewardModel, threads: int | None) -> None:
    """Open the model where the judge's processes belong, then go where the trainer does."""
    import torch

    gpus = torch.cuda.device_count()
    if gpus > 1:
        shown = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))
        first, _, others = shown.partition(",")
        os.environ["CUDA_VISIBLE_DEVICES"] = others
        model.open()
        os.environ["CUDA_VISIBLE_DEVICES"] = first
    elif not gpus and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        own = threads or max(1, len(cores) // 2)
        # Threads and processes inherit the cores of the thread that starts them.
        os.sched_setaffinity(0, cores[own:] or cores)
        model.open()
        os.sched_setaffinity(0, cores)
        _keep(own)


def _keep(threads: int) -> None:
    """Run on the first `threads` cores alone."""
    import torch

    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    torch.set_num_threads(threads)
