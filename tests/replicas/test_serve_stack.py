"""Ray Serve with a scripted judge on the replicas: a lost node, and the application."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import httpx
import pytest

from autoj_reward.client.client import ClientLimits, JudgeClient
from autoj_reward.models.spec import judge_spec
from autoj_reward.replicas.cluster import Cluster
from autoj_reward.types import Judgement
from tests.replicas.scripted import make_candidates, make_judge
from tests.support.ports import free_port

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


def test_a_node_lost_in_the_middle_of_a_job_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import ray
    from ray.cluster_utils import Cluster as Nodes

    nodes = Nodes(initialize_head=True, head_node_args={"num_cpus": 1})
    second = nodes.add_node(num_cpus=1)
    monkeypatch.setenv("RAY_ADDRESS", nodes.address)
    cluster = Cluster()
    try:
        client = JudgeClient(
            cluster.deploy_judge(judge_spec(make_judge(5))),
            limits=ClientLimits(deadline_s=240, chunk=4),
        )

        async def run() -> list[Judgement]:
            rating = asyncio.create_task(client.rate(make_candidates(0, 64)))
            await asyncio.sleep(0.3)
            await asyncio.to_thread(nodes.remove_node, second)
            return await rating

        judgements = asyncio.run(run())
        assert [j.view("rating") for j in judgements] == [5.0] * 64, [j.reason for j in judgements]
    finally:
        cluster.close()
        ray.shutdown()
        nodes.shutdown()


@pytest.fixture
def application(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run the whole service behind Serve's own proxy."""
    import ray
    from ray import serve

    from autoj_reward.service.application import build

    monkeypatch.setitem(os.environ, "AUTOJ_TOKEN", "secret")
    ray.init("local", log_to_driver=False, include_dashboard=False, num_cpus=4)
    port = free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    args = {"judge": make_judge(7, replicas=1).model_dump(mode="json"), "edges": 1}
    serve.run(build(args), name="autoj-reward", route_prefix="/")
    yield f"http://127.0.0.1:{port}"
    serve.shutdown()
    ray.shutdown()


def test_the_application_answers_behind_serves_proxy(application: str) -> None:
    body = {"candidates": [{"query": "q", "response": "answer 1"}]}
    headers = {"Authorization": "Bearer secret"}
    answer = httpx.post(f"{application}/v1/score", json=body, headers=headers, timeout=600)
    assert answer.status_code == 200
    assert answer.json()["judgements"][0]["rating"]["value"] == 7
    assert httpx.post(f"{application}/v1/score", json=body).status_code == 401
    assert httpx.get(f"{application}/readyz").status_code == 200
