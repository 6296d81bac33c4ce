"""Serve deployments of judge and policy replicas: class, number, autoscaling and resources."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from typing import Any

from ray import serve

from autoj_reward.config import JudgeConfig, PolicyConfig, ReplicaConfig
from autoj_reward.conversation import Prompt
from autoj_reward.engine.base import Generation
from autoj_reward.judge.make import make_judge
from autoj_reward.models.settings import max_ongoing
from autoj_reward.models.spec import JudgeSpec
from autoj_reward.replicas.isolation import serve_on_loopback
from autoj_reward.replicas.leftovers import keep_recording
from autoj_reward.replicas.replica import JudgeReplica, PolicyReplica, end_process
from autoj_reward.tracing import start_tracing
from autoj_reward.types import JudgeInput, Judgement


def deployment_of(
    kind: Any, name: str, config: JudgeConfig | PolicyConfig, count: int, gpus: float
) -> Any:
    """Return a Serve deployment of `count` replicas, autoscaled from there up to `max_replicas` if
    that is set.

    gpus: number for each replica; all of them are on one node, since a replica is one actor.
    """
    serving, ongoing = config.serve, max_ongoing(config, gpus)
    scale: dict[str, Any] = {"num_replicas": count}
    if serving.max_replicas is not None:
        scale = {
            "autoscaling_config": {
                "min_replicas": count,
                "max_replicas": serving.max_replicas,
                # A call holds up to 32 candidates; a half-full replica still fills its batch.
                "target_ongoing_requests": max(1, ongoing // 64),
            }
        }
    return serve.deployment(
        kind,
        name=name,
        **scale,
        max_ongoing_requests=ongoing,
        health_check_period_s=5,
        health_check_timeout_s=30,
        graceful_shutdown_timeout_s=10,
        max_constructor_retry_count=1,
        ray_actor_options={
            "num_gpus": gpus,
            "num_cpus": cpus_each(serving, gpus),
            "runtime_env": {"env_vars": _make_engine_environment(gpus > 0, count)},
        },
    )


def cpus_each(serving: ReplicaConfig, gpus: float) -> float:
    """Return the CPUs that each replica reserves."""
    if serving.num_cpus is not None:
        return serving.num_cpus
    return 1.0 if gpus else 0.5


class ServedJudge:
    """Serve deployment of a JudgeReplica."""

    async def __init__(self, spec: JudgeSpec) -> None:  # type: ignore[misc]
        serve_on_loopback()
        if spec.config.trace:
            start_tracing()
        self._replica = JudgeReplica(make_judge(spec), on_death=end_process)
        with keep_recording():
            await self._replica.start()

    async def stream(
        self, items: list[JudgeInput], caller: Mapping[str, str]
    ) -> AsyncIterator[list[tuple[int, Judgement]]]:
        async for batch in self._replica.batches(items, caller):
            yield batch

    async def check_health(self) -> None:
        await self._replica.check()


class ServedPolicy:
    """Serve deployment of a PolicyReplica."""

    async def __init__(self, config: PolicyConfig) -> None:  # type: ignore[misc]
        serve_on_loopback()
        self._replica = PolicyReplica(config)
        with keep_recording():
            await self._replica.start()

    async def stream(self, prompt: Prompt) -> AsyncIterator[list[tuple[int, Generation]]]:
        async for batch in self._replica.batches(prompt):
            yield batch

    async def check_health(self) -> None:
        await self._replica.check()


def _make_engine_environment(on_gpu: bool, replicas: int) -> dict[str, str]:
    common = {
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        # vLLM's logging set-up closes the log file of Serve's replica. A restarted controller would
        # then abandon the replica.
        "VLLM_CONFIGURE_LOGGING": "0",
    }
    if on_gpu:
        return common
    threads = str(max(1, len(_find_cores()) // replicas))
    # vLLM's default would bind every replica to core 0; Ray's would give each one thread.
    return common | {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": threads}


def _find_cores() -> set[int]:
    """Return the cores that this thread, and so its child processes, may use."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))
