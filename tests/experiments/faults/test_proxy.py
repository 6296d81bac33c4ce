"""The shipped nginx configuration in front of a running service with a scripted judge."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from autoj_reward.service.api import Service
from autoj_reward.service.gateway import Limits
from autoj_reward.service.serve import EdgeConfig, make_server
from autoj_reward.types import JudgeInput, Judgement
from experiments.faults.proxy import SHIPPED, Proxy, find_nginx, nginx_before
from tests.judgements import rated
from tests.processes import wait_until
from tests.service.test_api import HEADERS, SCORE, Stub, make_service, metric, serving
from tests.service.test_leaving import ITEMS, Talkative, send_request

needs_nginx = pytest.mark.skipif(
    find_nginx() is None or shutil.which("openssl") is None,
    reason="needs nginx and openssl: apt-get install nginx-light openssl",
)
SOON = {
    "client_header_timeout 10s;": "client_header_timeout 1s;",
    "client_body_timeout 10s;": "client_body_timeout 1s;",
    "send_timeout 30s;": "send_timeout 1s;",
}
"""Shorter timeouts, for tests that wait until nginx closes a connection."""
HEAD = "POST /v1/score HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\n"
ELSEWHERE = "127.0.0.9"
"""Another address of this machine."""


@contextmanager
def serve_behind_nginx(
    app: Service, folder: Path, changes: Mapping[str, str] | None = None
) -> Iterator[Proxy]:
    with serving(app) as port, nginx_before(port, folder, changes) as proxy:
        yield proxy


def make_client(proxy: Proxy, local_address: str | None = None) -> httpx.Client:
    trusted = ssl.create_default_context(cafile=proxy.certificate)
    transport = httpx.HTTPTransport(verify=trusted, local_address=local_address)
    return httpx.Client(transport=transport, base_url=proxy.https, headers=HEADERS, timeout=600)


def find_plain_port(proxy: Proxy) -> int:
    return int(proxy.http.rpartition(":")[2])


def send_plain(proxy: Proxy, text: str) -> socket.socket:
    """Return a connection without TLS on which a text has been sent."""
    connection = socket.create_connection(("127.0.0.1", find_plain_port(proxy)), timeout=600)
    connection.sendall(text.encode())
    return connection


def read_to_end(connection: socket.socket) -> bytes:
    """Return what arrives until the other side closes the connection."""
    received = b""
    try:
        while chunk := connection.recv(4096):
            received += chunk
    except ConnectionResetError:
        pass
    return received


def read_seconds(name: str) -> float:
    [value] = re.findall(rf"\b{name} (\d+)s;", SHIPPED.read_text(encoding="utf-8"))
    return float(value)


def test_its_limits_go_with_those_of_the_service() -> None:
    assert read_seconds("proxy_read_timeout") > EdgeConfig().deadline_s
    keep_alive_s = make_server(make_service(Stub()).guard, 60).config.timeout_keep_alive
    assert read_seconds("keepalive_timeout") < keep_alive_s
    assert f"client_max_body_size {Limits().body // 2**20}m;" in SHIPPED.read_text(encoding="utf-8")
    assert f"server {EdgeConfig().host}:{EdgeConfig().port};" in SHIPPED.read_text(encoding="utf-8")


@needs_nginx
def test_answers_errors_and_addresses_pass(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gate = threading.Event()
    with (
        caplog.at_level(logging.INFO, "autoj_reward"),
        serve_behind_nginx(make_service(Stub(gate)), tmp_path) as proxy,
        make_client(proxy, ELSEWHERE) as client,
    ):
        late = client.post("/v1/score", json=SCORE, headers={"X-Deadline-S": "0.2"})
        assert late.status_code == 504 and late.json()["detail"].startswith("no answer within 0.2")
        gate.set()
        headers = {"X-Request-Id": "step-7", "X-Forwarded-For": "203.0.113.1"}
        answer = client.post("/v1/score", json=SCORE, headers=headers)
        assert answer.status_code == 200 and answer.headers["x-request-id"] == "step-7"
        stranger = client.post("/v1/score", json=SCORE, headers={"Authorization": "Bearer wrong"})
        assert stranger.status_code == 401 and stranger.json()["field"] == "authorization"
        assert "retry-after" not in stranger.headers
        with send_plain(proxy, f"{HEAD}Content-Length: {2**27}\r\n\r\n") as connection:
            assert connection.recv(4096).startswith(b"HTTP/1.1 413 ")
    facts = [record.__dict__["facts"] for record in caplog.records if "facts" in record.__dict__]
    assert [(fact["status"], fact["client"]) for fact in facts] == [
        (504, ELSEWHERE),
        (200, ELSEWHERE),
        (401, ELSEWHERE),
    ]


class Gated(Stub):
    """Backend whose first answer comes at once, and the others once its gate is open."""

    async def stream(self, items: Sequence[JudgeInput]) -> AsyncIterator[tuple[int, Judgement]]:
        assert self.gate is not None
        yield 0, rated(1.0, judge="stub")
        while not self.gate.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for index in range(1, len(items)):
            yield index, rated(2.0, judge="stub")


@needs_nginx
def test_each_line_arrives_when_it_is_done(tmp_path: Path) -> None:
    gate = threading.Event()
    with (
        serve_behind_nginx(make_service(Gated(gate)), tmp_path) as proxy,
        make_client(proxy) as client,
        client.stream("POST", "/v1/judge", json=ITEMS) as answer,
    ):
        lines = answer.iter_lines()
        assert json.loads(next(lines))["index"] == 0
        gate.set()
        assert [json.loads(line)["index"] for line in lines] == [1]


@needs_nginx
def test_a_caller_that_hangs_up_frees_the_engine(tmp_path: Path) -> None:
    stub = Stub(threading.Event())
    app = make_service(stub)
    with serve_behind_nginx(app, tmp_path) as proxy:
        with send_request(find_plain_port(proxy), "/v1/score", SCORE):
            wait_until(lambda: stub.begun == 1)
        wait_until(lambda: stub.cancelled == 1 and metric(app, "autoj_requests_in_flight") == 0)


CLIENT = """
import sys
from autoj_reward import Judge

