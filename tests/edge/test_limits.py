"""The edges of a service and the limits of an endpoint's account."""

from __future__ import annotations

import time
from typing import Any

from autoj_reward.edge.server import EdgeConfig, listen
from autoj_reward.edge.sharing import Plan, SharedModel
from autoj_reward.types import Candidate
from tests.engine.test_openai_engine import Answer, Endpoint, chat

EDGES, REQUESTS = 3, 600
"""Each edge sends a request each 0.3 s."""
EARLY = 0.9
"""Requests may arrive that much closer together than they leave."""


def test_the_edges_of_a_service_divide_the_requests_a_minute() -> None:
    endpoint, times = Endpoint(), list[float]()

    def answer(path: str, body: dict[str, Any]) -> Answer:
        times.append(time.monotonic())
        return chat("Good.\nRating: [[7]]")

    endpoint.answer = answer
    where = {"kind": "openai", "model": "m", "base_url": endpoint.url}
    judge = where | {"requests_per_minute": REQUESTS}
    reward = {"judge": judge, "view": "rating"}
    config = EdgeConfig.model_validate({"reward": reward, "edges": EDGES})
    with (
        listen("127.0.0.1", 0) as listening,
        SharedModel(Plan(config, "secret", listening, {})) as model,
    ):
        found = model.rewards_now([Candidate("q", f"response {n}") for n in range(5)])
    endpoint.server.shutdown()
    endpoint.server.server_close()
    assert [one.raw for one in found] == [7.0] * 5
    assert times[-1] - times[0] >= EARLY * 60 * EDGES / REQUESTS * (len(times) - 1)
