"""ASGI gateway of the HTTP API: token, limits, deadlines, disconnects, request ids and access log.

It is plain ASGI, because these checks run before a body is read, and for every route.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from autoj_reward.errors import ConfigError
from autoj_reward.logs import LOG, REQUEST, REQUEST_ID, new_request_id
from autoj_reward.service.bodies import Refused, problem
from autoj_reward.service.metrics import Metrics
from autoj_reward.tracing import span

PUBLIC = ("/healthz", "/readyz", "/openapi.json")
"""Paths that need no token: probes cannot send one, and these paths reveal nothing that is
judged."""
DEADLINE_HEADER = "x-deadline-s"
"""Request header with the seconds until the answer must begin."""
DEADLINE_SCOPE = "deadline_s"
"""Key of these seconds, within the service's own limit, in a request's ASGI scope."""
RUN_HEADER = "x-run"
"""Request header with the name of the run."""
CLIENT_GONE = 499
"""Status that is logged when a caller hangs up. It is never sent."""
STOPPING = "this service is stopping"
"""Detail of a refusal while the service stops."""
LINES = "application/x-ndjson"
"""Content type of JSON lines."""
Hold = Callable[[int], None]
"""Function that counts body bytes towards the limit, or raises Refused."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a service."""

    body: int = 64 * 2**20
    """Bytes of one request's body."""
    bodies: int = 512 * 2**20
    """Bytes of the bodies of all requests in flight."""
    requests: int = 4096
    """Requests in flight."""
    body_s: float = 60.0
    """Seconds in which a body must arrive."""
    deadline_s: float = 1800.0
    """Seconds until an answer must begin."""
    retry_after_s: int = 1
    """Seconds after which refused callers are told to retry."""


