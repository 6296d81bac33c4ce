"""Ray Serve, with a scripted judge on the replicas: an update, a lost node, the application."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from autoj_reward.client.client import RewardClient
from autoj_reward.config import JudgeConfig
from autoj_reward.replicas.cluster import Cluster
from autoj_reward.types import Candidate, Judgement

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


def judge(rating: int, replicas: int = 2, **script: Any) -> JudgeConfig:
    ratings = {f"answer {n}": rating for n in range(400)}
    return JudgeConfig.model_validate(
        {
            "kind": "fake",
            "script": {"ratings": ratings, "latency_s": 0.2} | script,
            "serve": {"replicas": replicas, "num_cpus": 1},
        }
    )


def candidates(start: int, count: int) -> list[Candidate]:
    return [Candidate(f"q{n % 8}", f"answer {n}") for n in range(start, start + count)]


def test_another_judge_takes_over_without_a_failed_request() -> None:
    cluster = Cluster()
    try:
        backend = cluster.deploy_judge(judge(3))
        old = backend.judge
        client = RewardClient(backend, deadline_s=120)

        async def run() -> tuple[list[Judgement], list[Judgement]]:
            during: list[Judgement] = []

            async def keep_asking() -> None:
                for start in range(0, 200, 10):
                    during.extend(await client.rate(candidates(start, 10)))

            asking = asyncio.create_task(keep_asking())
            await asyncio.sleep(0.5)
            await backend.update(judge(8))
            after = await client.rate(candidates(300, 20))
            await asking
            return during, after

        during, after = asyncio.run(run())
        new = backend.judge
        assert new != old
        assert {(j.judge, j.view("rating")) for j in during} <= {(old, 3.0), (new, 8.0)}
        assert {(j.judge, j.view("rating")) for j in after} == {(new, 8.0)}
    finally:
        cluster.close()


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
        client = RewardClient(cluster.deploy_judge(judge(5)), deadline_s=240, chunk=4)

        async def run() -> list[Judgement]:
            rating = asyncio.create_task(client.rate(candidates(0, 64)))
            await asyncio.sleep(0.3)
            await asyncio.to_thread(nodes.remove_node, second)
            return await rating

        found = asyncio.run(run())
        assert [j.view("rating") for j in found] == [5.0] * 64, [j.reason for j in found]
    finally:
        cluster.close()
        ray.shutdown()
        nodes.shutdown()


@pytest.fixture
def application(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The whole service behind Serve's own proxy."""
    import ray
    from ray import serve

    from autoj_reward.edge.application import build

    monkeypatch.setitem(os.environ, "AUTOJ_TOKEN", "secret")
    ray.init(log_to_driver=False, include_dashboard=False, num_cpus=4)
    serve.start(http_options={"host": "127.0.0.1", "port": 8377})
    args = {"judge": judge(7, replicas=1).model_dump(mode="json"), "edges": 1}
    serve.run(build(args), name="autoj-reward", route_prefix="/")
    yield "http://127.0.0.1:8377"
    serve.shutdown()
    ray.shutdown()


def test_the_application_answers_behind_serves_proxy(application: str) -> None:
    body = {"candidates": [{"query": "q", "response": "answer 1"}]}
    headers = {"Authorization": "Bearer secret"}
    answer = httpx.post(f"{application}/v1/score", json=body, headers=headers, timeout=60)
    assert answer.status_code == 200
    assert answer.json()["judgements"][0]["rating"]["value"] == 7
    assert httpx.post(f"{application}/v1/score", json=body).status_code == 401
    assert httpx.get(f"{application}/readyz").status_code == 200
