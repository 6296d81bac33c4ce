"""Open a judge by its config: on Ray for vLLM, in this process for endpoints and scripts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from autoj_reward.config import JudgeConfig
from autoj_reward.journal import Journal
from autoj_reward.serve.backend import LocalBackend
from autoj_reward.serve.client import Progress, RewardClient
from autoj_reward.serve.replica import JudgeReplica

if TYPE_CHECKING:
    from autoj_reward.serve.cluster import Cluster


@asynccontextmanager
async def open_judge(
    config: JudgeConfig,
    *,
    journal: Journal | None = None,
    progress: Progress | None = None,
    cluster: Cluster | None = None,
) -> AsyncIterator[RewardClient]:
    """A client of the judge that the config describes; what was started stops at the end.

    cluster: where to put replicas; by default one of its own, gone at the end.

    >>> async with open_judge(JudgeConfig()) as reward:
    ...     [judgement] = await reward.rate([Candidate("Why is the sky blue?", "It scatters.")])
    """
    serving = config.serve
    options = {"journal": journal, "critiques": config.critiques, "progress": progress}
    if config.kind != "vllm":
        replica = JudgeReplica(config)
        await replica.start()
        client = RewardClient(
            LocalBackend(replica),
            max_in_flight=serving.max_ongoing,
            deadline_s=serving.deadline_s,
            **options,  # type: ignore[arg-type]
        )
        try:
            yield client
        finally:
            await replica.close()
        return
    from autoj_reward.serve.cluster import Cluster

    where = cluster or Cluster()
    try:
        backend = where.deploy_judge(config)
        yield RewardClient(
            backend,
            max_in_flight=serving.max_ongoing * backend.replicas,
            deadline_s=serving.deadline_s,
            **options,  # type: ignore[arg-type]
        )
    finally:
        where.remove("judge") if cluster else where.close()