with Judge.connect(sys.argv[1]) as judge:
    print(judge.rate("Why?", "four").view("rating"))
"""


@needs_nginx
def test_a_client_trusts_a_certificate_that_it_is_given(tmp_path: Path) -> None:
    with serve_behind_nginx(make_service(Stub()), tmp_path) as proxy:
        process = subprocess.run(
            [sys.executable, "-c", CLIENT, proxy.https],
            env=os.environ | {"AUTOJ_TOKEN": "secret", "SSL_CERT_FILE": str(proxy.certificate)},
            capture_output=True,
            text=True,
            check=False,
        )
    assert process.returncode == 0, process.stderr[-2000:]
    assert process.stdout == "4\n"


def trickle(connection: socket.socket) -> None:
    """Send a header byte by byte until the other side closes the connection."""
    connection.settimeout(0.02)
    for _ in range(3000):
        try:
            connection.sendall(b"a")
            if connection.recv(4096) == b"":
                return
        except TimeoutError:
            continue
        except OSError:
            return
    raise AssertionError("the connection is still open")


SLOW: dict[str, tuple[str, Callable[[socket.socket], Any]]] = {
    "silent": ("", read_to_end),
    "half a header": ("GET /healthz HTTP/1.1\r\nA: b", read_to_end),
    "a header byte by byte": ("GET /healthz HTTP/1.1\r\nA: b", trickle),
    "half a body": (f"{HEAD}Content-Length: 100\r\n\r\n{{", read_to_end),
}


@needs_nginx
def test_who_sends_too_slowly_never_reaches_the_service(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.INFO, "autoj_reward"),
        serve_behind_nginx(make_service(Stub()), tmp_path, SOON) as proxy,
        ExitStack() as stack,
    ):
        slow = [
            (stack.enter_context(send_plain(proxy, text)), wait)
            for text, wait in SLOW.values()
            for _ in range(50)
        ]
        with make_client(proxy) as client:
            assert client.post("/v1/score", json=SCORE).status_code == 200
        for connection, wait in slow:
            wait(connection)
    assert len(caplog.records) == 1  # the service logs every request, an unfinished one too


@needs_nginx
def test_who_does_not_read_is_dropped(tmp_path: Path) -> None:
    stub = Talkative()
    with (
        serve_behind_nginx(make_service(stub), tmp_path, SOON) as proxy,
        send_request(find_plain_port(proxy), "/v1/judge", ITEMS) as connection,
    ):
        assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")
        wait_until(lambda: stub.cancelled == 1)


@needs_nginx
def test_one_address_has_so_many_requests_in_flight(tmp_path: Path) -> None:
    gate = threading.Event()
    app = make_service(Stub(gate))
    changes = {"limit_conn address 2048;": "limit_conn address 4;"}
    with serve_behind_nginx(app, tmp_path, changes) as proxy, ExitStack() as stack:
        port = find_plain_port(proxy)
        connections = [
            stack.enter_context(send_request(port, "/v1/score", SCORE)) for _ in range(4)
        ]
        wait_until(lambda: metric(app, "autoj_requests_in_flight") == 4)
        for _ in range(20):
            with send_request(port, "/v1/score", SCORE) as extra:
                assert extra.recv(4096).startswith(b"HTTP/1.1 429 ")
        assert metric(app, "autoj_requests_in_flight") == 4
        with make_client(proxy, ELSEWHERE) as client:
            assert client.get("/healthz").status_code == 200
        gate.set()
        for connection in connections:
            assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")


@needs_nginx
def test_a_flood_without_a_token_stays_outside(tmp_path: Path) -> None:
    app = make_service(Stub())
    with (
        serve_behind_nginx(app, tmp_path, {"rate=10r/s;": "rate=1r/m;"}) as proxy,
        make_client(proxy) as client,
    ):
        answers = [httpx.post(f"{proxy.http}/v1/score", json=SCORE) for _ in range(60)]
        statuses = [answer.status_code for answer in answers]
        assert statuses[0] == 401 and statuses[-1] == 429 and set(statuses) == {401, 429}
        assert metric(app, "autoj_requests_total", status="401") == statuses.count(401) < 30
        for _ in range(60):
            assert client.post("/v1/score", json=SCORE).status_code == 200
