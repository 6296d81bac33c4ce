"""Open a judge from its config: on Ray, in this process, or at the address of a running service."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from autoj_reward.client.backend import Backend, LocalBackend
from autoj_reward.client.client import (
    ClientLimits,
    JudgeClient,
    ViewsCheck,
    accept_any_views,
)
from autoj_reward.client.in_flight import Progress
from autoj_reward.config import JudgeConfig, ServiceConfig
from autoj_reward.config.urls import without_secrets
from autoj_reward.errors import ConfigError, from_extras
from autoj_reward.journal import Journal
from autoj_reward.models.settings import max_ongoing
from autoj_reward.models.spec import JudgeSpec, spec_of
from autoj_reward.processes import is_first_rank, processes
from autoj_reward.tracing import start_tracing

if TYPE_CHECKING:
    from autoj_reward.replicas.cluster import Cluster


def client_of(
    spec: JudgeSpec,
    backend: Backend,
    max_in_flight: int,
    journal: Journal | None = None,
    progress: Progress | None = None,
    require: ViewsCheck = accept_any_views,
) -> JudgeClient:
    """Return a client for this judge's backend, with what its spec asks and limits."""
    if spec.config.trace:
        start_tracing()
    deadline_s = spec.config.serve.deadline_s
    limits = ClientLimits(max_in_flight, deadline_s, spending=spec.spending)
    return JudgeClient(
        backend, spec.asks, limits, journal=journal, progress=progress, require=require
    )


def require_one_judge(config: JudgeConfig, rank_0_may: bool = True) -> None:
    """Raise ConfigError where each process of a training would start replicas of its own.

    rank_0_may: whether rank 0 may start them, alone.
    """
    if not config.on_replicas or processes() == 1 or (rank_0_may and is_first_rank()):
        return
    raise ConfigError(
        f"this is one of {processes()} processes of a training, and each would start a Ray and a "
        "judge of its own: start one judge for all with `autoj serve`, and name its address in "
        "reward.service (of a Judge: Judge.connect)"
    )


@asynccontextmanager
async def open_judge(
    judge: JudgeConfig | JudgeSpec,
    *,
    journal: Journal | None = None,
    progress: Progress | None = None,
    require: ViewsCheck = accept_any_views,
    cluster: Cluster | None = None,
    gpus: str | None = None,
) -> AsyncIterator[JudgeClient]:
    """Open the judge of a config and yield its client. What was started stops at the end.

    require: as for `JudgeClient`.
    cluster: where to deploy replicas; None starts a cluster and closes it at the end. Raises
        ConfigError without one in a process of a training other than rank 0.
    gpus: GPUs that this cluster may use, in the form of CUDA_VISIBLE_DEVICES; None: those of this
        process.

    >>> async with open_judge(JudgeConfig()) as reward:
    ...     [judgement] = await reward.rate([Candidate("Why is the sky blue?", "It scatters.")])
    """
    spec = spec_of(judge)
    if not spec.config.on_replicas:
        backend = LocalBackend(spec)
        await backend.start()
        try:
            max_in_flight = max_ongoing(spec.config, 0)
            async with client_of(
                spec, backend, max_in_flight, journal, progress, require
            ) as client:
                yield client
        finally:
            await backend.close()
        return
    if cluster is None:
        require_one_judge(spec.config)
    with from_extras():
        from autoj_reward.replicas.cluster import Cluster

    host = cluster or Cluster(gpus)
    try:
        if cluster:  # its owner may deploy and ask a policy meanwhile
            host.start()  # here, since Ray sets its signal handlers in the main thread alone
            replicas = await asyncio.to_thread(host.deploy_judge, spec)
        else:
            replicas = host.deploy_judge(spec)
        max_in_flight = replicas.max_ongoing * replicas.replicas
        async with client_of(spec, replicas, max_in_flight, journal, progress, require) as client:
            yield client
    finally:
        host.remove("judge") if cluster else host.close()


@asynccontextmanager
async def open_service(
    config: ServiceConfig, judge: JudgeConfig | JudgeSpec, *, journal: Journal | None = None
) -> AsyncIterator[JudgeClient]:
    """Connect to a running service and yield its client.

    judge: what it asks (`critiques`, `vote`, `shows`), its `serve`, and the scale of its format
        count here. The facts are those of the service's judge. The limit on inputs in flight is
        `serve.max_ongoing`, else what the service accepts.
    Raises ConfigError without a token or if the scales differ, EngineUnavailable if no service
    answers in time.
    """
    from autoj_reward.client.remote import HttpBackend

    token = os.environ.get(config.token_env)
    if not token:
        raise ConfigError(
            f"no token for {without_secrets(config.address)}: put it into the environment "
            f"variable {config.token_env}"
        )
    backend = await HttpBackend.connect(config.address, token, config.start_s)
    try:
        spec = spec_of(judge)
        there, here = backend.facts.scale, spec.facts.scale
        if there and here and there != here:
            raise ConfigError(
                f"the judge of {backend.address} rates from {there[0]:g} to {there[1]:g}, and "
                f"judge.format {spec.format.name} from {here[0]:g} to {here[1]:g}: name the "
                "service's format in judge.format"
            )
        ongoing = spec.config.serve.max_ongoing
        max_in_flight = ongoing or backend.facts.in_flight or max_ongoing(spec.config, 0)
        async with client_of(spec, backend, max_in_flight, journal) as client:
            yield client
    finally:
        await backend.close()


@asynccontextmanager
async def open_reward(
    judge: JudgeSpec,
    service: ServiceConfig | None,
    *,
    journal: Journal | None = None,
    gpus: str | None = None,
) -> AsyncIterator[JudgeClient]:
    """Open the judge of a reward or of one part: its running service, else the judge itself.

    gpus: GPUs for the replicas, in the form of CUDA_VISIBLE_DEVICES; see `open_judge`.
    """
    if service:
        opening = open_service(service, judge, journal=journal)
    else:
        opening = open_judge(judge, journal=journal, gpus=gpus)
    async with opening as client:
        yield client
