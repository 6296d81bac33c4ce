"""Connection limits of the HTTP server: every new connection is accepted, and none blocks
others."""

from __future__ import annotations

import os
import resource
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest
from fastapi import Response
from uvicorn.protocols.http.h11_impl import H11Protocol

from autoj_reward.errors import ConfigError
from autoj_reward.service import connections
from autoj_reward.service.api import Service
from autoj_reward.service.connections import Connections, MonitoredProtocol, set_connection_limits
from autoj_reward.service.serve import listen, make_server
from tests.service.test_api import HEADERS, SCORE, Stub, made, metric, until

WHOLE = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
HEAD = "POST /v1/score HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\n"


class _Plain(MonitoredProtocol, H11Protocol):
    """The protocol of an installation with uvicorn's own parser alone."""


@pytest.fixture(params=["httptools", "h11"], autouse=True)
def protocol(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "h11":
        monkeypatch.setattr(connections, "_Connection", _Plain)
    else:
        pytest.importorskip("httptools")


@contextmanager
def serving(app: Service, most: int) -> Iterator[tuple[str, Connections]]:
    listening = listen("127.0.0.1", 0)
    port = listening.getsockname()[1]
    server = make_server(app.guard, listening, most, 60)
    thread = threading.Thread(target=server.run)
    thread.start()
    until(lambda: server.started)
    try:
        yield f"127.0.0.1:{port}", server._among
    finally:
        server.should_exit = True
        thread.join()


def connected(stack: ExitStack, address: str) -> socket.socket:
    host, _, port = address.partition(":")
    return stack.enter_context(socket.create_connection((host, int(port)), timeout=60))


def closed(connection: socket.socket) -> bool:
    """Return whether the other side has closed the connection."""
    try:
        return connection.recv(4096) == b""
    except ConnectionResetError:
        return True


def answered(connection: socket.socket) -> bool:
    """Return whether a request on the connection is answered. The answer may come in parts."""
    connection.sendall(WHOLE)
    said = b""
    while not said.endswith(b"}"):
        if not (more := connection.recv(4096)):
            return False
        said += more
    return said.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nA: b\r\n"], ids=repr)
def test_newcomers_take_the_place_of_those_who_ask_nothing(sent: bytes) -> None:
    with serving(made(Stub()), most=4) as (address, among), ExitStack() as stack:
        idle = [connected(stack, address) for _ in range(12)]
        for connection in idle:
            if sent:
                connection.sendall(sent)
        assert httpx.get(f"http://{address}/healthz").status_code == 200
        answer = httpx.post(f"http://{address}/v1/score", json=SCORE, headers=HEADERS)
        assert answer.status_code == 200
        assert all(closed(connection) for connection in idle[:8])
        assert len(among._all) <= 5


def test_requests_under_way_keep_their_places() -> None:
    gate = threading.Event()
    app = made(Stub(gate))
    with serving(app, most=3) as (address, _), ExitStack() as stack:
        held: list[httpx.Response] = []

        def ask() -> None:
            held.append(httpx.post(f"http://{address}/v1/score", json=SCORE, headers=HEADERS))

        asking = [threading.Thread(target=ask) for _ in range(2)]
        for thread in asking:
            thread.start()
        until(lambda: metric(app, "autoj_requests_in_flight") == 2)
        for _ in range(10):
            connected(stack, address)
        assert httpx.get(f"http://{address}/healthz").status_code == 200
        gate.set()
        for thread in asking:
            thread.join()
        assert [answer.status_code for answer in held] == [200, 200]


def test_a_connection_is_kept_for_the_next_request() -> None:
    with serving(made(Stub()), most=8) as (address, among):
        with httpx.Client(base_url=f"http://{address}", headers=HEADERS) as client:
            for _ in range(3):
                assert client.post("/v1/score", json=SCORE).status_code == 200
            assert len(among._all) == 1
        until(lambda: not (among._all or among._idle or among._owing))


def test_strangers_make_room_before_callers() -> None:
    with serving(made(Stub()), most=4) as (address, among), ExitStack() as stack:
        client = stack.enter_context(httpx.Client(base_url=f"http://{address}", headers=HEADERS))
        assert client.post("/v1/score", json=SCORE).status_code == 200
        [known] = among._all
        strangers = [connected(stack, address) for _ in range(12)]
        assert all(closed(connection) for connection in strangers[:8])
        assert known in among._all
        assert client.post("/v1/score", json=SCORE).status_code == 200


def test_a_newcomer_takes_the_place_of_a_caller_who_asks_nothing() -> None:
    with serving(made(Stub()), most=2) as (address, among), ExitStack() as stack:
        for _ in range(2):
            caller = httpx.Client(base_url=f"http://{address}", headers=HEADERS)
            assert stack.enter_context(caller).post("/v1/score", json=SCORE).status_code == 200
        assert httpx.get(f"http://{address}/healthz").status_code == 200
        assert len(among._all) <= 2


def test_a_connection_is_kept_for_longer_than_clients_keep_it() -> None:
    with listen("127.0.0.1", 0) as listening:
        server = make_server(made(Stub()).guard, listening, 8, 60)
    kept = httpx.Limits().keepalive_expiry
    assert kept is not None and server.config.timeout_keep_alive > 2 * kept


def test_a_caller_may_take_longer_to_its_next_request_than_over_a_head(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 3.0)
    with serving(made(Stub()), most=8) as (address, among), ExitStack() as stack:
        caller = connected(stack, address)
        assert answered(caller)
        assert closed(connected(stack, address))  # later than HEAD_S, and a sweep has been
        assert answered(caller)
        caller.sendall(WHOLE[:9])  # begun, it is to end as any head is
        assert closed(caller)
        until(lambda: not among._all)


def test_what_came_while_the_server_was_busy_is_read_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 10.0)
    with serving(made(Stub()), most=8) as (address, among), ExitStack() as stack:
        caller = connected(stack, address)
        until(lambda: bool(among._all))
        busy, sent = threading.Event(), threading.Event()

        def be_busy() -> None:
            busy.set()
            assert sent.wait(60)

        def let_a_sweep_be_due() -> None:
            time.sleep(1.2)
            among._loop.call_soon(be_busy)  # in the very turn of the loop that a sweep wakes in

        among._loop.call_soon_threadsafe(let_a_sweep_be_due)
        assert busy.wait(60)
        monkeypatch.setattr(connections, "HEAD_S", 0.001)
        caller.sendall(WHOLE)
        sent.set()
        assert caller.recv(4096).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("drip", [False, True], ids=["silent", "dripping"])
