"""What a service takes on at a time: requests, and the bytes of their bodies."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from autoj_reward.service.bodies import Refused
from autoj_reward.service.metrics import Metrics
from autoj_reward.service.nesting import Nesting
from autoj_reward.service.responses import Receive

STOPPING = "this service is stopping"
Hold = Callable[[int], None]
"""Counts so many more bytes of a body, or refuses them."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one service takes on.

    body, bodies: bytes of one request's body, and of all that are under way. requests: under way
    at a time. body_s: seconds in which a body must arrive. deadline_s: seconds until an answer
    must begin. retry_after_s: what refused callers are told to wait.
    """

    body: int = 64 * 2**20
    bodies: int = 512 * 2**20
    requests: int = 4096
    body_s: float = 60.0
    deadline_s: float = 1800.0
    retry_after_s: int = 1


class Intake:
    """Requests in flight. draining: once set, new ones are refused. over: set when a drain has run
    out of time, and those still in flight are refused. working: their time limits."""

    def __init__(self, metrics: Metrics, limits: Limits) -> None:
        self._metrics, self._limits = metrics, limits
        self._requests = self._bytes = 0
        self._reading: set[asyncio.Timeout] = set()
        self.working: set[asyncio.Timeout] = set()
        self.draining = self.over = False

    def drain(self, seconds: float) -> None:
        """Refuse new requests, and those whose bodies have not arrived: a caller that stops in the
        midst of one would be waited for. Refuse what is still in flight after so many seconds."""
        self.draining = True
        _end(self._reading)
        asyncio.get_running_loop().call_later(seconds, self._end_drain)

    def _end_drain(self) -> None:
        self.over = True
        _end(self.working)

    @contextmanager
    def admitted(self) -> Iterator[Hold]:
        """Counts a request and the bytes of its body while it is under way."""
        if self.draining:
            raise Refused(503, STOPPING)
        if self._requests >= self._limits.requests:
            raise Refused(429, f"{self._requests} requests are under way")
        held = 0

        def hold(size: int) -> None:
            nonlocal held
            if self._bytes + size > self._limits.bodies:
                raise Refused(429, f"requests under way hold {self._bytes} bytes")
            held += size
            self._bytes += size

        self._requests += 1
        self._metrics.in_flight.inc()
        try:
            yield hold
        finally:
            self._requests -= 1
            self._bytes -= held
            self._metrics.in_flight.dec()

    async def body(self, stated: str, receive: Receive, hold: Hold) -> deque[bytes] | None:
        """The pieces of the whole body, at least one, however it is sent; None if the caller hung
        up before its end. stated: its Content-Length."""
        most = self._limits.body
        if not stated.isdecimal() or int(stated[:20]) > most:
            raise Refused(413, f"the body has more than {most} bytes")
        limit = asyncio.timeout(self._limits.body_s)
        try:
            async with limit:
                self._reading.add(limit)
                return await self._arrived(receive, hold)
        except TimeoutError:
            if self.draining:
                raise Refused(503, STOPPING) from None
            raise Refused(408, f"the body took over {self._limits.body_s:g} s") from None
        finally:
            self._reading.discard(limit)

    async def _arrived(self, receive: Receive, hold: Hold) -> deque[bytes] | None:
        most, size, nesting, chunks = self._limits.body, 0, Nesting(), deque[bytes]()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            chunk = message.get("body", b"")
            size += len(chunk)
            if size > most:
                raise Refused(413, f"the body has more than {most} bytes")
            hold(len(chunk))
            nesting.read(chunk)
            chunks.append(chunk)
            if not message.get("more_body"):
                return chunks


def _end(limits: Iterable[asyncio.Timeout]) -> None:
    for limit in limits:
        if not limit.expired():
            limit.reschedule(0)
