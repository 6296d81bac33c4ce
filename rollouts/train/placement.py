"""Where the trainer and the judge that starts with it run: cores and GPUs shared out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING

from autoj_reward.config import JudgeConfig, RewardConfig
from autoj_reward.errors import ConfigError
from autoj_reward.extras import from_extras
from autoj_reward.trainer.reward import RewardModel

if TYPE_CHECKING:
    from autoj_reward.replicas.cluster import Cluster


def is_main_process() -> bool:
    """Whether this is the one process of several that writes what the run shares."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def beside_judge(config: RewardConfig, threads: int | None) -> Iterator[RewardModel]:
    """An opened reward model, with the machine shared out between it and the trainer.

    Without a GPU the trainer keeps `threads` cores to itself (half of them by default), and
    replicas that start with the run get the others. With several GPUs the trainer keeps the first,
    and the Ray that starts with the run is shown the others. One GPU is shared by stated parts.
    Beside a running service the trainer keeps to `threads` cores, if given.

    Raises ConfigError where several training processes would each start a judge, and for one GPU
    without stated parts.
    """
    if config.service is None and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            "several training processes share one judge: start it with `autoj serve` and name its "
            "address in reward.service"
        )
    own_judge = config.service is None and config.judge.on_replicas
    with ExitStack() as stack:
        if own_judge:
            model = _share_out(config, threads, stack)
        else:
            if threads:
                _keep(threads)
            model = stack.enter_context(closing(RewardModel(config)))
        model.open()
        yield model


def _share_out(config: RewardConfig, threads: int | None, stack: ExitStack) -> RewardModel:
    """A reward model whose replicas have a place of their own, and this process another."""
    import torch

    gpus = torch.cuda.device_count()  # by the driver: CUDA is not touched before it is settled
    if gpus:
        shown = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))
        first, _, others = shown.partition(",")
        if gpus == 1:
            _require_parts(config.judge)
        # From here on this process sees its own GPU, and Ray's the ones that it is started with.
        os.environ["CUDA_VISIBLE_DEVICES"] = first
        cluster = stack.enter_context(closing(_cluster(others or first)))
        return stack.enter_context(closing(RewardModel(config, cluster)))
    model = stack.enter_context(closing(RewardModel(config)))
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        own = threads or max(1, len(cores) // 2)
        # Threads and processes inherit the cores of the thread that starts them.
        os.sched_setaffinity(0, cores[own:] or cores)
        model.open()
        os.sched_setaffinity(0, cores)
        _keep(own)
    return model


def _cluster(gpus: str) -> Cluster:
    with from_extras():
        from autoj_reward.replicas.cluster import Cluster

    return Cluster(gpus)


def _require_parts(judge: JudgeConfig) -> None:
    """ConfigError unless a judge that shares the trainer's only GPU says how much of it is its."""
    serve = judge.serve
    most = serve.max_replicas or serve.replicas
    share = (serve.num_gpus or 1.0) * (most if isinstance(most, int) else 1)
    if isinstance(most, int) and 0 < share < 1 and judge.kv_cache_gib is not None:
        return
    raise ConfigError(
        "one GPU for the trainer and its judge: state the judge's part, for example "
        "--set reward.judge.serve.replicas=1 --set reward.judge.serve.num_gpus=0.4 "
        "--set reward.judge.kv_cache_gib=8, so that vLLM leaves the rest alone; or name a service "
        "on another GPU in reward.service"
    )


def _keep(threads: int) -> None:
    """Run on the first `threads` cores alone."""
    import torch

    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    torch.set_num_threads(threads)
