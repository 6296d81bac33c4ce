"""Processes killed under a judge, on the real stack: each test leaves a replica that judges."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import psutil  # type: ignore[import-untyped]
import pytest

from autoj_reward.client.backend import Backend
from autoj_reward.client.client import RewardClient
from autoj_reward.config import JudgeConfig
from autoj_reward.errors import EngineUnavailable
from autoj_reward.replicas.cluster import Cluster
from autoj_reward.types import Candidate, Judgement
from tests.processes import processes

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

CONFIG = JudgeConfig(max_tokens=48, max_model_len=2048, kv_cache_gib=0.5)


@pytest.fixture(scope="module")
def backend() -> Iterator[Backend]:
    cluster = Cluster()
    try:
        yield cluster.deploy_judge(CONFIG)
    finally:
        cluster.close()


def process(title: str) -> psutil.Process:
    [found] = processes(title)
    return found


def replica() -> psutil.Process:
    return process("ServeReplica:judge")


def engines_of(one: psutil.Process) -> list[psutil.Process]:
    found = [p for p in one.children(recursive=True) if "EngineCore" in p.name()]
    assert found, "the engine has a process of its own"
    return found


async def rated(backend: Backend, count: int) -> list[Judgement]:
    reward = RewardClient(backend, deadline_s=300, chunk=4)
    return await reward.rate(
        [Candidate("What shall we do today?", f"Plan {n}: walk.") for n in range(count)]
    )


def test_a_dead_engine_ends_its_replica_and_loses_nothing(backend: Backend) -> None:
    """The engine runs in a process of its own, as on GPUs; its replica must not live on."""
    before = replica()

    async def run() -> list[Judgement]:
        rating = asyncio.create_task(rated(backend, 16))
        await asyncio.sleep(1.0)
        for engine in engines_of(before):
            engine.kill()
        return await rating

    found = asyncio.run(run())
    assert len(found) == 16 and all(j.ok for j in found), [j.reason for j in found if not j.ok]
    assert replica().pid != before.pid


def test_a_killed_replica_leaves_no_engine_behind(backend: Backend) -> None:
    """An engine without its replica would keep a GPU's memory from the replica that follows."""
    before = replica()
    engines = engines_of(before)
    before.kill()
    _, alive = psutil.wait_procs(engines, timeout=30)
    assert [p for p in alive if p.status() != psutil.STATUS_ZOMBIE] == []
    [found] = asyncio.run(rated(backend, 1))
    assert found.ok and replica().pid != before.pid


def test_a_killed_controller_leaves_its_replicas_alone(backend: Backend) -> None:
    before = replica()
    process("ServeController").kill()

    async def run() -> list[Judgement]:
        async with asyncio.timeout(120):
            while True:
                try:
                    await backend.check()
                    return await rated(backend, 2)
                except EngineUnavailable:
                    await asyncio.sleep(1)

    assert all(j.ok for j in asyncio.run(run()))
    assert replica().pid == before.pid
