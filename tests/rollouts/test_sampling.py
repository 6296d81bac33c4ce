"""Sampling: progress with each response, and a judge that works beside the policy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
import ray

from autoj_reward.config import BestOfNConfig, JudgeConfig, PolicyConfig, ReplicaConfig
from autoj_reward.conversation import Prompt
from autoj_reward.engine.base import Generation
from autoj_reward.engine.fake import FakeEngine
from autoj_reward.errors import EngineUnavailable
from autoj_reward.journal import Journal
from autoj_reward.replicas.cluster import Cluster
from autoj_reward.replicas.replica import PolicyReplica
from rollouts.best_of_n import sampling
from rollouts.best_of_n.job import run_job
from rollouts.best_of_n.sampling import Sampler

Batches = AsyncGenerator[list[tuple[int, Generation]]]


async def test_progress_moves_with_each_response_and_back_with_a_lost_replica(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moves, calls = list[int](), list[str]()

    class Lost:
        async def batches(self, prompt: Prompt) -> Batches:
            calls.append(prompt.text)
            yield [(1, Generation("b", logprob=-2.0))]
            if len(calls) == 1:
                raise EngineUnavailable("the replica was lost")
            yield [(0, Generation("a", logprob=-1.0))]

    async def open_lost(*_: Any) -> Any:
        return Lost()

    monkeypatch.setattr(sampling, "open_policy", open_lost)
    journal = Journal(tmp_path / "journal.sqlite")
    sampler = Sampler(PolicyConfig(kind="fake", n=2), journal, None, moves.append)
    same, again = await asyncio.gather(sampler.sample(Prompt("q")), sampler.sample(Prompt("q")))
    assert same == again and not isinstance(same, str)
    assert (same.responses, same.logprobs) == (("a", "b"), (-1.0, -2.0))
    assert moves == [1, -1, 1, 1] and calls == ["q", "q"]
    await sampler.sample(Prompt("q"))  # from the journal
    assert moves[4:] == [2] and len(calls) == 2
    journal.close()


def test_a_query_is_judged_while_the_next_one_is_sampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_judged = asyncio.Event()
    batches, answer = PolicyReplica.batches, FakeEngine._log

    async def wait_for_the_judge(self: PolicyReplica, prompt: Any) -> Batches:
        if prompt.text == "second":
            await first_judged.wait()
        async for batch in batches(self, prompt):
            yield batch

    def log(self: FakeEngine, responses: list[str]) -> None:
        answer(self, responses)
        first_judged.set()

    monkeypatch.setattr(PolicyReplica, "batches", wait_for_the_judge)
    monkeypatch.setattr(FakeEngine, "_log", log)
    rows = tmp_path / "in.jsonl"
    rows.write_text('{"query": "first"}\n{"query": "second"}\n')
    policy = PolicyConfig(kind="fake", n=2, serve=ReplicaConfig(deadline_s=60))
    judge = JudgeConfig(kind="fake")
    config = BestOfNConfig(input=str(rows), output=tmp_path / "out", policy=policy, judge=judge)
    summary = run_job(config)
    assert (summary.queries, summary.candidates, summary.rows_left_out) == (2, 4, 0)


ENGINE = {"model": "smollm2-135m-instruct", "kv_cache_gib": 1.0}


@pytest.mark.parametrize(
    ("resources", "settings", "room"),
    [
        ({"CPU": 2, "memory": 16 * 2**30}, {}, True),
        ({"CPU": 2, "memory": 6 * 2**30}, {}, False),
        ({"CPU": 2, "memory": 6 * 2**30}, {"kind": "fake"}, True),
        ({"CPU": 0.5, "memory": 16 * 2**30}, {}, False),
        ({"CPU": 8, "GPU": 2}, {}, False),  # each takes all GPUs
        ({"CPU": 8, "GPU": 2}, {"serve": {"replicas": 1}}, True),
    ],
)
def test_room_for_judge_and_policy_together(
    resources: dict[str, float],
    settings: dict[str, Any],
    room: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster()
    monkeypatch.setattr(cluster, "start", lambda: None)
    monkeypatch.setattr(ray, "cluster_resources", lambda: resources)
    judge = JudgeConfig.model_validate(ENGINE | settings)
    policy = PolicyConfig.model_validate(
        ENGINE | {k: v for k, v in settings.items() if k != "kind"}
    )
    assert cluster.has_room(judge, policy) is room
