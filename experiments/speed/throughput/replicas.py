"""Several replicas on several times the work, against one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from autoj_reward.client.session import open_judge
from experiments.speed.throughput.config import ThroughputConfig
from experiments.speed.throughput.tables import median_s, told
from experiments.speed.throughput.work import Spent, alternate, by_client, candidates


async def measure(config: ThroughputConfig, done: Callable[[], object]) -> dict[str, Any]:
    """A row for one replica, and one for several. They are measured one after the other."""
    found: dict[int, list[Spent]] = {}
    for count in (1, config.replicas):
        piece = partial(candidates, queries=config.queries * count, count=config.candidates)
        async with open_judge(config.judge_on(count)) as client:
            measured = await alternate({"service": by_client(client)}, config.rounds, piece, done)
        found[count] = measured["service"]
    return {"rows": rows(found, gpus())}


def gpus() -> int:
    """GPUs of this machine; a cluster may have more."""
    import torch

    return int(torch.cuda.device_count())


def rows(found: dict[int, list[Spent]], gpus: int) -> list[dict[str, Any]]:
    """What each number of replicas took, over what the least took."""
    one = median_s(found[min(found)])
    return [
        {
            "replicas": count,
            "devices": f"{min(count, gpus)} GPUs" if gpus else "all cores, shared",
            "expected": max(1.0, count / max(1, gpus)),
            **told(rounds),
            "ratio": median_s(rounds) / one,
        }
        for count, rounds in found.items()
    ]
