"""Requests in flight: fewer when the server is overloaded, more again when it answers."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from autoj_reward.config import JudgeConfig, ReplicaConfig
from autoj_reward.engine import endpoint as requests
from autoj_reward.engine.endpoint import InFlightLimit
from autoj_reward.errors import EngineUnavailable
from tests.engine.test_openai_engine import Answer, Endpoint, ask, chat, config, make_engine

MOST = 64


async def answer_some(limit: InFlightLimit, count: int) -> None:
    for _ in range(count):
        await limit.take()
        limit.give()
        limit.grow()


async def test_the_limit_halves_and_grows_back_to_where_it_was() -> None:
    limit = InFlightLimit(MOST)
    limit.fall(time.monotonic())
    assert limit.limit == MOST // 2
    await answer_some(limit, MOST)
    assert MOST // 2 < limit.limit < MOST
    await answer_some(limit, 40 * MOST)
    assert limit.limit == MOST


def test_requests_that_were_sent_before_the_last_fall_count_once() -> None:
    limit = InFlightLimit(MOST)
    sent_at = time.monotonic()
    for _ in range(10):
        limit.fall(sent_at)
    assert limit.limit == MOST // 2


def test_one_request_is_always_allowed() -> None:
    limit = InFlightLimit(3)
    for _ in range(10):
        limit.fall(time.monotonic() + 1e6)
        limit._fell_at = 0.0
    assert limit.limit == 1


async def test_slots_go_in_turn_and_none_is_lost() -> None:
    limit = InFlightLimit(2)
    taken: list[int] = []

    async def work(number: int) -> None:
        await limit.take()
        taken.append(number)
        await asyncio.sleep(0)
        limit.give()

    tasks = [asyncio.create_task(work(number)) for number in range(20)]
    await asyncio.sleep(0)
    tasks[5].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert taken == [number for number in range(20) if number != 5]
    await asyncio.wait_for(asyncio.gather(limit.take(), limit.take()), 10)


class Crowded(Endpoint):
    """Endpoint that takes a number of requests at a time and refuses others with a status."""

    def __init__(self, places: int, status: int) -> None:
        super().__init__()
        self.places, self.status = places, status
        self.refused, self._inside, self._lock = 0, 0, threading.Lock()
        self.answer = self._answer_or_refuse

    def _answer_or_refuse(self, path: str, body: dict[str, Any]) -> Answer:
        with self._lock:
            if self._inside >= self.places:
                self.refused += 1
                return self.status, "busy", {}
            self._inside += 1
        try:
            threading.Event().wait(0.002)  # others come meanwhile
            return chat("done")
        finally:
            with self._lock:
                self._inside -= 1


@pytest.mark.parametrize("status", [429, 503])
async def test_fewer_requests_are_sent_to_a_crowded_server(
    monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setattr(requests, "LONGEST_PAUSE_S", 0.005)
    crowded = Crowded(4, status)
    engine = make_engine(config(crowded))
    await engine.start()
    limit, limits = engine._endpoint._free, list[int]()

    async def ask_and_note(number: int) -> None:
        await ask(engine, f"hi {number}")
        limits.append(limit.limit)

    await asyncio.gather(*(ask_and_note(number) for number in range(300)))
    assert crowded.refused and min(limits) < 64
    crowded.places = 1000
    while limit.limit < 256:
        await asyncio.gather(*(ask_and_note(number) for number in range(100)))
    await engine.close()
    crowded.close()


async def test_slow_answers_alone_change_nothing(endpoint: Endpoint) -> None:
    release = threading.Event()

    def wait_for_all(path: str, body: dict[str, Any]) -> Answer:
        if len(endpoint.requests) == 8:
            release.set()
        release.wait(30)
        return chat("done")

    endpoint.answer = wait_for_all
    engine = make_engine(config(endpoint))
    await engine.start()
    await asyncio.gather(*(ask(engine, f"hi {number}") for number in range(8)))
    assert engine._endpoint._free.limit == 256
    await engine.close()


async def test_a_server_that_never_ends_its_answer_is_left_at_the_deadline() -> None:
    """It sends a byte now and then, so that no single read takes long."""

    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        try:
            while True:
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.01)
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(trickle, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        judge = JudgeConfig(kind="openai", base_url=url, serve=ReplicaConfig(deadline_s=0.3))
        engine = make_engine(judge)
        await engine.start()
        with pytest.raises(EngineUnavailable, match=r"no answer within 0\.3 s"):
            await ask(engine)
        await engine.close()
