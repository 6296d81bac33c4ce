"""Serve applications and manifests, built and checked without starting Ray."""

from __future__ import annotations

import asyncio
import json
import re
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import ray
import yaml
from jsonschema import Draft202012Validator
from ray.exceptions import ActorDiedError, ActorUnavailableError, OwnerDiedError
from ray.serve.exceptions import BackPressureError
from ray.serve.schema import ServeDeploySchema

from autoj_reward.config import JudgeConfig, ReplicaConfig
from autoj_reward.errors import ConfigError, EngineUnavailable, ReplicaLost
from autoj_reward.judge.make import make_judge
from autoj_reward.models.facts import JudgeFacts
from autoj_reward.models.spec import judge_spec
from autoj_reward.models.unused import load_run
from autoj_reward.replicas.backend import RayBackend
from autoj_reward.replicas.deployments import ServedJudge, deployment_of
from autoj_reward.replicas.replica import JudgeReplica
from autoj_reward.service.application import ApplicationConfig, build
from autoj_reward.service.metrics import Metrics
from autoj_reward.service.serve import REFUSE_S, EdgeConfig
from autoj_reward.types import JudgeInput, Judgement
from tests.judgements import rated
from tests.rayservice import RAY_SERVICE

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "configs/serve/compose"


def read_manifest() -> dict[str, Any]:
    text = (ROOT / "configs/serve/kuberay/rayservice.yaml").read_text(encoding="utf-8")
    manifest: dict[str, Any] = yaml.safe_load(text)
    return manifest


def read_compose_file(name: str) -> dict[str, Any]:
    text = (COMPOSE / name).read_text(encoding="utf-8")
    content: dict[str, Any] = yaml.safe_load(text)
    return content


def load_edge_config(command: list[str]) -> EdgeConfig:
    """Return the configuration that `autoj serve` has with the arguments of an image's command."""
    assert command[0] == "serve"
    config, *sets = [words.split("=", 1) for words in command[1:]]
    assert {name for name, _ in [config, *sets]} == {"--config", "--set"}
    return load_run(
        EdgeConfig, str(ROOT / config[1]), [setting for _, setting in sets], strict=True
    )


def find_violations(manifest: dict[str, Any]) -> list[str]:
    """Return the places where a manifest violates KubeRay's schema."""
    errors = Draft202012Validator(RAY_SERVICE).iter_errors(manifest)
    return sorted(".".join(map(str, error.absolute_path)) for error in errors)


def test_the_manifest_keeps_to_kuberays_schema() -> None:
    assert find_violations(read_manifest()) == []


CLUSTER = "spec.rayClusterConfig"
CONTAINER = f"{CLUSTER}.headGroupSpec.template.spec.containers.0"


@pytest.mark.parametrize(
    ("path", "value", "where"),
    [
        ("apiVersion", "ray.io/v1alpha1", "apiVersion"),
        ("metadata.name", "Autoj_Reward", "metadata.name"),
        ("spec.serveConfig", "", "spec"),
        ("spec.serveConfigV2", {"applications": []}, "spec.serveConfigV2"),
        (f"{CLUSTER}.rayVersion", 2.6, f"{CLUSTER}.rayVersion"),
        (f"{CLUSTER}.workerGroupSpecs.0.minReplicas", "1", "*"),
        (f"{CLUSTER}.headGroupSpec.rayStartParams.num-gpus", 0, "*"),
        (f"{CONTAINER}.ports.0.containerPort", "6379", "*"),
        (f"{CONTAINER}.resources.limits.memory", "16 GB", "*"),
        (f"{CONTAINER}.envs", [], CONTAINER),
    ],
)
def test_what_breaks_kuberays_schema_is_found(path: str, value: Any, where: str) -> None:
    manifest = read_manifest()
    *parents, last = path.split(".")
    place: Any = manifest
    for part in parents:
        place = place[int(part) if isinstance(place, list) else part]
    place[last] = value
    assert find_violations(manifest) == [path if where == "*" else where]


