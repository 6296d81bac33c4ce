"""The sending side of the HTTP edge: headers that every answer has, and errors as problems."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from autoj_reward.service.bodies import Refused, problem

LINES = "application/x-ndjson"
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class Answer:
    """The sending side of one request: adds the headers that every answer has.

    limit: until when the answer must begin; once it has, it takes as long as it takes.
    """

    limit: asyncio.Timeout | None = None
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
        """Answer with an error. Of an answer that has begun, only JSON lines can still tell it:
        the last one says that the rest is unavailable."""
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
        # What is unread of the body would be taken for the next request.
        headers += (
            [(b"connection", b"close")] if error.status in (401, 408, 413, 422, 429, 503) else []
        )
        await self.send({"type": "http.response.start", "status": error.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})
