"""Ray and Ray Serve: start, deploy judge and policy replicas, stop. ray's only import."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from autoj_reward.config import EngineConfig, JudgeConfig, PolicyConfig, ReplicaConfig
from autoj_reward.errors import (
    ConfigError,
    EngineUnavailable,
    InputRejected,
    ModelError,
    ReplicaLost,
)
from autoj_reward.journal import Sampled
from autoj_reward.models import resolve
from autoj_reward.serve.replica import JudgeReplica, PolicyReplica, end_process, judge_name
from autoj_reward.types import JudgeInput, Judgement

# Read when Ray is imported; a user's own setting wins.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# On a small machine the memory monitor would also kill Serve's controller.
os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")
# A replica that is killed must not leave its engine behind: it would hold on to the GPU's memory.
os.environ.setdefault("RAY_process_group_cleanup_enabled", "1")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import ray
from ray import serve
from ray.exceptions import NodeDiedError, ObjectLostError, RayActorError, RayTaskError
from ray.serve.exceptions import RayServeException

OBJECT_STORE = 200 * 2**20
GONE = (RayActorError, NodeDiedError, ObjectLostError)
"""What Ray raises when a replica, or its node, goes while it holds a request."""
LOST = (*GONE, RayServeException)
"""These, and when a replica is not there yet or full; the request may be asked again."""


class Cluster:
    """A Ray cluster with our Serve applications: the one at RAY_ADDRESS, or one of our own.

    Nothing starts before the first deployment.
    """

    def __init__(self) -> None:
        self._ours = False
        self._applications: list[str] = []

    def _start(self) -> None:
        if ray.is_initialized():
            return
        self._ours = True
        local: dict[str, Any] = {}
        if not os.environ.get("RAY_ADDRESS"):
            local = {"object_store_memory": OBJECT_STORE, "include_dashboard": False}
        ray.init(log_to_driver=False, logging_level=logging.WARNING, **local)
        serve.start(proxy_location="Disabled", logging_config={"log_level": "WARNING"})
        logging.getLogger("ray.serve").setLevel(logging.WARNING)

    def deploy_judge(self, config: JudgeConfig) -> RayBackend:
        """Judge replicas, ready to answer. ModelError if they cannot start."""
        self._start()
        handle = self._deploy("judge", ServedJudge, config, config.serve)
        running = config

        def replace(new: JudgeConfig) -> tuple[Any, str]:
            """Serve takes replicas out one by one, after what they have under way."""
            nonlocal running
            try:
                found = self._deploy("judge", ServedJudge, new, new.serve)
            except ModelError:
                self._deploy("judge", ServedJudge, running, running.serve)
                raise
            running = new
            return found, judge_name(new)

        count = config.serve.max_replicas or self.replicas(config, config.serve)
        return RayBackend(handle, judge_name(config), count, replace)

    def deploy_policy(self, config: PolicyConfig) -> RayPolicy:
        """Policy replicas, ready to sample."""
        self._start()
        return RayPolicy(self._deploy("policy", _ServedPolicy, config, config.serve))

    def replicas(self, config: EngineConfig, serving: ReplicaConfig) -> int:
        """How many replicas a config means on this cluster."""
        if serving.replicas != "auto":
            return serving.replicas
        per_replica = self._gpus_each(config, serving)
        gpus = ray.cluster_resources().get("GPU", 0)
        return max(1, int(gpus // per_replica)) if per_replica else 1

    def _gpus_each(self, config: EngineConfig, serving: ReplicaConfig) -> float:
        if serving.num_gpus is not None:
            return serving.num_gpus
        has_gpu = ray.cluster_resources().get("GPU", 0) > 0
        return float(config.tensor_parallel) if has_gpu and config.on_replicas else 0.0

    def _deploy(self, name: str, kind: Any, config: EngineConfig, serving: ReplicaConfig) -> Any:
        gpus = self._gpus_each(config, serving)
        count = self.replicas(config, serving)
        self._require(name, gpus * count, _cpus_each(serving, gpus) * count)
        if config.on_replicas:
            resolve(config)  # builds a built-in model once, before replicas race for it
        deployment = deployment_of(kind, name, serving, count, gpus)
        try:
            handle = serve.run(deployment.bind(config), name=name, route_prefix=None)
        except RuntimeError as error:
            raise ModelError(
                f"the {name} replicas could not start: {_cause(name)}. Their own logs are in "
                f"{_log_folder()}"
            ) from error
        if name not in self._applications:
            self._applications.append(name)
        return handle

    def _require(self, name: str, gpus: float, cpus: float) -> None:
        have = ray.cluster_resources()
        for resource, wanted in (("GPU", gpus), ("CPU", cpus)):
            if wanted > have.get(resource, 0):
                raise ConfigError(
                    f"{name}.serve asks for {wanted:g} {resource} and the cluster has "
                    f"{have.get(resource, 0):g}: lower replicas, num_gpus or num_cpus"
                )

    def remove(self, name: str) -> None:
        """Stop the application `judge` or `policy` and free its memory."""
        if name in self._applications:
            self._applications.remove(name)
            serve.delete(name)

    def close(self) -> None:
        """Stop our applications, and Ray if we started it."""
        for name in list(self._applications):
            self.remove(name)
        if self._ours:
            serve.shutdown()
            ray.shutdown()
            self._ours = False


def deployment_of(kind: Any, name: str, serving: ReplicaConfig, count: int, gpus: float) -> Any:
    """A Serve deployment of `count` replicas, or of as many as the load asks for from there up to
    `max_replicas`. gpus: of one replica; several are one actor's, so on one node."""
    scale: dict[str, Any] = {"num_replicas": count}
    if serving.max_replicas is not None:
        scale = {
            "autoscaling_config": {
                "min_replicas": count,
                "max_replicas": serving.max_replicas,
                # A call holds up to 32 candidates; half full, a replica still fills its batch.
                "target_ongoing_requests": max(1, serving.max_ongoing // 64),
            }
        }
    return serve.deployment(
        kind,
        name=name,
        **scale,
        max_ongoing_requests=serving.max_ongoing,
        health_check_period_s=5,
        health_check_timeout_s=30,
        graceful_shutdown_timeout_s=10,
        max_constructor_retry_count=1,
        ray_actor_options={
            "num_gpus": gpus,
            "num_cpus": _cpus_each(serving, gpus),
            "runtime_env": {"env_vars": _engine_environment(gpus > 0, count)},
        },
    )


def _cpus_each(serving: ReplicaConfig, gpus: float) -> float:
    if serving.num_cpus is not None:
        return serving.num_cpus
    return 1.0 if gpus else 0.5


class ServedJudge:
    """JudgeReplica as a Serve deployment."""

    async def __init__(self, config: JudgeConfig) -> None:  # type: ignore[misc]
        self._replica = JudgeReplica(config, on_death=end_process)
        await self._replica.start()

    async def stream(self, items: list[JudgeInput]) -> AsyncIterator[list[tuple[int, Judgement]]]:
        async for batch in self._replica.batches(items):
            yield batch

    async def check_health(self) -> None:
        await self._replica.check()


class _ServedPolicy:
    """PolicyReplica as a Serve deployment."""

    async def __init__(self, config: PolicyConfig) -> None:  # type: ignore[misc]
        self._replica = PolicyReplica(config)
        await self._replica.start()

    async def sample(self, query: str) -> Sampled:
        return await self._replica.sample(query)

    async def check_health(self) -> None:
        await self._replica.check()


class RayBackend:
    """Judge replicas behind a Serve handle."""

    def __init__(
        self,
        handle: Any,
        judge: str,
        replicas: int,
        replace: Callable[[JudgeConfig], tuple[Any, str]] | None = None,
    ) -> None:
        self._handle = handle.options(stream=True)
        self._replace = replace
        self.judge = judge
        self.replicas = replicas

    async def stream(self, items: Sequence[JudgeInput]) -> AsyncIterator[tuple[int, Judgement]]:
        answers = self._handle.stream.remote(list(items))
        try:
            async for batch in answers:
                for answer in batch:
                    yield answer
        except RayTaskError as error:
            raise error.as_instanceof_cause() from error
        except GONE as error:
            lost = ReplicaLost(f"a judge replica was lost: {_first_line(error)}")
            lost.replica = getattr(error, "actor_id", None) or ""
            raise lost from error
        except RayServeException as error:
            raise EngineUnavailable(f"no judge replica: {_first_line(error)}") from error
        finally:
            answers.cancel()

    async def check(self) -> int:
        try:
            async with asyncio.timeout(5):
                status = await asyncio.to_thread(serve.status)
        except (TimeoutError, *LOST) as error:
            raise EngineUnavailable("Ray Serve's controller does not answer") from error
        found = [
            deployment
            for application in status.applications.values()
            for name, deployment in application.deployments.items()
            if name == "judge"
        ]
        running: int = sum(deployment.replica_states.get("RUNNING", 0) for deployment in found)
        if not running:
            raise EngineUnavailable("no judge replica runs")
        return running

    async def update(self, config: JudgeConfig) -> None:
        if self._replace is None:
            raise ConfigError("this judge is deployed elsewhere: update it there")
        handle, self.judge = await asyncio.to_thread(self._replace, config)
        self._handle = handle.options(stream=True)

    async def close(self) -> None:
        """The cluster stops its replicas."""


class RayPolicy:
    """Policy replicas behind a Serve handle."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    async def sample(self, query: str) -> Sampled:
        try:
            sampled: Sampled = await self._handle.sample.remote(query)
        except RayTaskError as error:
            if isinstance(error.cause, InputRejected):
                raise InputRejected(str(error.cause)) from error
            raise
        except LOST as error:
            raise EngineUnavailable(f"a policy replica was lost: {_first_line(error)}") from error
        return sampled


def _engine_environment(on_gpu: bool, replicas: int) -> dict[str, str]:
    common = {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING", "DO_NOT_TRACK": "1"}
    if on_gpu:
        return common
    threads = str(max(1, len(_own_cores()) // replicas))
    # vLLM's own binding would put every replica on core 0; Ray's would give each one thread.
    return common | {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": threads}


def _own_cores() -> set[int]:
    """The cores that this thread, and so the processes it starts, may run on."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _cause(name: str) -> str:
    """The line of a replica's own traceback that says what went wrong."""
    told: str = serve.status().applications[name].deployments[name].message
    lines: list[str] = [line.strip() for line in told.splitlines() if line.strip()]
    named = [line for line in lines if "Error: " in line and not line.startswith("File ")]
    return (named or lines or ["no reason given"])[-1][:600].rstrip(".")


def _log_folder() -> str:
    return os.path.join(ray._private.worker._global_node.get_session_dir_path(), "logs")
