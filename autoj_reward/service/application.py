"""The service as a Ray Serve application, for `serve deploy` and KubeRay's RayService.

It has judge replicas, and the HTTP API as an ingress deployment behind Serve's own proxy. Serve
then restarts the API's replicas too, and Kubernetes' load balancer finds them on every node. There
is no journal, and no route of `service/trainers.py`: both need one process, which is `autoj serve`.

    import_path: autoj_reward.service.application:build
    args: {judge: {model: GAIR/autoj-13b, serve: {replicas: 2, max_replicas: 8}}}
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field
from ray import serve

from autoj_reward.client.session import client_of
from autoj_reward.config import Block, JudgeConfig, check
from autoj_reward.errors import ConfigError
from autoj_reward.models.device import Device
from autoj_reward.models.settings import dtype_on, max_ongoing
from autoj_reward.models.spec import judge_spec
from autoj_reward.replicas.backend import RayBackend
from autoj_reward.replicas.deployments import ServedJudge, deployment_of
from autoj_reward.service.api import make_app
from autoj_reward.service.gateway import Guard, Limits
from autoj_reward.service.serve import read_token


class ApplicationConfig(Block):
    """Arguments of the Serve application."""

    judge: JudgeConfig
    """The judge. `serve.replicas` must be a number, since nodes may join after the application is
    built."""
    edges: int = Field(2, ge=1)
    """Replicas of the HTTP API."""
    token_env: str = "AUTOJ_TOKEN"
    """Environment variable of these replicas that holds the callers' token."""
    token_file: Path | None = None
    """File on their nodes that holds the callers' token. null: use `token_env`."""
    deadline_s: float = Field(1800.0, gt=0)
    """Seconds until an answer must begin."""


class _Edge:
    """The HTTP API as a Serve deployment, over the handle of the judge's deployment."""

    def __init__(self, judge: Any, config: ApplicationConfig) -> None:
        self._judge, self._config = judge, config

    def __serve_build_asgi_app__(self) -> Guard:
        spec = judge_spec(self._config.judge)
        judge = spec.config
        max_replicas = judge.serve.max_replicas or judge.serve.replicas
        assert isinstance(max_replicas, int)  # build() has refused "auto"
        backend = RayBackend(self._judge, spec.name, spec.facts, max_replicas)
        client = client_of(
            spec, backend, max_ongoing(judge, _count_gpus_each(judge)) * max_replicas
        )
        token = read_token(self._config.token_env, self._config.token_file)
        limits = Limits(deadline_s=self._config.deadline_s)
        return make_app(client, token, limits, alone=self._config.edges == 1).guard


def build(args: dict[str, Any]) -> Any:
    """Return the Serve application; Serve's `import_path` names this function.

    args: keys of ApplicationConfig. Raises ConfigError for a judge at an endpoint, and for
    `judge.serve.replicas: auto`.
    """
    config = check(ApplicationConfig, args, "args")
    judge, serving = config.judge, config.judge.serve
    if judge.kind == "openai":
        raise ConfigError(
            "args: judge.kind is openai, and this application is for judges on replicas: an "
            "endpoint needs none, so run `autoj serve` for it"
        )
    if serving.replicas == "auto":
        raise ConfigError("args: judge.serve.replicas: give a number; nodes may still be missing")
    gpus = _count_gpus_each(judge)
    if gpus:  # on this node there may be none
        judge = judge.model_copy(update={"dtype": dtype_on(judge, Device("cuda"))})
    config = config.model_copy(update={"judge": judge})
    replicas = deployment_of(ServedJudge, "judge", judge, serving.replicas, gpus).bind(
        judge_spec(judge)
    )
    edge = serve.deployment(
        serve.ingress()(_Edge),
        name="edge",
        num_replicas=config.edges,
        max_ongoing_requests=4096,
        graceful_shutdown_timeout_s=60,
        ray_actor_options={"num_cpus": 1},
    )
    return edge.bind(replicas, config)


def _count_gpus_each(judge: JudgeConfig) -> float:
    if judge.serve.num_gpus is not None:
        return judge.serve.num_gpus
    return float(judge.tensor_parallel) if judge.on_replicas else 0.0
