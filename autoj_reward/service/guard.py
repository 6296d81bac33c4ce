"""What stands before the HTTP app: token, limits, deadline, disconnects, request ids, one log line.

Plain ASGI, since all of it must hold before a body is read or parsed and for every route alike.
"""

from __future__ import annotations

import asyncio
import hmac
import math
import time
from collections import deque
from collections.abc import Sequence

from autoj_reward.errors import ConfigError
from autoj_reward.logs import LOG, REQUEST, REQUEST_ID, new_request_id
from autoj_reward.service.bodies import Refused
from autoj_reward.service.intake import STOPPING, Intake, Limits
from autoj_reward.service.metrics import Metrics
from autoj_reward.service.responses import Answer, App, Message, Receive, Send
from autoj_reward.service.token import presented

PUBLIC = ("/healthz", "/readyz", "/openapi.json")
"""Need no token: probes cannot carry one, and these tell nothing of what is judged."""
DEADLINE_HEADER = "x-deadline-s"
CLIENT_GONE = 499
"""The status logged for a caller that hung up; nobody receives it."""


class Guard:
    """An ASGI app around another. public: paths that need no token. intake: the requests under
    way."""

    def __init__(
        self,
        app: App,
        token: str,
        metrics: Metrics,
        limits: Limits,
        public: Sequence[str] = PUBLIC,
    ) -> None:
        if not token:
            raise ConfigError("a reward service needs a token that is not empty")
        self._app, self._token, self._public = app, token.encode(), public
        self._metrics, self._limits = metrics, limits
        self.intake = Intake(metrics, limits)

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
            if route not in self._public:
                facts = {
                    "method": scope["method"],
                    "route": route,
                    "status": answer.status or CLIENT_GONE,
                    "seconds": round(seconds, 4),
                    "client": (scope.get("client") or [""])[0],
                }
                stranger = answer.status == 401
                LOG.info("refused" if stranger else REQUEST, extra={"facts": facts})
            REQUEST_ID.reset(before)

    async def _handle(
        self, scope: Message, headers: dict[str, str], receive: Receive, answer: Answer
    ) -> None:
        if scope["path"] in self._public:
            await self._app(scope, receive, answer.send)
            return
        given = presented(headers.get("authorization", "")).encode("utf-8", "replace")
        if not hmac.compare_digest(given, self._token):
            raise Refused(401, "wrong or missing token", "authorization")
        deadline = time.monotonic() + self._seconds(headers.get(DEADLINE_HEADER))
        if scope["method"] in ("GET", "HEAD"):
            await self._app(scope, receive, answer.send)
            return
        with self.intake.admitted() as hold:
            unread = await self.intake.body(headers.get("content-length", "0"), receive, hold)
            if unread is not None:
                await self._work(scope, unread, receive, answer, deadline)

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

    async def _work(
        self,
        scope: Message,
        unread: deque[bytes],
        receive: Receive,
        answer: Answer,
        deadline: float,
    ) -> None:
        """Run the app on a body that has arrived, of which nothing is kept here; stop it at the
        deadline, at the end of a drain, or when the caller hangs up. Each cancels the judge's work
        all the way into the engine."""
        gone = asyncio.create_task(_until_gone(receive))

        async def replay() -> Message:
            if unread:
                chunk = unread.popleft()
                return {"type": "http.request", "body": chunk, "more_body": bool(unread)}
            await asyncio.shield(gone)
            return {"type": "http.disconnect"}

        def hung_up(_: object) -> None:
            if not (answer.finished or limit.expired()):
                limit.reschedule(0)

        gone.add_done_callback(hung_up)
        left = max(0.0, deadline - time.monotonic())
        limit = answer.limit = asyncio.timeout(left)
        try:
            async with limit:
                self.intake.working.add(limit)
                await self._app(scope, replay, answer.send)
        except TimeoutError:
            if not limit.expired():
                raise
            if gone.done():
                return
            if self.intake.over:
                raise Refused(503, STOPPING) from None
            raise Refused(504, f"no answer within {left:.3g} s") from None
        finally:
            self.intake.working.discard(limit)
            gone.remove_done_callback(hung_up)
            gone.cancel()


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _headers(scope: Message) -> dict[str, str]:
    return {name.decode("latin-1").lower(): v.decode("latin-1") for name, v in scope["headers"]}
