"""Callers that hang up, and callers that still wait when a drain has run out of time."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from autoj_reward.client.remote import HttpBackend
from autoj_reward.config import JUDGE, JudgeConfig, RewardConfig
from autoj_reward.errors import EngineUnavailable
from autoj_reward.service import serve
from autoj_reward.service.serve import Edge, EdgeConfig, listen, open_edge
from autoj_reward.types import JudgeInput, Judgement
from tests.judgements import rated
from tests.processes import wait_until
from tests.service.test_api import HEADERS, SCORE, Stub, make_service, metric, serving

PAIR = {"query": "q", "first": "a", "second": "bb"}
ITEMS = {"items": [{"query": "q", "responses": ["a"]}, {"query": "q", "responses": ["bb"]}]}
GENRM = {"input": "Why?", "metadata": {"response_1": "a", "response_2": "bb"}}
ROUTES: dict[str, Any] = {
    "/v1/score": SCORE,
    "/v1/compare": {"pairs": [PAIR]},
    "/v1/best_of_n": {"query": "q", "responses": ["a", "bb"]},
    "/v1/judge": ITEMS,
    "/reward": {"prompt": "Why?", "response": "a"},
    "/get_reward": {"query": ["Why?a", "Why?bb"], "prompts": ["Why?", "Why?"]},
    "/v1/responses": GENRM,
}


class RunningEdge:
    """A service whose scripted judge answers one request at a time, and takes an hour for it."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._listening = listen("127.0.0.1", 0)
        self.port = self._listening.getsockname()[1]
        backend: Any = edge.model.judges.clients[JUDGE].backend
        self._engine = backend._replica._engine
        self._served: Future[None] = edge.loop.submit(edge.server.serve([self._listening]))

    def works(self) -> bool:
        """Return whether the engine is working on an answer."""
        return bool(self._engine._turn.locked())

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._edge.server.server_state.connections)

    @property
    def in_flight(self) -> float:
        return metric(self._edge.app, "autoj_requests_in_flight")

    def end(self, signals: int = 1) -> None:
        """Drain as after this many signals, and wait for the end."""
        for _ in range(signals):
            self._edge.stop()
        self._served.result()


@contextmanager
def serve_edge(drain_s: int = 0, latency_s: float = 3600.0) -> Iterator[RunningEdge]:
    judge = JudgeConfig(kind="fake", script={"latency_s": latency_s, "concurrent": 1})
    config = EdgeConfig(reward=RewardConfig(judge=judge, view="rating"), drain_s=drain_s)
    with open_edge(config, "secret") as edge:
        service = RunningEdge(edge)
        try:
            yield service
        finally:
            service.end()


def format_request(path: str, body: Any) -> bytes:
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


