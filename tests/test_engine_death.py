"""An engine killed inside a living replica, on the real stack."""

from __future__ import annotations

import asyncio

import psutil  # type: ignore[import-untyped]
import pytest

from autoj_reward.config import JudgeConfig
from autoj_reward.serve.client import RewardClient
from autoj_reward.serve.cluster import Cluster
from autoj_reward.types import Candidate, Judgement

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

CONFIG = JudgeConfig(max_tokens=48, max_model_len=2048, kv_cache_gib=0.5)


def replica() -> psutil.Process:
    """The one judge replica's process."""
    [found] = [
        p
        for p in psutil.process_iter(["cmdline"])
        if "ServeReplica:judge" in " ".join(p.info["cmdline"] or ())
    ]
    return found


def test_a_dead_engine_ends_its_replica_and_loses_nothing() -> None:
    """The engine runs in a process of its own, as on GPUs; its replica must not live on."""
    cluster = Cluster()
    try:
        reward = RewardClient(cluster.deploy_judge(CONFIG), deadline_s=300, chunk=4)
        before = replica()

        async def run() -> list[Judgement]:
            rating = asyncio.create_task(
                reward.rate(
                    [Candidate("What shall we do today?", f"Plan {n}: walk.") for n in range(16)]
                )
            )
            await asyncio.sleep(1.0)
            engines = [p for p in before.children(recursive=True) if "EngineCore" in p.name()]
            assert engines, "the engine has a process of its own"
            for engine in engines:
                engine.kill()
            return await rating

        found = asyncio.run(run())
        assert len(found) == 16 and all(j.ok for j in found), [j.reason for j in found if not j.ok]
        assert replica().pid != before.pid
    finally:
        cluster.close()


def test_a_killed_replica_leaves_no_engine_behind() -> None:
    """An engine without its replica would keep a GPU's memory from the replica that follows."""
    cluster = Cluster()
    try:
        reward = RewardClient(cluster.deploy_judge(CONFIG), deadline_s=300, chunk=4)
        before = replica()
        engines = [p for p in before.children(recursive=True) if "EngineCore" in p.name()]
        assert engines, "the engine has a process of its own"
        before.kill()
        _, alive = psutil.wait_procs(engines, timeout=30)
        assert [p for p in alive if p.status() != psutil.STATUS_ZOMBIE] == []
        [found] = asyncio.run(reward.rate([Candidate("What shall we do today?", "Walk.")]))
        assert found.ok and replica().pid != before.pid
    finally:
        cluster.close()
