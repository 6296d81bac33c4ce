"""Python's garbage collector beside many requests."""

from __future__ import annotations

import asyncio
import gc
import json

from starlette.types import ASGIApp, Message, Scope

from autoj_reward.client.backend import LocalBackend
from autoj_reward.client.client import JudgeClient
from autoj_reward.config import JudgeConfig
from autoj_reward.models.spec import judge_spec
from autoj_reward.processes import GC_THRESHOLD, relaxed_gc
from autoj_reward.service.api import make_app

TOKEN = "secret"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}


async def request_rating(app: ASGIApp, response: str) -> int:
    """The status of a request to rate a response, without a socket, by a caller that stays."""
    body = json.dumps({"candidates": [{"query": "Why?", "response": response}]}).encode()
    header_values = HEADERS | {"Content-Length": str(len(body)), "Content-Type": "application/json"}
    headers = [(name.lower().encode(), value.encode()) for name, value in header_values.items()]
    scope: Scope = {"type": "http", "method": "POST", "path": "/v1/score", "headers": headers}
    scope.update({"query_string": b"", "root_path": "", "http_version": "1.1", "scheme": "http"})
    messages: list[Message] = [{"type": "http.request", "body": body}]
    statuses: list[int] = []

    async def receive() -> Message:
        if not messages:
            await asyncio.Event().wait()  # it never hangs up
        return messages.pop()

    async def send(message: Message) -> None:
        statuses.append(message.get("status", 0))

    await app(scope, receive, send)
    return statuses[0]


def test_it_looks_seldom_and_afterwards_as_before() -> None:
    before = gc.get_threshold()
    gc.unfreeze()  # tests/conftest.py froze what is imported
    with relaxed_gc():
        assert gc.get_threshold() == (GC_THRESHOLD, *before[1:])
        assert gc.get_freeze_count() > 0
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0
    gc.freeze()
    with relaxed_gc():
        pass
    assert gc.get_freeze_count() > 0  # its caller's


async def test_a_request_leaves_nothing_for_it_to_find() -> None:
    backend = LocalBackend(judge_spec(JudgeConfig(kind="fake")))
    app = make_app(JudgeClient(backend), TOKEN).guard
    assert await request_rating(app, "first") == 200
    gc.collect()
    gc.disable()
    try:
        statuses = await asyncio.gather(*(request_rating(app, f"response {n}") for n in range(50)))
        await asyncio.sleep(0)
        assert set(statuses) == {200}
        assert gc.collect() < 50  # not one a request
    finally:
        gc.enable()