def send_request(port: int, path: str, body: Any) -> socket.socket:
    """Return a connection on which a request has been sent."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=600)
    connection.sendall(format_request(path, body))
    return connection


def test_a_caller_that_hangs_up_frees_the_engine_on_every_route() -> None:
    with serve_edge() as service:
        for path, body in ROUTES.items():
            connection = send_request(service.port, path, body)
            wait_until(service.works)
            connection.close()
            wait_until(lambda: not service.works() and service.in_flight == 0)


PROTOCOLS = pytest.mark.parametrize("protocol", [HttpToolsProtocol, H11Protocol])


@PROTOCOLS
@pytest.mark.parametrize("at_once", [True, False], ids=["at_once", "one_by_one"])
def test_a_caller_that_sends_further_requests_and_hangs_up_holds_nothing(
    protocol: type[asyncio.Protocol], at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "AutoHTTPProtocol", protocol)
    request = format_request("/v1/score", SCORE)
    with serve_edge() as service:
        connection = socket.create_connection(("127.0.0.1", service.port), timeout=600)
        connection.sendall(request * 3 if at_once else request)
        wait_until(service.works)
        connection.sendall(request * 2)
        assert service.in_flight == 1
        connection.close()
        wait_until(lambda: not service.works() and service.in_flight == 0)
        wait_until(lambda: not service.connections)


@PROTOCOLS
def test_the_first_of_several_requests_is_answered_and_the_connection_closed(
    protocol: type[asyncio.Protocol], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "AutoHTTPProtocol", protocol)
    large = {"candidates": [{"query": "q", "response": "word " * 100_000}]}
    with serve_edge(latency_s=0.0) as service:
        address = ("127.0.0.1", service.port)
        with socket.create_connection(address, timeout=600) as connection:
            for _ in range(2):  # in turn, a connection serves any number of requests
                connection.sendall(format_request("/v1/score", large))
                assert read_answer(connection).startswith(b"HTTP/1.1 200 ")
            connection.sendall(format_request("/v1/score", SCORE) * 2)
            assert read_answer(connection).startswith(b"HTTP/1.1 200 ")
            assert connection.recv(1) == b""


def read_answer(connection: socket.socket) -> bytes:
    """Return one answer, to the end of its body."""
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += connection.recv(4096)
    head, _, body = answer.partition(b"\r\n\r\n")
    [length] = re.findall(rb"(?i)content-length: (\d+)", head)
    while len(body) < int(length):
        body += connection.recv(4096)
    assert len(body) == int(length)
    return head


def test_an_answer_that_another_caller_waits_for_goes_on() -> None:
    with serve_edge() as service:
        callers = [send_request(service.port, "/v1/score", SCORE) for _ in range(2)]
        wait_until(lambda: service.works() and service.in_flight == 2)
        callers[0].close()
        wait_until(lambda: service.in_flight == 1)
        assert service.works()
        callers[1].close()
        wait_until(lambda: not service.works())


def test_who_still_waits_at_the_end_of_a_drain_is_told_so() -> None:
    with serve_edge() as service:
        answers: dict[str, httpx.Response] = {}

        def ask(path: str, body: Any) -> None:
            url = f"http://127.0.0.1:{service.port}{path}"
            answers[path] = httpx.post(url, json=body, headers=HEADERS, timeout=600)

        threads = [threading.Thread(target=ask, args=route) for route in ROUTES.items()]
        for thread in threads:
            thread.start()
        wait_until(lambda: service.in_flight == len(ROUTES))
        service.end()
        for thread in threads:
            thread.join()
    assert answers.keys() == ROUTES.keys()
    lines = answers.pop("/v1/judge").text.splitlines()  # its status was sent before
    assert [json.loads(line) for line in lines] == [{"unavailable": "this service is stopping"}]
    for path, answer in answers.items():
        assert answer.status_code == 503 and answer.headers["retry-after"] == "1", path
        assert answer.json()["detail"] == "this service is stopping"


def test_a_second_signal_ends_the_drain() -> None:
    with (
        serve_edge(drain_s=3600) as service,
        send_request(service.port, "/v1/score", SCORE) as connection,
    ):
        wait_until(service.works)
        service.end(signals=2)
        assert connection.recv(4096).startswith(b"HTTP/1.1 503 ")


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        pytest.param("POST /v1/score HTTP/1.1\r\nHost: x\r\n", b"", id="header"),
        pytest.param(
            "POST /v1/score HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\n"
            "Content-Length: 100\r\n\r\n{",
            b"HTTP/1.1 503 ",
            id="body",
        ),
    ],
)
def test_half_a_request_does_not_hold_up_the_end(sent: str, answer: bytes) -> None:
    with (
        serve_edge(drain_s=3600) as service,
        socket.create_connection(("127.0.0.1", service.port), timeout=600) as connection,
    ):
        connection.sendall(sent.encode())
        if answer:
            wait_until(lambda: service.in_flight == 1)
        else:
            wait_until(lambda: bool(service.connections))
        service.end()
        assert connection.recv(4096)[:13] == answer


def test_a_client_hears_that_the_service_is_stopping() -> None:
    async def run(service: RunningEdge) -> None:
        backend = await HttpBackend.connect(f"http://127.0.0.1:{service.port}", "secret", 60)

        async def ask() -> None:
            async for _ in backend.stream([JudgeInput("single", "q", ("a",))]):
                pass

        call = asyncio.create_task(ask())
        await asyncio.to_thread(wait_until, service.works)
        await asyncio.to_thread(service.end)
        with pytest.raises(EngineUnavailable, match="this service is stopping"):
            await call
        await backend.close()

    with serve_edge() as service:
        asyncio.run(run(service))


class Talkative(Stub):
    """Backend that answers with more than the buffers of a connection hold."""

    async def stream(self, items: Sequence[JudgeInput]) -> AsyncIterator[tuple[int, Judgement]]:
        self.begun += 1
        try:
            for _ in range(100):
                critique = "x" * 2**20
                yield 0, rated(1.0, critique=critique, judge="stub")
        finally:
            self.cancelled += 1


def test_a_caller_that_hangs_up_in_the_midst_of_unread_lines() -> None:
    stub = Talkative()
    app = make_service(stub)
    with serving(app) as port:
        connection = send_request(port, "/v1/judge", ITEMS)
        assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")
        connection.close()
        wait_until(lambda: stub.cancelled == 1 and metric(app, "autoj_requests_in_flight") == 0)
