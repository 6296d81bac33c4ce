"""Ray cluster and Ray Serve: start them, deploy judge and policy replicas, and stop them."""

from __future__ import annotations

import atexit
import dataclasses
import logging
import os
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

import psutil  # type: ignore[import-untyped]
import ray
from ray import serve
from ray.exceptions import GetTimeoutError

from autoj_reward.config import EngineConfig, JudgeConfig, PolicyConfig, ReplicaConfig
from autoj_reward.errors import ConfigError, ModelError
from autoj_reward.models.device import CPU, Device, detect_device
from autoj_reward.models.gpu_memory import cpu_engine_gib, require_engine_memory
from autoj_reward.models.settings import max_ongoing, resolve_engine_settings
from autoj_reward.models.spec import JudgeSpec
from autoj_reward.replicas.backend import RayBackend, RayPolicy
from autoj_reward.replicas.deployments import ServedJudge, ServedPolicy, cpus_each, deployment_of
from autoj_reward.replicas.isolation import loopback_only
from autoj_reward.replicas.leftovers import record_processes, remove_leftovers
from autoj_reward.replicas.processes import end_processes, with_descendants

C = TypeVar("C", JudgeConfig, PolicyConfig)
OBJECT_STORE = 200 * 2**20
"""Bytes of the object store of a Ray that this process starts."""


