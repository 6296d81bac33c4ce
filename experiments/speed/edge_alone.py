"""Requests to the service, or to a bare FastAPI server on the same engine, without any sockets.

    valgrind --tool=cachegrind --cache-sim=no python -m experiments.speed.edge_alone service 600

has 600 under way at a time (`bare` for the other one). Instructions do not depend on who else uses
the machine; those of a run with 0 are the start's, so subtract them.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import nullcontext

from starlette.types import ASGIApp, Message

from autoj_reward.client.session import open_judge
from autoj_reward.config import JudgeConfig
from autoj_reward.garbage import seldom_collected
from autoj_reward.logs import log_to_stderr
from autoj_reward.service.api import make_app
from experiments.faults.chaos import bare
from experiments.faults.chaos.server import HEADERS, TOKEN

SCRIPT = {"latency_s": 0.5, "latency_spread": 0.5}


async def asked(app: ASGIApp, response: str) -> int:
    """The status of one request with a response to rate, of a caller that stays to its end."""
    said = json.dumps({"candidates": [{"query": "Why?", "response": response}]}).encode()
    told = HEADERS | {"Content-Length": str(len(said)), "Content-Type": "application/json"}
    headers = [(name.lower().encode(), value.encode()) for name, value in told.items()]
    scope: Message = {"type": "http", "method": "POST", "path": "/v1/score", "headers": headers}
    scope.update({"query_string": b"", "root_path": "", "http_version": "1.1", "scheme": "http"})
    came: list[Message] = [{"type": "http.request", "body": said}]
    statuses: list[int] = []

    async def receive() -> Message:
        if not came:
            await asyncio.Event().wait()  # it never hangs up
        return came.pop()

    async def send(message: Message) -> None:
        statuses.append(message.get("status", 0))

    await app(scope, receive, send)
    return statuses[0]


async def run(server: str, requests: int) -> None:
    """Some to warm up, then so many at a time."""
    judge = JudgeConfig.model_validate({"kind": "fake", "script": SCRIPT})
    service = server == "service"
    async with open_judge(judge) as client:
        app: ASGIApp = make_app(client, TOKEN).guard if service else bare.make_app(judge)
        with seldom_collected() if service else nullcontext():
            for count in (10, requests):
                found = await asyncio.gather(*(asked(app, f"answer {n}") for n in range(count)))
                assert set(found) <= {200}, found


if __name__ == "__main__":
    log_to_stderr()  # the service writes a line a request
    asyncio.run(run(sys.argv[1], int(sys.argv[2])))