def test_the_manifests_cluster_runs_the_ray_that_is_pinned() -> None:
    spec = read_manifest()["spec"]
    assert spec["rayClusterConfig"]["rayVersion"] == ray.__version__
    # KubeRay finds the edges by the port of this name.
    [container] = spec["rayClusterConfig"]["headGroupSpec"]["template"]["spec"]["containers"]
    [port] = [p["containerPort"] for p in container["ports"] if p["name"] == "serve"]
    assert yaml.safe_load(spec["serveConfigV2"])["http_options"]["port"] == port


def test_the_manifest_serves_what_it_says() -> None:
    spec = read_manifest()["spec"]
    serving = ServeDeploySchema.model_validate(yaml.safe_load(spec["serveConfigV2"]))
    [application] = serving.applications
    module, _, function = application.import_path.partition(":")
    assert (module, function) == (build.__module__, build.__name__)
    config = ApplicationConfig.model_validate(application.args)
    assert config.judge.serve.max_replicas == 8
    edge = build(application.args)._bound_deployment
    assert (edge.name, edge.num_replicas) == ("edge", 2)
    [judge, _] = edge.init_args
    scaling = judge._bound_deployment._deployment_config.autoscaling_config
    assert (scaling.min_replicas, scaling.max_replicas) == (1, 8)
    assert judge._bound_deployment.ray_actor_options["num_gpus"] == 1


def test_the_manifests_pods_have_the_token_and_room_for_the_replicas() -> None:
    cluster = read_manifest()["spec"]["rayClusterConfig"]
    [workers] = cluster["workerGroupSpecs"]
    for group in (cluster["headGroupSpec"], workers):
        [container] = group["template"]["spec"]["containers"]
        token, cleanup = container["env"]
        # Ray itself reads it on every node; cluster.py sets it where it starts Ray.
        assert cleanup == {"name": "RAY_process_group_cleanup_enabled", "value": "1"}
        assert token["name"] == "AUTOJ_TOKEN" and "secretKeyRef" in token["valueFrom"]
    assert workers["minReplicas"] <= workers["replicas"] <= workers["maxReplicas"] == 8


def test_manifest_and_compose_files_name_the_images_of_this_version() -> None:
    about = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    cluster = read_manifest()["spec"]["rayClusterConfig"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    pods = [container["image"] for g in groups for container in g["template"]["spec"]["containers"]]
    cpu, gpu = (
        read_compose_file(f"{name}.yaml")["services"]["judge"] for name in ("compose", "gpu")
    )
    image = f"autoj-reward:{about['version']}"
    assert (cpu["image"], gpu["image"]) == (f"{image}-cpu", f"{image}-gpu")
    assert set(pods) == {gpu["image"]}


def test_the_composed_service_starts_drains_and_has_its_token_from_outside() -> None:
    content = read_compose_file("compose.yaml")
    judge = content["services"]["judge"]
    config = load_edge_config(judge["command"])
    assert config.host == "0.0.0.0" and judge["ports"] == [f"127.0.0.1:{config.port}:{config.port}"]
    assert int(judge["stop_grace_period"].removesuffix("s")) > config.drain_s + REFUSE_S
    assert judge["environment"][config.token_env].startswith(f"${{{config.token_env}:?")
    files = [source["file"] for source in content["configs"].values() if "file" in source]
    assert len(files) == 2 and all((COMPOSE / file).is_file() for file in files)


def test_the_image_serves_on_the_port_that_its_health_check_asks() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    config = load_edge_config(json.loads(text.rsplit("\nCMD ", 1)[1]))
    assert f"\nEXPOSE {config.port}\n" in text and config.host == "0.0.0.0"
    assert f'"http://127.0.0.1:{config.port}/healthz"' in text


def test_an_endpoint_behind_the_application_is_refused() -> None:
    """The application would never make the endpoint's first contact."""
    judge = {"kind": "openai", "base_url": "http://127.0.0.1:9/v1", "serve": {"replicas": 1}}
    with pytest.raises(ConfigError, match=r"judge.kind is openai, .* run `autoj serve` for it"):
        build({"judge": judge})


def test_replicas_that_are_not_counted_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"judge.serve.replicas: give a number"):
        build({"judge": {"kind": "fake"}})
    with pytest.raises(ConfigError, match="unknown key 'jduge'"):
        build({"jduge": {}})


