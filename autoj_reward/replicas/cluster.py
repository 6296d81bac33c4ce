"""Ray and Ray Serve: start, deploy judge and policy replicas, stop."""

from __future__ import annotations

import logging
import os
from typing import Any

from autoj_reward.config import EngineConfig, JudgeConfig, PolicyConfig, ReplicaConfig
from autoj_reward.errors import ConfigError, ModelError
from autoj_reward.judge.make import judge_name
from autoj_reward.models import resolve

# Read when Ray is imported; a user's own setting wins.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# On a small machine the memory monitor would also kill Serve's controller.
os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")
# A replica that is killed must not leave its engine behind: it would hold on to the GPU's memory.
os.environ.setdefault("RAY_process_group_cleanup_enabled", "1")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import ray
from ray import serve

from autoj_reward.replicas.backend import RayBackend, RayPolicy
from autoj_reward.replicas.deployments import ServedJudge, ServedPolicy, cpus_each, deployment_of

OBJECT_STORE = 200 * 2**20


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
            # A cluster of our own asks for Ray's token: good, and nothing to tell a user.
            logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)
        ray.init(log_to_driver=False, logging_level=logging.WARNING, **local)
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        serve.start(proxy_location="Disabled", logging_config={"log_level": "WARNING"})

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
        return RayPolicy(self._deploy("policy", ServedPolicy, config, config.serve))

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
        self._require(name, gpus * count, cpus_each(serving, gpus) * count)
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
            # No serve.shutdown(): it kills the controller amid its calls, which Ray then says it
            # retries. Our cluster ends with it; one at RAY_ADDRESS may have other applications.
            ray.shutdown()
            self._ours = False


def _cause(name: str) -> str:
    """The line of a replica's own traceback that says what went wrong."""
    told: str = serve.status().applications[name].deployments[name].message
    lines: list[str] = [line.strip() for line in told.splitlines() if line.strip()]
    named = [line for line in lines if "Error: " in line and not line.startswith("File ")]
    return (named or lines or ["no reason given"])[-1][:600].rstrip(".")


def _log_folder() -> str:
    return os.path.join(ray._private.worker._global_node.get_session_dir_path(), "logs")
