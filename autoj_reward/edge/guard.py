"""What stands before the HTTP app: token, limits, deadline, disconnects, request ids, one log line.

Plain ASGI, since all of it must hold before a body is read or parsed and for every route alike.
"""

from __future__ import annotations

import asyncio
import hmac
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from autoj_reward.edge.metrics import Metrics
from autoj_reward.edge.responses import Answer, App, Message, Receive, Refused, Send
from autoj_reward.edge.token import presented
from autoj_reward.errors import ConfigError
from autoj_reward.logs import LOG, REQUEST_ID, new_request_id

PUBLIC = ("/healthz", "/readyz", "/docs", "/openapi.json")
"""Need no token: probes cannot carry one, and these tell nothing of what is judged."""
DEADLINE_HEADER = "x-deadline-s"
CLIENT_GONE = 499
"""The status logged for a caller that hung up; nobody receives it."""


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


class Guard:
    """An ASGI app around another. draining: once set, new work is refused."""

    def __init__(self, app: App, token: str, metrics: Metrics, limits: Limits) -> None:
        if not token:
            raise ConfigError("a reward service needs a token that is not empty")
        self._app, self._token = app, token.encode()
        self._metrics, self._limits = metrics, limits
        self._requests = self._bytes = 0
        self.draining = False

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.monotonic()
        headers = _headers(scope)
        request_id = new_request_id(headers.get("x-request-id", ""))
        before = REQUEST_ID.set(request_id)
        answer = Answer(send, request_id, self._limits.retry_after_s)
        try:
            await self._handle(scope, headers, receive, answer)
        except Refused as error:
            await answer.refuse(error)
        except Exception:
            LOG.exception("a request failed", extra={"facts": {"path": scope["path"]}})
            await answer.refuse(Refused(500, "internal error; the log has it under this id"))
        finally:
            # Only known paths, so that strangers cannot grow the metrics.
            found = scope.get("route")
            route, seconds = getattr(found, "path", "other"), time.monotonic() - started
            self._metrics.answered(route, answer.status or CLIENT_GONE, seconds)
            if route not in PUBLIC:
                facts = {
                    "method": scope["method"],
                    "route": route,
                    "status": answer.status or CLIENT_GONE,
                    "seconds": round(seconds, 4),
                    "client": (scope.get("client") or [""])[0],
                }
                LOG.info("request", extra={"facts": facts})
            REQUEST_ID.reset(before)

    async def _handle(
        self, scope: Message, headers: dict[str, str], receive: Receive, answer: Answer
    ) -> None:
        if scope["path"] in PUBLIC:
            await self._app(scope, receive, answer.send)
            return
        given = presented(headers.get("authorization", "")).encode("utf-8", "replace")
        if not hmac.compare_digest(given, self._token):
            raise Refused(401, "wrong or missing token", "authorization")
        deadline = time.monotonic() + self._seconds(headers.get(DEADLINE_HEADER))
        if scope["method"] in ("GET", "HEAD"):
            await self._app(scope, receive, answer.send)
            return
        if self.draining:
            raise Refused(503, "this service is stopping")
        if self._requests >= self._limits.requests:
            raise Refused(429, f"{self._requests} requests are under way")
        with self._admitted() as hold:
            body = await self._body(headers, receive, hold)
            if body is not None:
                await self._work(scope, body, receive, answer, deadline)

    def _seconds(self, given: str | None) -> float:
        most = self._limits.deadline_s
        if given is None:
            return most
        try:
            seconds = float(given)
        except ValueError:
            seconds = math.nan
        if not 0 < seconds < math.inf:
            raise Refused(422, "seconds until the answer must begin, above 0", DEADLINE_HEADER)
        return min(most, seconds)

    @contextmanager
    def _admitted(self) -> Iterator[Callable[[int], None]]:
        """Counts the request and the bytes of its body while it is under way."""
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

    async def _body(
        self, headers: dict[str, str], receive: Receive, hold: Callable[[int], None]
    ) -> bytes | None:
        """The whole body, however it is sent; None if the caller hung up before its end."""
        most = self._limits.body
        stated = headers.get("content-length", "0")
        too_large = Refused(413, f"the body has more than {most} bytes")
        if not stated.isdecimal() or int(stated[:20]) > most:
            raise too_large
        chunks, size = [], 0
        try:
            async with asyncio.timeout(self._limits.body_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    chunk = message.get("body", b"")
                    size += len(chunk)
                    if size > most:
                        raise too_large
                    hold(len(chunk))
                    chunks.append(chunk)
                    if not message.get("more_body"):
                        return b"".join(chunks)
        except TimeoutError:
            raise Refused(408, f"the body took over {self._limits.body_s:g} s") from None

    async def _work(
        self, scope: Message, body: bytes, receive: Receive, answer: Answer, deadline: float
    ) -> None:
        """Run the app on a body that is read; stop it at the deadline, or when the caller hangs up,
        which cancels the judge's work all the way into the engine."""
        gone = asyncio.create_task(_until_gone(receive))
        unread = [body]

        async def replay() -> Message:
            if unread:
                return {"type": "http.request", "body": unread.pop(), "more_body": False}
            await asyncio.shield(gone)
            return {"type": "http.disconnect"}

        work = asyncio.ensure_future(self._app(scope, replay, answer.send))
        both = {gone, work}
        left = max(0.0, deadline - time.monotonic())
        try:
            done, _ = await asyncio.wait(both, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not done and answer.status:  # a stream that has begun in time
                done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if work in done or answer.finished:
                await work
            elif not done:
                raise Refused(504, f"no answer within {left:.3g} s")
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _headers(scope: Message) -> dict[str, str]:
    return {name.decode("latin-1").lower(): v.decode("latin-1") for name, v in scope["headers"]}
