"""Requests and tokens a minute of an endpoint's account, which the processes of a run divide."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.config import BestOfNConfig, RewardConfig
from autoj_reward.edge.server import EdgeConfig, listen
from autoj_reward.edge.sharing import Plan, SharedModel
from autoj_reward.trainer.reward import RewardModel
from autoj_reward.types import Candidate
from rollouts.best_of_n.job import run
from rollouts.best_of_n.shards import of_worker
from tests.engine.test_openai_engine import Answer, Endpoint, chat
from tests.evaluate_rows import write

REQUESTS = 600
"""A minute: one each tenth of a second."""
EARLY = 0.9
"""Requests may arrive that much closer together than they leave."""


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    made = Endpoint()
    yield made
    made.server.shutdown()
    made.server.server_close()


def reward(endpoint: Endpoint, **limits: Any) -> RewardConfig:
    judge = {"kind": "openai", "model": "m", "base_url": endpoint.url, "max_tokens": 100, **limits}
    return RewardConfig.model_validate({"judge": judge, "view": "rating"})


def arrivals(endpoint: Endpoint) -> list[float]:
    """The times at which requests come, filled while they do."""
    times: list[float] = []

    def answer(path: str, body: dict[str, Any]) -> Answer:
        times.append(time.monotonic())
        return chat("Good.\nRating: [[7]]", usage={"total_tokens": 1000})

    endpoint.answer = answer
    return times


def asked(model: RewardModel) -> None:
    with model:
        found = model.rewards_now([Candidate("q", f"response {n}") for n in range(5)])
    assert [one.raw for one in found] == [7.0] * 5


@pytest.mark.parametrize(
    ("limits", "world", "each_s"),
    [
        pytest.param({"requests_per_minute": REQUESTS}, None, 0.1, id="requests"),
        pytest.param({"requests_per_minute": REQUESTS}, "3", 0.3, id="of three ranks"),
        pytest.param({"tokens_per_minute": 60_000}, None, 0.1, id="tokens"),
    ],
)
def test_requests_leave_as_fast_as_the_account_allows(
    limits: dict[str, Any],
    world: str | None,
    each_s: float,
    endpoint: Endpoint,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if world:
        monkeypatch.setenv("WORLD_SIZE", world)
    times = arrivals(endpoint)
    asked(RewardModel(reward(endpoint, **limits)))
    assert times[-1] - times[0] >= EARLY * each_s * (len(times) - 1)


def test_the_edges_of_a_service_divide_the_limits(endpoint: Endpoint) -> None:
    config = EdgeConfig(reward=reward(endpoint, requests_per_minute=REQUESTS), edges=3)
    times = arrivals(endpoint)
    with listen("127.0.0.1", 0) as listening:
        asked(SharedModel(Plan(config, "secret", listening, {})))
    assert times[-1] - times[0] >= EARLY * 0.3 * (len(times) - 1)


def test_the_workers_of_a_job_in_shards_divide_the_limits(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    judge = reward(endpoint, requests_per_minute=REQUESTS).judge
    rows = write(tmp_path / "in.jsonl", [{"query": "q", "responses": list("abcde")}])
    data = {"input": rows, "output": tmp_path / "out", "judge": judge, "tie_break": ["first"]}
    job = of_worker(BestOfNConfig.model_validate(data), 3)
    times = arrivals(endpoint)
    assert run(job).candidates == 5
    assert times[-1] - times[0] >= EARLY * 0.3 * (len(times) - 1)