class Guard:
    """ASGI app that checks every request before it passes it to another app.

    public: paths that need no token. Its attribute `admission` counts the requests in flight.
    """

    def __init__(
        self,
        app: ASGIApp,
        token: str,
        metrics: Metrics,
        limits: Limits,
        public: Sequence[str] = PUBLIC,
    ) -> None:
        if not token:
            raise ConfigError("a reward service needs a token that is not empty")
        self._app, self._token, self._public = app, token.encode(), public
        self._metrics, self._limits = metrics, limits
        self.admission = Admission(metrics, limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.monotonic()
        headers = _read_headers(scope)
        request_id = new_request_id(headers.get("x-request-id", ""))
        before = REQUEST_ID.set(request_id)
        answer = AnswerSender(send, request_id, self._limits.retry_after_s)
        try:
            await self._handle(scope, headers, receive, answer)
        except Refused as error:
            await answer.refuse(error)
        except Exception:
            LOG.exception("a request failed", extra={"facts": {"path": scope["path"]}})
            await answer.refuse(Refused(500, "internal error; the log has it under this id"))
        finally:
            # Only known routes become labels, so that unknown paths cannot grow the metrics.
            matched_route = scope.get("route")
            route, seconds = getattr(matched_route, "path", "other"), time.monotonic() - started
            self._metrics.count_request(route, answer.status or CLIENT_GONE, seconds)
            if route not in self._public:
                facts = {
                    "method": scope["method"],
                    "route": route,
                    "status": answer.status or CLIENT_GONE,
                    "seconds": round(seconds, 4),
                    "client": (scope.get("client") or [""])[0],
                }
                is_unauthorized = answer.status == 401
                LOG.info("refused" if is_unauthorized else REQUEST, extra={"facts": facts})
            REQUEST_ID.reset(before)

    async def _handle(
        self, scope: Scope, headers: dict[str, str], receive: Receive, answer: AnswerSender
    ) -> None:
        if scope["path"] in self._public:
            await self._app(scope, receive, answer.send)
            return
        presented_token = extract_token(headers.get("authorization", "")).encode("utf-8", "replace")
        if not hmac.compare_digest(presented_token, self._token):
            raise Refused(401, "wrong or missing token", "authorization")
        scope[DEADLINE_SCOPE] = self._read_deadline_s(headers.get(DEADLINE_HEADER))
        deadline = time.monotonic() + scope[DEADLINE_SCOPE]
        if scope["method"] in ("GET", "HEAD"):
            await self._app(scope, receive, answer.send)
            return
        with self.admission.admit() as hold:
            unread_chunks = await self.admission.read_body(
                headers.get("content-length", "0"), receive, hold
            )
            if unread_chunks is not None:
                with span("autoj.request", kind="SERVER", caller=headers) as note:
                    await self._run_app(scope, unread_chunks, receive, answer, deadline)
                    note(_describe_request(scope, answer.status))

    def _read_deadline_s(self, header: str | None) -> float:
        max_s = self._limits.deadline_s
        if header is None:
            return max_s
        try:
            seconds = float(header)
        except ValueError:
            seconds = math.nan
        if not 0 < seconds < math.inf:
            raise Refused(422, "seconds until the answer must begin, above 0", DEADLINE_HEADER)
        return min(max_s, seconds)

    async def _run_app(
        self,
        scope: Scope,
        unread_chunks: deque[bytes],
        receive: Receive,
        answer: AnswerSender,
        deadline: float,
    ) -> None:
        """Run the app on a body that has arrived. No copy of the body is kept here.

        The app is cancelled at the deadline, at the end of a drain, and when the caller hangs up.
        The cancellation stops the judge's work down to the engine.
        """
        disconnect_task = asyncio.create_task(_wait_until_gone(receive))

        async def replay() -> Message:
            if unread_chunks:
                chunk = unread_chunks.popleft()
                return {"type": "http.request", "body": chunk, "more_body": bool(unread_chunks)}
            await asyncio.shield(disconnect_task)
            return {"type": "http.disconnect"}

        def expire_limit(_: object) -> None:
            if not (answer.finished or limit.expired()):
                limit.reschedule(0)

        disconnect_task.add_done_callback(expire_limit)
        remaining_s = max(0.0, deadline - time.monotonic())
        limit = answer.limit = asyncio.timeout(remaining_s)
        try:
            async with limit:
                self.admission.working.add(limit)
                await self._app(scope, replay, answer.send)
        except TimeoutError:
            if not limit.expired():
                raise
            if disconnect_task.done():
                return
            if self.admission.over:
                raise Refused(503, STOPPING) from None
            raise Refused(504, f"no answer within {remaining_s:.3g} s") from None
        finally:
            self.admission.working.discard(limit)
            disconnect_task.remove_done_callback(expire_limit)
            disconnect_task.cancel()


class Admission:
    """Requests in flight, and the limits on them.

    draining: new requests are refused. over: a drain has run out of time, and requests in flight
    are refused too. working: the timeouts of the requests in flight.
    """

    def __init__(self, metrics: Metrics, limits: Limits) -> None:
        self._metrics, self._limits = metrics, limits
        self._requests = self._bytes = 0
        self._reading: set[asyncio.Timeout] = set()
        self.working: set[asyncio.Timeout] = set()
        self.draining = self.over = False

    def drain(self, seconds: float) -> None:
        """Refuse new requests, and end those in flight after `seconds`.

        Requests whose bodies have not arrived are refused at once, because their callers may never
        send the rest.
        """
        self.draining = True
        _expire_limits(self._reading)
        asyncio.get_running_loop().call_later(seconds, self._end_drain)

    def _end_drain(self) -> None:
        self.over = True
        _expire_limits(self.working)

    @contextmanager
    def admit(self) -> Iterator[Hold]:
        """Count a request as in flight while a `with` block runs.

        Yields a function that counts bytes of its body. Raises Refused while the service stops
        (503) and at the limits on requests and bytes (429).
        """
        if self.draining:
            raise Refused(503, STOPPING)
        if self._requests >= self._limits.requests:
            raise Refused(429, f"{self._requests} requests are under way")
        held_bytes = 0

        def hold(size: int) -> None:
            nonlocal held_bytes
            if self._bytes + size > self._limits.bodies:
                raise Refused(429, f"requests under way hold {self._bytes} bytes")
            held_bytes += size
            self._bytes += size

        self._requests += 1
        self._metrics.in_flight.inc()
        try:
            yield hold
        finally:
            self._requests -= 1
            self._bytes -= held_bytes
            self._metrics.in_flight.dec()

    async def read_body(
        self, content_length: str, receive: Receive, hold: Hold
    ) -> deque[bytes] | None:
        """Read a request's whole body. Return its chunks; None if the caller hung up.

        content_length: that header. hold: called with the size of each chunk in bytes. There is at
        least one chunk. Raises Refused for a body that is too large (413) or too slow (408),
        and while the service stops (503).
        """
        max_bytes = self._limits.body
        if not content_length.isdecimal() or int(content_length[:20]) > max_bytes:
            raise Refused(413, f"the body has more than {max_bytes} bytes")
        limit = asyncio.timeout(self._limits.body_s)
        try:
            async with limit:
                self._reading.add(limit)
                return await self._receive_body(receive, hold)
        except TimeoutError:
            if self.draining:
                raise Refused(503, STOPPING) from None
            raise Refused(408, f"the body took over {self._limits.body_s:g} s") from None
        finally:
            self._reading.discard(limit)

    async def _receive_body(self, receive: Receive, hold: Hold) -> deque[bytes] | None:
        max_bytes, size, chunks = self._limits.body, 0, deque[bytes]()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            chunk = message.get("body", b"")
            size += len(chunk)
            if size > max_bytes:
                raise Refused(413, f"the body has more than {max_bytes} bytes")
            hold(len(chunk))
            chunks.append(chunk)
            if not message.get("more_body"):
                return chunks


class AnswerSender:
    """Sender of one request's answer. Adds the headers that every answer has."""

    limit: asyncio.Timeout | None = None
    """Timeout until the answer begins; after that there is none."""
    _in_lines = False

    def __init__(self, send: Send, request_id: str, retry_after_s: int) -> None:
        self._send, self._id, self._retry_after_s = send, request_id, retry_after_s
        self.status = 0
        self.finished = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if self.limit is not None and not self.limit.expired():
                self.limit.reschedule(None)
            headers = [*message.get("headers", ()), (b"x-request-id", self._id.encode())]
            self._in_lines = (b"content-type", LINES.encode()) in headers
            if self.status in (429, 503):
                headers.append((b"retry-after", str(self._retry_after_s).encode()))
            if self.status == 401:
                headers.append((b"www-authenticate", b"Bearer"))
            message = {**message, "headers": headers}
        elif not message.get("more_body"):
            self.finished = True
        await self._send(message)

    async def refuse(self, error: Refused) -> None:
        """Answer with an error.

        If an answer has begun, only JSON lines can still report it: a last line says that the rest
        is unavailable.
        """
        if self._in_lines and not self.finished:
            line = json.dumps({"unavailable": error.detail}) + "\n"
            await self.send({"type": "http.response.body", "body": line.encode()})
        if self.status:
            return
        body = problem(error.detail, error.field)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ]
        # Unread bytes of the body would be parsed as the next request.
        headers += (
            [(b"connection", b"close")] if error.status in (401, 408, 413, 422, 429, 503) else []
        )
        await self.send({"type": "http.response.start", "status": error.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})


