"""An endpoint that goes down in the middle of a run and comes back later."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from autoj_reward.engine import endpoint as requests
from autoj_reward.engine.endpoint import TEST_MESSAGES
from tests.engine.test_distributions import Dialect
from tests.engine.test_openai_engine import Answer


def graded(body: dict[str, Any]) -> dict[str, float]:
    """Return rating probabilities that depend on the judged text: the written digit, and "9"."""
    text = [m["content"] for m in body["messages"] if m["role"] == "user"][-1]
    return {str(2 + sum(text.encode()) % 7): 0.75, "9": 0.2}


class Interrupted(Dialect):
    """Endpoint with the ratings of `graded` that goes down at judgement number `last`.

    That judgement and every open connection are cut off. Later connections are refused until
    `start`.
    """

    def __init__(self, last: int | None = None, **kind: Any) -> None:
        super().__init__(**kind)
        self.last, self.judged, self.is_up = last, 0, True
        self.answer = self.answered_until_last
        self._connections: list[socket.socket] = []
        self._watch()

    def ratings(self, body: dict[str, Any]) -> dict[str, float]:
        return graded(body)

    def answered_until_last(self, path: str, body: dict[str, Any]) -> Answer:
        if body["messages"][0] != TEST_MESSAGES[0] and body["max_tokens"] > 2:
            self.judged += 1
            if self.judged == self.last:
                self.stop()
        return self.answered(path, body)

    def stop(self) -> None:
        """Refuse new connections, and break the open ones."""
        self.is_up = False
        self.close()
        for connection in self._connections:
            with suppress(OSError):  # closed by now
                connection.shutdown(socket.SHUT_RDWR)

    def start(self) -> None:
        """Listen on the same port again."""
        self.listen(self.server.server_port)
        self._watch()
        self.is_up = True

    def _watch(self) -> None:
        """Keep track of connections, and ignore errors when they break."""
        accept = self.server.get_request

        def accept_and_track() -> Any:
            connection, address = accept()
            self._connections.append(connection)
            return connection, address

        self.server.get_request = accept_and_track  # type: ignore[method-assign]
        self.server.handle_error = lambda *_: None  # type: ignore[method-assign]


@contextmanager
def interrupted(
    monkeypatch: pytest.MonkeyPatch, missed: int | None = 8, **kind: Any
) -> Iterator[tuple[Interrupted, list[str]]]:
    """Yield an endpoint that comes back after a number of refused connections, and their errors.

    None: it stays away. Pauses between attempts are short.
    """
    endpoint, errors = Interrupted(**kind), list[str]()
    tell = requests.Endpoint._tell

    def count_refusals(self: requests.Endpoint, path: str, problem: str) -> None:
        tell(self, path, problem)
        errors.extend([problem] if "Cannot connect" in problem else [])
        if len(errors) == missed and not endpoint.is_up:
            endpoint.start()

    monkeypatch.setattr(requests.Endpoint, "_tell", count_refusals)
    monkeypatch.setattr(requests, "UNREACHED_PAUSE_S", 0.05)
    try:
        yield endpoint, errors
    finally:
        if endpoint.is_up:
            endpoint.stop()