@pytest.mark.parametrize(
    ("serving", "scale"),
    [
        (ReplicaConfig(replicas=3), (3, None)),
        (ReplicaConfig(replicas=2, max_replicas=5, max_ongoing=256), (2, 5)),
    ],
    ids=["fixed", "autoscaling"],
)
def test_a_deployment_scales_as_configured(
    serving: ReplicaConfig, scale: tuple[int, int | None]
) -> None:
    count, most = scale
    deployment = deployment_of(ServedJudge, "judge", JudgeConfig(serve=serving), count, gpus=2.0)
    assert (
        deployment.ray_actor_options["num_gpus"] == 2
        and deployment.ray_actor_options["num_cpus"] == 1
    )
    scaling = deployment._deployment_config.autoscaling_config
    if most is None:
        assert scaling is None and deployment.num_replicas == count
    else:
        assert (scaling.min_replicas, scaling.max_replicas) == (count, most)
        assert scaling.target_ongoing_requests == 4


class Handle:
    """Deployment handle whose replica answers one input and then fails."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.cancelled = 0
        self.stream = self

    def options(self, stream: bool) -> Handle:
        assert stream
        return self

    def remote(self, items: list[JudgeInput], caller: dict[str, str]) -> Handle:
        return self

    def cancel(self) -> None:
        self.cancelled += 1

    async def __aiter__(self) -> AsyncIterator[list[tuple[int, Judgement]]]:
        yield [(0, rated(5))]
        if self.error:
            raise self.error


@pytest.mark.parametrize("runs", [True, False], ids=["ray runs", "ray has ended"])
@pytest.mark.parametrize(
    ("error", "kind", "lost"),
    [
        (ActorDiedError(), ReplicaLost, True),
        (ActorUnavailableError("no heartbeat", None), ReplicaLost, True),
        (OwnerDiedError("0" * 56, None, ""), ReplicaLost, True),
        (BackPressureError(5, 5), EngineUnavailable, False),
        (ValueError("a bug"), ValueError, False),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_what_ray_raises_says_whether_a_replica_held_the_request(
    error: Exception, kind: type[Exception], lost: bool, runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: runs)
    handle = Handle(error)
    backend = RayBackend(handle, "judge", JudgeFacts(), 1)
    answers = []
    with pytest.raises(kind) as caught:
        async for answer in backend.stream(
            [JudgeInput("single", "q", ("a",)), JudgeInput("single", "q", ("b",))]
        ):
            answers.append(answer)
    assert isinstance(caught.value, ReplicaLost) == lost
    assert len(answers) == 1 and handle.cancelled == runs


async def test_what_is_done_at_once_is_one_message_and_waits_for_nothing_else() -> None:
    script = {"fail": {"slow": "hang"}}
    replica = JudgeReplica(make_judge(judge_spec(JudgeConfig(kind="fake", script=script))))
    items = [JudgeInput("single", "q", (r,)) for r in ("a", "slow", "b", "c")]
    batches = replica.batches(items)
    assert [index for index, _ in await anext(batches)] == [0, 2, 3]
    await batches.aclose()
    assert {t for t in asyncio.all_tasks() if not t.cancelling()} == {asyncio.current_task()}
    assert [k async for k, _ in replica.stream([items[0], *items[2:]])] == [0, 1, 2]


def test_the_dashboard_asks_for_metrics_that_exist() -> None:
    board = json.loads((ROOT / "docs/run/grafana.json").read_text(encoding="utf-8"))
    expressions = [
        target["expr"] for panel in board["panels"] for target in panel.get("targets", ())
    ]
    names = {
        name
        for expression in expressions
        for name in re.findall(r"\b(?:autoj|process)_\w+", expression)
    }
    metrics = Metrics()
    families = list(metrics.registry.collect())
    exported_names = {sample.name for family in families for sample in family.samples}
    for family in families:  # those with labels have no samples yet
        exported_names |= {family.name + end for end in ("", "_total", "_bucket", "_sum", "_count")}
    assert len(expressions) >= 12 and names <= exported_names
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