def test_a_head_that_does_not_end(monkeypatch: pytest.MonkeyPatch, drip: bool) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.2)
    with serving(made(Stub()), most=8) as (address, among), ExitStack() as stack:
        slow = connected(stack, address)
        slow.sendall(b"GET /healthz HTTP/1.1\r\n")
        if drip:
            with pytest.raises(OSError):
                for _ in range(2000):
                    slow.sendall(b"A: b\r\n")
                    time.sleep(0.01)
        else:
            assert closed(slow)
        until(lambda: not among._all)


def test_a_head_without_end_is_not_kept() -> None:
    with serving(made(Stub()), most=8) as (address, among), ExitStack() as stack:
        greedy = connected(stack, address)
        greedy.sendall(b"GET /healthz HTTP/1.1\r\n")
        with pytest.raises(OSError):
            for _ in range(1000):
                greedy.sendall(b"A: " + b"x" * 4000 + b"\r\n")
                time.sleep(0.001)
        until(lambda: not among._all)


def test_an_answer_that_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "READ_S", 0.2)
    app = made(Stub())
    app.add_api_route("/large", lambda: Response(bytes(2**25)))
    with serving(app, most=8) as (address, among), ExitStack() as stack:
        deaf = connected(stack, address)
        deaf.sendall(HEAD.replace("POST /v1/score", "GET /large").encode() + b"\r\n")
        until(lambda: bool(among._all))
        until(lambda: not among._all)


def test_requests_are_not_piled_up() -> None:
    with serving(made(Stub()), most=8) as (address, among), ExitStack() as stack:
        eager = connected(stack, address)
        with pytest.raises(OSError):
            for _ in range(1000):
                eager.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 100)
                time.sleep(0.001)
        until(lambda: not among._all)


def test_half_a_body_does_not_hold_up_the_end() -> None:
    app = made(Stub())
    with ExitStack() as stack:
        with serving(app, most=8) as (address, _):
            half = connected(stack, address)
            half.sendall(f"{HEAD}Content-Length: 100\r\n\r\n{{".encode())
            until(lambda: metric(app, "autoj_requests_in_flight") == 1)
        assert half.recv(4096).startswith(b"HTTP/1.1 503 ")


def test_a_websocket_is_no_way_in() -> None:
    head = (
        "GET /v1/score HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    with serving(made(Stub()), most=8) as (address, _), ExitStack() as stack:
        caller = connected(stack, address)
        caller.sendall(head.encode())
        assert caller.recv(4096).startswith(b"HTTP/1.1 401 ")


def test_a_reset_before_it_is_taken() -> None:
    with serving(made(Stub()), most=8) as (address, among):
        for _ in range(20):
            host, _, port = address.partition(":")
            with socket.create_connection((host, int(port))) as brief:
                linger = struct.pack("ii", 1, 0)
                brief.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        assert httpx.get(f"http://{address}/healthz").status_code == 200
        until(lambda: not among._all)


@pytest.mark.parametrize(
    ("soft", "hard", "requests", "found"),
    [
        pytest.param(50_000, 50_000, 4096, (5120, 4096), id="enough"),
        pytest.param(1024, 50_000, 4096, (5120, 4096), id="raised"),
        pytest.param(-1, -1, 10, (1034, 10), id="no limit"),
        pytest.param(1024, 1024, 4096, (856, 428), id="little"),
        pytest.param(1024, 1024, 100, (856, 100), id="little, few requests"),
    ],
)
def test_places(
    soft: int,
    hard: int,
    requests: int,
    found: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: told.append(limits))
    monkeypatch.setattr(os, "listdir", lambda path: ["0"] * 40)
    room = set_connection_limits(requests)
    assert (room.most, room.requests) == found
    assert told in ([], [(min(hard, 4096 + 1024 + 168), hard)], [(1024, 1024)])


def test_too_few_files_for_a_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (256, 256))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: None)
    with pytest.raises(ConfigError, match="256 open files is too low"):
        set_connection_limits(4096)