def extract_token(authorization: str) -> str:
    """Return the token of an Authorization header.

    It is a bearer token, or the password of Basic authorization for callers that can only be given
    a URL (http://any:TOKEN@host).
    """
    scheme, _, value = authorization.partition(" ")
    return (
        value.strip() if scheme.lower() == "bearer" else parse_basic_authorization(authorization)[1]
    )


def parse_basic_authorization(authorization: str) -> tuple[str, str]:
    """Return user and password of Basic authorization; empty strings if there are none.

    Clients send it for a URL that holds user and password.
    """
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() != "basic":
        return "", ""
    try:
        user, _, password = base64.b64decode(value, validate=True).decode("utf-8").partition(":")
    except ValueError:
        return "", ""
    return user, password


def run_name(headers: Mapping[str, str]) -> str:
    """Return the name of a caller's run: the header X-Run, else the user in its URL.

    Such a URL is http://RUN:TOKEN@host. "" for callers that give no name, which share one. headers:
    by their names in lower case.
    """
    user, _ = parse_basic_authorization(headers.get("authorization", ""))
    return (headers.get(RUN_HEADER, "") or user)[:80]


async def _wait_until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _describe_request(scope: Scope, status: int) -> dict[str, str | int]:
    """Return the attributes of a request's span."""
    return {
        "http.request.method": scope["method"],
        "http.route": getattr(scope.get("route"), "path", "other"),
        "http.response.status_code": status or CLIENT_GONE,
        "autoj.request_id": REQUEST_ID.get(),
    }


def _read_headers(scope: Scope) -> dict[str, str]:
    return {name.decode("latin-1").lower(): v.decode("latin-1") for name, v in scope["headers"]}


def _expire_limits(limits: Iterable[asyncio.Timeout]) -> None:
    for limit in limits:
        if not limit.expired():
            limit.reschedule(0)
