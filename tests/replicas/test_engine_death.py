"""Processes killed under a judge, on the real stack: each test leaves a replica that judges."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from autoj_reward.client.backend import Backend
from autoj_reward.client.client import RewardClient
from autoj_reward.config import JudgeConfig
from autoj_reward.errors import EngineUnavailable
from autoj_reward.journal import Journal
from autoj_reward.replicas.cluster import Cluster
from autoj_reward.types import Candidate, Judgement

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
    """The one process of this title."""
    [found] = [
        p for p in psutil.process_iter(["cmdline"]) if title in " ".join(p.info["cmdline"] or ())
    ]
    return found


def replica() -> psutil.Process:
    return process("ServeReplica:judge")


def engines_of(one: psutil.Process) -> list[psutil.Process]:
    found = [p for p in one.children(recursive=True) if "EngineCore" in p.name()]
    assert found, "the engine has a process of its own"
    return found


async def rated(backend: Backend, count: int, **options: Any) -> list[Judgement]:
    reward = RewardClient(backend, deadline_s=300, chunk=4, **options)
    return await reward.rate(
        [Candidate("What shall we do today?", f"Plan {n}: walk.") for n in range(count)]
    )


async def rated_while(backend: Backend, kill: Callable[[], None], **options: Any) -> int:
    """How many answers are reported of 24 candidates, all of which are answered, when `kill` comes
    after the first."""
    told: list[Judgement] = []
    first = asyncio.Event()

    def progress(judgement: Judgement, _reused: bool) -> None:
        told.append(judgement)
        first.set()

    rating = asyncio.create_task(rated(backend, 24, max_in_flight=8, progress=progress, **options))
    await first.wait()
    kill()
    found = await rating
    assert len(found) == 24 and all(j.ok for j in found), [j.reason for j in found if not j.ok]
    return len(told)


def test_a_dead_engine_ends_its_replica_and_loses_nothing(backend: Backend) -> None:
    """The engine runs in a process of its own, as on GPUs; its replica must not live on."""
    before = replica()

    def kill() -> None:
        for engine in engines_of(before):
            engine.kill()

    assert asyncio.run(rated_while(backend, kill)) == 24
    assert replica().pid != before.pid


def test_a_killed_replica_loses_nothing_and_leaves_no_engine_behind(
    backend: Backend, tmp_path: Path
) -> None:
    """An engine without its replica would keep a GPU's memory from the replica that follows."""
    before = replica()
    engines = engines_of(before)
    with closing(Journal(tmp_path / "journal.sqlite")) as journal:
        told = asyncio.run(rated_while(backend, before.kill, journal=journal))
    assert told == 24, "each candidate is answered exactly once"
    _, alive = psutil.wait_procs(engines, timeout=30)
    assert [p for p in alive if p.status() != psutil.STATUS_ZOMBIE] == []
    assert replica().pid != before.pid


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
