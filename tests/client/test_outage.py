"""A service that stops answering: what the log says while a trainer waits for it."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack

import pytest

from autoj_reward.client.client import JudgeClient
from autoj_reward.client.remote import REMIND_S, HttpBackend, Outage
from autoj_reward.client.session import open_judge
from autoj_reward.config import JudgeConfig, RelativeConfig
from autoj_reward.service.api import make_app
from autoj_reward.types import Candidate
from tests.processes import wait_until
from tests.service.test_api import serving
from tests.support.ports import free_port

WAITING, AGAIN = "waiting for the reward service at", "answers again"
LISTWISE = RelativeConfig(by="listwise")


def list_messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("gathered", [False, True])
def test_a_killed_service_is_named_at_once_and_when_it_is_back(
    caplog: pytest.LogCaptureFixture, gathered: bool
) -> None:
    caplog.set_level(logging.WARNING, "autoj_reward")
    port = free_port()
    address = f"http://127.0.0.1:{port}"

    async def ask(client: JudgeClient) -> bool:
        if not gathered:
            [judgement] = await client.rate([Candidate("Why?", "Because.")])
            return judgement.ok
        assert isinstance(client.backend, HttpBackend)
        members = [Candidate("Why?", text, group_id="g", group_size=2) for text in ("a", "bb")]
        rating = (client.backend.rate_member(member, LISTWISE, 60) for member in members)
        return all(judgement.ok for judgement in await asyncio.gather(*rating))

    async def run() -> tuple[bool, list[str]]:
        judge = JudgeConfig(kind="fake", format="listwise" if gathered else "autoj-en")
        async with open_judge(judge) as served:
            first_app, second_app = make_app(served, "secret"), make_app(served, "secret")
            with serving(first_app, port):
                backend = await HttpBackend.connect(address, "secret", 10)
            async with AsyncExitStack() as stack:
                stack.push_async_callback(backend.close)
                client = await stack.enter_async_context(JudgeClient(backend))
                assert not list_messages(caplog)
                asking = asyncio.create_task(ask(client))
                await asyncio.to_thread(wait_until, lambda: list_messages(caplog))
                while_gone = list_messages(caplog)
                with serving(second_app, port):
                    return await asking, while_gone

    answered, while_gone = asyncio.run(run())
    assert answered
    [waiting] = while_gone
    assert waiting.startswith(f"{WAITING} {address}: ") and "lost" in waiting
    again = list_messages(caplog)[1:]
    assert len(again) == 1 and address in again[0] and AGAIN in again[0]


def test_a_long_outage_is_named_each_minute(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "autoj_reward")
    seconds = 0.0
    outage = Outage("http://judge", lambda: seconds)
    for _ in range(10 * 60):
        outage.add("connection refused")
        seconds += 1
    outage.end()
    outage.end()
    first, *reminders, last = list_messages(caplog)
    assert REMIND_S == 60 and len(reminders) == 9
    assert first == "waiting for the reward service at http://judge: connection refused"
    assert reminders[1].startswith(
        "still waiting for the reward service at http://judge, for 120 s"
    )
    assert last == "the reward service at http://judge answers again after 600 s: going on"


def test_a_service_that_is_late_at_the_start_is_named(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "autoj_reward")
    port = free_port()

    async def run() -> None:
        async with open_judge(JudgeConfig(kind="fake")) as served:
            app = make_app(served, "secret")
            connecting = asyncio.create_task(
                HttpBackend.connect(f"http://127.0.0.1:{port}", "secret", 60)
            )
            await asyncio.to_thread(wait_until, lambda: list_messages(caplog))
            with serving(app, port):
                await (await connecting).close()

    asyncio.run(run())
    first, last = list_messages(caplog)
    assert WAITING in first and AGAIN in last