CONNECT_S = 10.0
"""Seconds that the cluster of RAY_ADDRESS has to accept a connection."""
FIND_S = 120.0
"""Maximum seconds to wait for a free GPU when its type must be found out."""
TINY_SHARE = 0.001
"""Share of a GPU that the task which reports its type reserves."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
PATIENCE_S = 3.0
"""Seconds that processes have to exit by themselves after Ray has stopped."""
_STARTING = threading.Lock()
"""Lets one thread at a time start Ray and Serve: judge and policy may be deployed by two."""


class Cluster:
    """Ray cluster with this process's Serve applications.

    It is the cluster that RAY_ADDRESS names. Without one, it is a new Ray of this process, separate
    from any other Ray on the machine. Nothing starts before the first deployment. `close` leaves no
    process behind; if it is interrupted, it kills the processes.
    """

    def __init__(self, gpus: str | None = None) -> None:
        """Create the cluster object; nothing starts yet.

        gpus: GPUs visible to a Ray that this process starts, in the syntax of CUDA_VISIBLE_DEVICES.
        None means those of this process.
        """
        self._gpus = gpus
        self._connected = self._serves = False
        self._started: set[psutil.Process] = set()
        self._applications: dict[str, str] = {}
        self._suffix = ""
        self._gpu: Device | None = None

    def start(self) -> None:
        """Start Ray, or connect to the cluster of RAY_ADDRESS."""
        if ray.is_initialized():
            if not self._connected:  # the code that started Ray may run a judge of its own there
                self._suffix = self._suffix or f"-{secrets.token_hex(4)}"
            return
        # By default Ray would join any cluster that is running on this machine.
        address = os.environ.get("RAY_ADDRESS") or "local"
        local_options = {"object_store_memory": OBJECT_STORE, "include_dashboard": False}
        options: dict[str, Any] = local_options if address == "local" else {}
        if address == "local":  # a local Ray creates a token, and Ray would log that to the user
            logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)
        try:
            _require_answer(address)
            remove_leftovers()
            is_local = address == "local"
            with (
                loopback_only() if is_local else nullcontext(),
                _show_gpus(self._gpus if is_local else None),
            ):
                ray.init(address, log_to_driver=False, logging_level=logging.WARNING, **options)
        except OSError as error:
            if address == "local":
                raise
            raise ConfigError(
                f"RAY_ADDRESS names {address}, and no Ray cluster takes us there: start it, see "
                "that its token is this process's too, or unset RAY_ADDRESS for one that starts "
                "and stops with the run"
            ) from error
        self._connected = True
        if threading.current_thread() is threading.main_thread():
            # Replaces Ray's handler, which is set if Ray was imported before this module.
            signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM) or signal.SIG_DFL)
        if address == "local":
            node = ray._private.worker._global_node.all_processes
            self._started = {
                psutil.Process(info.process.pid) for infos in node.values() for info in infos
            }
            record_processes(self._started)
        else:
            self._suffix = f"-{secrets.token_hex(4)}"
        atexit.register(self._leave)

    def _serve(self) -> None:
        with _STARTING:
            self.start()
            if self._connected and not self._serves:
                self._serves = True
                logging.getLogger("ray.serve").setLevel(logging.WARNING)
                serve.start(proxy_location="Disabled", logging_config={"log_level": "WARNING"})

    def deploy_judge(self, spec: JudgeSpec) -> RayBackend:
        """Deploy judge replicas and return a client for them once they are ready.

        Raises ModelError if they cannot start.
        """
        self._serve()
        running_spec = spec = self._settle_spec(spec)
        handle = self._deploy("judge", ServedJudge, spec.config, spec)

        def replace(new: JudgeSpec) -> RayBackend:
            """Redeploy with another judge. Serve replaces replicas one by one, after their requests
            in flight."""
            nonlocal running_spec
            new = self._settle_spec(new)
            try:
                new_handle = self._deploy("judge", ServedJudge, new.config, new)
            except ModelError:
                self._deploy("judge", ServedJudge, running_spec.config, running_spec)
                raise
            running_spec = new
            return self._make_backend(new_handle, new)

        return self._make_backend(handle, spec, replace)

    def _make_backend(
        self,
        handle: Any,
        spec: JudgeSpec,
        replace: Callable[[JudgeSpec], RayBackend] | None = None,
    ) -> RayBackend:
        config = spec.config
        count = config.serve.max_replicas or self.replicas(config, config.serve)
        ongoing = max_ongoing(config, self._count_gpus_each(config, config.serve))
        return RayBackend(handle, spec.name, spec.facts, count, replace, ongoing)

    def deploy_policy(self, config: PolicyConfig) -> RayPolicy:
        """Deploy policy replicas and return a client for them once they are ready."""
        self._serve()
        resolved_config = self._resolve_config(config)
        return RayPolicy(self._deploy("policy", ServedPolicy, resolved_config, resolved_config))

    def _settle_spec(self, spec: JudgeSpec) -> JudgeSpec:
        """Resolve `auto` values and model names in a spec, so that every node serves the same
        judge."""
        spec = dataclasses.replace(spec, config=self._resolve_config(spec.config))
        commit = spec.model.revision  # builds a built-in model once, before replicas compete for it
        return spec.with_config(revision=commit) if commit else spec

    def _resolve_config(self, config: C) -> C:
        """Resolve `auto` values in a config for the replicas' device, which this process may not
        see."""
        if not config.on_replicas:
            return config
        if not self._count_gpus_each(config, config.serve):
            return resolve_engine_settings(config, CPU)
        require_engine_memory(config, self._detect_gpu())
        return resolve_engine_settings(config, self._detect_gpu())

    def _detect_gpu(self) -> Device:
        """Return the type of the cluster's GPUs, from the first free one.

        This process may see no GPU, or others.
        """
        if self._gpu is None:
            share = {"num_gpus": TINY_SHARE, "num_cpus": 0}
            gpu_ref = ray.remote(detect_device).options(**share).remote()
            try:
                self._gpu = ray.get(gpu_ref, timeout=FIND_S)
            except GetTimeoutError as error:
                ray.cancel(gpu_ref)
                raise ConfigError(
                    f"no GPU of the cluster was free for {FIND_S:g} s: lower replicas, or stop "
                    "what holds them"
                ) from error
        return self._gpu

    def replicas(self, config: EngineConfig, serving: ReplicaConfig) -> int:
        """Return the number of replicas that a config asks for on this cluster."""
        if serving.replicas != "auto":
            return serving.replicas
        per_replica = self._count_gpus_each(config, serving)
        gpus = ray.cluster_resources().get("GPU", 0)
        return max(1, int(gpus // per_replica)) if per_replica else 1

    def _count_gpus_each(self, config: EngineConfig, serving: ReplicaConfig) -> float:
        if serving.num_gpus is not None:
            return serving.num_gpus
        has_gpu = ray.cluster_resources().get("GPU", 0) > 0
        return float(config.tensor_parallel) if has_gpu and config.on_replicas else 0.0

    def _deploy(
        self, name: str, kind: Any, config: JudgeConfig | PolicyConfig, made_of: object
    ) -> Any:
        serving = config.serve
        gpus = self._count_gpus_each(config, serving)
        count = self.replicas(config, serving)
        self._require_resources(name, gpus * count, cpus_each(serving, gpus) * count)
        deployment = deployment_of(kind, name, config, count, gpus)
        application = self._applications[name] = f"{name}{self._suffix}"
        try:
            return serve.run(deployment.bind(made_of), name=application, route_prefix=None)
        except RuntimeError as error:
            raise ModelError(
                f"the {name} replicas could not start: {_find_cause(application, name)}. Their "
                f"own logs are in {_find_log_folder()}"
            ) from error

    def _require_resources(self, name: str, gpus: float, cpus: float) -> None:
        resources = ray.cluster_resources()
        for resource, amount in (("GPU", gpus), ("CPU", cpus)):
            if amount > resources.get(resource, 0):
                raise ConfigError(
                    f"{name}.serve asks for {amount:g} {resource} and the cluster has "
                    f"{resources.get(resource, 0):g}: lower replicas, num_gpus or num_cpus"
                )

    def require_room(self, judge: JudgeConfig, policy: PolicyConfig | None) -> None:
        """Raise ConfigError unless the cluster has GPUs for the replicas of judge and policy
        together."""
        gpus = sum(count * gpus_each for _, count, gpus_each in self._list_engines(judge, policy))
        cluster_gpus = ray.cluster_resources().get("GPU", 0)
        if gpus > cluster_gpus:
            raise ConfigError(
                f"judge.serve and policy.serve ask for {gpus:g} GPUs at a time and the "
                f"cluster has {cluster_gpus:g}: set replicas, or num_gpus, for each"
            )

    def has_room(self, judge: JudgeConfig, policy: PolicyConfig) -> bool:
        """Return whether replicas of judge and policy fit on the cluster at the same time.

        Engines on CPUs must fit in its memory; one of unknown size does not. Starts Ray.
        """
        self.start()
        engines = self._list_engines(judge, policy)
        resources = ray.cluster_resources()
        needed_resources = {
            "GPU": sum(count * gpus for _, count, gpus in engines),
            "CPU": sum(count * cpus_each(config.serve, gpus) for config, count, gpus in engines),
            "memory": 2**30
            * sum(count * cpu_engine_gib(config) for config, count, gpus in engines if not gpus),
        }
        return len(engines) < 2 or all(
            amount <= resources.get(name, 0) for name, amount in needed_resources.items()
        )

    def shares_cores(self, judge: JudgeConfig, policy: PolicyConfig) -> bool:
        """Return whether judge and policy both run on replicas without GPUs."""
        engines = self._list_engines(judge, policy)
        return len(engines) == 2 and not any(gpus for _, _, gpus in engines)

    def _list_engines(
        self, judge: JudgeConfig, policy: PolicyConfig | None
    ) -> list[tuple[JudgeConfig | PolicyConfig, int, float]]:
        """Return (config, number of replicas, GPUs of each) for those that run on replicas."""
        return [
            (
                config,
                self.replicas(config, config.serve),
                self._count_gpus_each(config, config.serve),
            )
            for config in (judge, policy)
            if config and config.on_replicas
        ]

    def remove(self, name: str) -> None:
        """Stop the application `judge` or `policy` and free its memory."""
        if application := self._applications.pop(name, None):
            serve.delete(application)

    def close(self) -> None:
        """Stop this process's applications, and Ray if this process started it."""
        self._started |= with_descendants(self._started)
        try:
            for name in list(self._applications):
                self.remove(name)
            # In a Ray of this process, Serve stops with it. serve.shutdown() would kill its
            # controller during calls, and Ray would log their retries to the user.
            if self._serves and not self._started and not serve.status().applications:
                serve.shutdown()
        finally:
            self._leave()

    def _leave(self) -> None:
        """Disconnect from Ray, and end every process that this one started."""
        atexit.unregister(self._leave)
        if not self._connected:
            return
        self._connected = self._serves = False
        processes = self._started | with_descendants(self._started)
        try:
            ray.shutdown()
        finally:
            end_processes(processes, PATIENCE_S)
            self._started = set()


@contextmanager
def _show_gpus(gpus: str | None) -> Iterator[None]:
    """Make these GPUs visible to processes that are started within this context."""
    previous_gpus = os.environ.get(VISIBLE)
    if gpus is None:
        yield
        return
    os.environ[VISIBLE] = gpus
    try:
        yield
    finally:
        if previous_gpus is None:
            del os.environ[VISIBLE]
        else:
            os.environ[VISIBLE] = previous_gpus


def _require_answer(address: str) -> None:
    """Raise OSError if nothing listens at host:port. Ray itself would retry for minutes."""
    host, _, port = address.rpartition(":")
    if port.isdigit() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()


def _find_cause(application: str, name: str) -> str:
    """Return the line of a replica's traceback that names the error."""
    message: str = serve.status().applications[application].deployments[name].message
    lines: list[str] = [line.strip() for line in message.splitlines() if line.strip()]
    error_lines = [line for line in lines if "Error: " in line and not line.startswith("File ")]
    return (error_lines or lines or ["no reason given"])[-1][:600].rstrip(".")


def _find_log_folder() -> str:
    return os.path.join(ray._private.worker._global_node.get_session_dir_path(), "logs")
