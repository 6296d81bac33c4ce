"""Python's garbage collector beside many requests."""

from __future__ import annotations

import asyncio
import gc
import json
from typing import Any

from autoj_reward.client.backend import LocalBackend
from autoj_reward.client.client import RewardClient
from autoj_reward.config import JudgeConfig
from autoj_reward.edge.garbage import LOOK_AFTER, seldom_collected
from autoj_reward.edge.http import make_app
from autoj_reward.edge.responses import App, Message
from autoj_reward.judge.make import make_judge
from autoj_reward.replicas.replica import JudgeReplica


def test_it_looks_seldom_and_afterwards_as_before() -> None:
    before = gc.get_threshold()
    with seldom_collected():
        assert gc.get_threshold() == (LOOK_AFTER, *before[1:])
        assert gc.get_freeze_count() > 0
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


async def asked(app: App, response: str) -> int:
    """The status of one request, straight through ASGI, of a caller that stays to its end."""
    said = json.dumps({"candidates": [{"query": "Why?", "response": response}]}).encode()
    headers = [(b"authorization", b"Bearer secret"), (b"content-length", str(len(said)).encode())]
    scope: Message = {"type": "http", "method": "POST", "path": "/v1/score", "headers": headers}
    scope.update({"query_string": b"", "root_path": "", "http_version": "1.1", "scheme": "http"})
    came: list[Message] = [{"type": "http.request", "body": said}]
    told: list[Any] = []

    async def receive() -> Message:
        if not came:
            await asyncio.Event().wait()  # it never hangs up
        return came.pop()

    async def send(message: Message) -> None:
        told.append(message.get("status"))

    await app(scope, receive, send)
    return int(told[0])


async def test_a_request_leaves_nothing_for_it_to_find() -> None:
    backend = LocalBackend(JudgeReplica(make_judge(JudgeConfig(kind="fake"))))
    app = make_app(RewardClient(backend), "secret").guard
    assert await asked(app, "first") == 200
    gc.collect()
    gc.disable()
    try:
        statuses = await asyncio.gather(*(asked(app, f"response {n}") for n in range(50)))
        await asyncio.sleep(0)
        assert set(statuses) == {200}
        assert gc.collect() < 50  # not one a request
    finally:
        gc.enable()
