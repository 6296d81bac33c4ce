"""The HTTP API: over real sockets where connections matter, else directly through ASGI."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import struct
import threading
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from autoj_reward.client.backend import Backend, LocalBackend
from autoj_reward.client.client import ClientLimits, JudgeClient
from autoj_reward.client.remote import HttpBackend
from autoj_reward.config import JudgeConfig
from autoj_reward.config.models import MAX_TEXT_CHARS
from autoj_reward.errors import EngineUnavailable, FormatError, JournalError, ReplicaLost
from autoj_reward.logs import JsonLines
from autoj_reward.models.facts import Asks
from autoj_reward.models.spec import JudgeSpec, judge_spec
from autoj_reward.service import bodies
from autoj_reward.service.api import Service, make_app
from autoj_reward.service.gateway import Limits
from autoj_reward.service.routes import MAX_VALUES
from autoj_reward.service.serve import listen, make_server
from autoj_reward.types import Candidate, JudgeInput, Judgement, Outcome, Usage, Verdict
from tests.judgements import compared, rated
from tests.processes import wait_until

HEADERS = {"Authorization": "Bearer secret"}
SCORE = {"candidates": [{"query": "Why?", "response": "Because."}]}


class Stub(Backend):
    """Backend that rates by length once its gate is open, and counts begun and cancelled calls."""

    judge = "stub"

    def __init__(self, gate: threading.Event | None = None, error: Exception | None = None) -> None:
        self.gate, self.error = gate, error
        self.begun = self.cancelled = 0

    async def stream(self, items: Sequence[JudgeInput]) -> AsyncIterator[tuple[int, Judgement]]:
        self.begun += 1
        try:
            while self.gate and not self.gate.is_set():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            for index, item in enumerate(items):
                if self.error and item.responses[0].text == "error":
                    raise self.error
                if item.protocol == "single":
                    yield index, rated(len(item.responses[0].text), judge="stub")
                else:
                    yield index, compared(Verdict.FIRST, judge="stub")
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def check(self) -> int:
        if self.error:
            raise self.error
        return 3

    async def update(self, spec: JudgeSpec) -> None:
        pass

    async def close(self) -> None:
        pass


def script_backend(**script: Any) -> LocalBackend:
    return LocalBackend(judge_spec(JudgeConfig(kind="fake", script=script)))


def make_service(backend: Backend, limits: Limits | None = None) -> Service:
    return make_app(JudgeClient(backend, limits=ClientLimits(deadline_s=60)), "secret", limits)


@contextmanager
def call_app(app: Service) -> Iterator[Callable[..., httpx.Response]]:
    """Yield a function that sends one request with the right token directly through ASGI."""

    def call(method: str, path: str, **request: Any) -> httpx.Response:
        async def run() -> httpx.Response:
            transport = httpx.ASGITransport(app.guard)
            async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
                return await client.request(method, path, **{"headers": HEADERS} | request)

        return asyncio.run(run())

    yield call


@contextmanager
def serving(app: Service, port: int = 0) -> Iterator[int]:
    """Serve the app in a thread on a port of the loopback, by default a free one. Yields it."""
    with listen("127.0.0.1", port) as listening:
        port, server = listening.getsockname()[1], make_server(app.guard, drain_s=60)
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        wait_until(lambda: server.started)
        try:
            yield port
        finally:
            server.should_exit = True
            thread.join()


def metric(app: Service, name: str, **labels: str) -> float:
    for family in text_string_to_metric_families(app.metrics.text().decode()):
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                return sample.value
    raise AssertionError(f"no metric {name} {labels}")


# What the routes answer


def test_score_rates_in_order() -> None:
    with call_app(make_service(script_backend(ratings={"good": 9, "poor": 2}))) as call:
        pairs = [("a", "good"), ("b", "poor"), ("a", "good")]
        body = {"candidates": [{"query": q, "response": r} for q, r in pairs]}
        answer = call("POST", "/v1/score", json=body)
    assert answer.status_code == 200
    judgements = answer.json()["judgements"]
    assert [j["rating"]["value"] for j in judgements] == [9, 2, 9]
    assert {j["outcome"] for j in judgements} == {"ok"}
    assert {j["judge"] for j in judgements} == {answer.headers["x-autoj-judge"]}


@pytest.mark.parametrize(("swap", "verdict"), [(True, "inconsistent"), (False, "first")])
def test_compare(swap: bool, verdict: str) -> None:
    with call_app(make_service(script_backend(verdicts="first"))) as call:
        body = {"pairs": [{"query": "q", "first": "a", "second": "b"}], "swap": swap}
        [comparison] = call("POST", "/v1/compare", json=body).json()["comparisons"]
    assert comparison["verdict"] == verdict and len(comparison["orders"]) == 1 + swap


@pytest.mark.parametrize(
    ("extra", "index", "rule"),
    [
        pytest.param({}, 2, "pairwise", id="tied, compared"),
        pytest.param({"policy_logprobs": [-1, -2.5, -3]}, 1, "policy_logprob", id="logprob"),
        pytest.param({"tie_break": ["first"]}, 1, "first", id="rule given"),
        pytest.param({"view": "expected"}, 2, "pairwise", id="view"),
    ],
)
def test_best_of_n(extra: dict[str, Any], index: int, rule: str) -> None:
    script = {"ratings": {"poor": 2, "good": 9, "better": 9}}
    with call_app(make_service(script_backend(**script))) as call:
        body = {"query": "q", "responses": ["poor", "good", "better"]} | extra
        answer = call("POST", "/v1/best_of_n", json=body).json()
    assert (answer["selection"]["index"], answer["selection"]["rule"]) == (index, rule)
    assert [j["rating"]["value"] for j in answer["judgements"]] == [2, 9, 9]


def test_equal_responses_are_tied_without_a_comparison() -> None:
    app = make_service(script_backend(verdicts="longer"))
    with call_app(app) as call:
        # As long as each other, modulo ten: all are rated alike.
        body = {"query": "q", "responses": ["same", "same", "same" + 10 * "."]}
        selection = call("POST", "/v1/best_of_n", json=body).json()["selection"]
    assert (selection["index"], selection["rule"]) == (2, "pairwise")
    assert [verdict for *_, verdict in selection["comparisons"]] == ["tie", "second", "second"]
    assert metric(app, "autoj_comparisons_total", verdict="second") == 2


@pytest.mark.parametrize(
    ("count", "matches"),
    [
        pytest.param(64, 0, id="as many as may be"),
        pytest.param(60, 2, id="room for some"),
        pytest.param(12, 11, id="room for all"),
    ],
)
def test_breaking_ties_is_within_the_inputs_of_a_request(
    count: int, matches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "MAX_INPUTS", 64)
    app = make_service(script_backend(verdicts="longer"))
    with call_app(app) as call:
        # As long as each other, modulo ten: all are rated alike, and each is beaten by the next.
        body = {"query": "q", "responses": ["x" * (10 * n + 5) for n in range(count)]}
        body |= {"tie_break": ["pairwise", "first"]}
        answer = call("POST", "/v1/best_of_n", json=body)
    assert answer.status_code == 200
    selection = answer.json()["selection"]
    assert len(selection["tied"]) == count and len(selection["comparisons"]) == matches
    assert (selection["index"], selection["rule"]) == (
        (count - 1, "pairwise") if matches == count - 1 else (matches, "first")
    )
    judged_inputs = sum(
        metric(app, "autoj_judgements_total", kind=kind, outcome="ok")
        for kind in ("single", *(("pairwise",) if matches else ()))
    )
    assert judged_inputs == count + 2 * matches <= 64


@pytest.mark.parametrize("path", ["/v1/score", "/v1/best_of_n"])
def test_each_critique_is_a_judge_input(path: str) -> None:
    app = make_app(
        JudgeClient(script_backend(), asks=Asks(critiques=64), limits=ClientLimits(deadline_s=60)),
        "secret",
    )
    with call_app(app) as call:
        for count, status in ((17, 422), (1, 200)):
            rows = [str(n) for n in range(count)]
            body: dict[str, Any] = {"query": "q", "responses": rows, "tie_break": ["first"]}
            if path == "/v1/score":
                body = {"candidates": [{"query": "q", "response": row} for row in rows]}
            answer = call("POST", path, json=body)
            assert answer.status_code == status
            if status == 422:
                assert answer.json()["detail"] == "1088 judge inputs: a request may cost 1024"


def test_the_openapi_document_names_every_route_and_needs_no_token() -> None:
    with call_app(make_service(Stub())) as call:
        page = call("GET", "/openapi.json", headers={}).json()
    assert {"/v1/score", "/v1/compare", "/v1/best_of_n", "/v1/judge"} <= set(page["paths"])
    assert {"401", "413", "422", "429", "503", "504"} <= set(
        page["paths"]["/v1/score"]["post"]["responses"]
    )
    assert page["components"]["securitySchemes"]["HTTPBearer"]["scheme"] == "bearer"


def test_probes() -> None:
    app = make_service(Stub())
    with call_app(app) as call:
        assert call("GET", "/healthz", headers={}).status_code == 200
        ready = call("GET", "/readyz", headers={})
        assert ready.status_code == 200 and ready.json() == {"status": "ready", "replicas": 3}
        app.guard.admission.draining = True
        assert call("GET", "/healthz", headers={}).status_code == 200
        for answer in (call("GET", "/readyz"), call("POST", "/v1/score", json=SCORE)):
            assert answer.status_code == 503 and answer.headers["retry-after"] == "1"
    with call_app(make_service(Stub(error=EngineUnavailable("the engine is dead")))) as call:
        answer = call("GET", "/readyz")
    assert answer.status_code == 503 and answer.json()["detail"] == "the engine is dead"


# What is refused


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer "},
        {"Authorization": "secret"},
        {"Authorization": "Basic secret"},
        {"Authorization": "Bearer secret\xff"},
    ],
    ids=str,
)
@pytest.mark.parametrize("path", ["/v1/score", "/metrics", "/v1/judge", "/nowhere"])
def test_no_route_but_the_public_ones_opens_without_the_token(
    headers: dict[str, str], path: str
) -> None:
    stub = Stub()
    with call_app(make_service(stub)) as call:
        for method in ("GET", "POST"):
            raw = [(k.encode(), v.encode("latin-1")) for k, v in headers.items()]
            answer = call(method, path, headers=raw, content=b"{" * 100)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
    assert stub.begun == 0


def test_a_websocket_is_no_way_in() -> None:
    head = (
        "GET /v1/score HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    with (
        serving(make_service(Stub())) as port,
        socket.create_connection(("127.0.0.1", port), timeout=600) as connection,
    ):
        connection.sendall(head.encode())
        assert connection.recv(4096).startswith(b"HTTP/1.1 401 ")


def test_a_service_has_a_token() -> None:
    with pytest.raises(Exception, match="needs a token"):
        make_app(JudgeClient(Stub()), "")


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/score", {}, "candidates"),
        ("/v1/score", [], "body"),
        ("/v1/score", {"candidates": []}, "candidates"),
        ("/v1/score", {"candidates": [{"query": "q"}]}, "candidates.0.response"),
        ("/v1/score", {"candidates": [{"query": "q", "response": 5}]}, "candidates.0.response"),
        ("/v1/score", SCORE | {"more": 1}, "more"),
        ("/v1/score", SCORE | {"\ud800": 1}, "body"),
        ("/v1/score", {"candidates": SCORE["candidates"] * 1025}, "candidates"),
        ("/v1/score", {"candidates": [{"query": None, "response": ""}]}, "candidates.0.query"),
        ("/v1/compare", {"pairs": [{"query": "q", "first": "a"}]}, "pairs.0.second"),
        ("/v1/compare", {"pairs": [], "swap": True}, "pairs"),
        (
            "/v1/score",
            {"candidates": [{"query": "q", "response": "r", "context": {"reference": 4}}]},
            "candidates.0.context",
        ),
        (
            "/v1/compare",
            {"pairs": [{"query": "q", "first": "a", "second": "b", "context": ["x"]}]},
            "pairs.0.context",
        ),
        ("/v1/best_of_n", {"query": "q", "responses": ["a"], "context": {"query": ""}}, "context"),
        ("/v1/best_of_n", {"query": "q", "responses": ["a"], "view": "best"}, "view"),
        (
            "/v1/best_of_n",
            {"query": "q", "responses": ["a"], "policy_logprobs": [float("nan")]},
            "policy_logprobs.0",
        ),
        ("/v1/best_of_n", {"query": "q", "responses": ["a"], "policy_logprobs": []}, "body"),
        ("/v1/judge", {"items": [{"query": "q", "responses": []}]}, "items.0.responses"),
        (
            "/v1/judge",
            {"items": [{"query": "q", "responses": ["a"], "direct": 1}]},
            "items.0.direct",
        ),
    ],
)
def test_a_bad_body_names_its_field(path: str, body: Any, field: str) -> None:
    with call_app(make_service(Stub())) as call:
        content = json.dumps(body).encode()
        answer = call("POST", path, content=content)
    assert answer.status_code == 422
    problem = answer.json()
    assert problem["field"] == field and problem["detail"]
    assert problem["request_id"] == answer.headers["x-request-id"]
    assert len(answer.content) < 1000  # what was sent is not sent back


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"1" * 5000], ids=lambda c: str(c[:4])
)
def test_a_body_that_is_no_json(content: bytes) -> None:
    with call_app(make_service(Stub())) as call:
        answer = call("POST", "/v1/score", content=content)
    assert answer.status_code in (400, 422) and answer.json()["detail"]


async def generate_chunks(count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield b"x" * 1000


@pytest.mark.parametrize(
    ("content", "status"),
    [
        pytest.param(b"[" + b"[]," * 2_000_000, 413, id="arrays"),
        pytest.param(b"[" + b"1," * 2_000_000, 413, id="numbers"),
        pytest.param(b"{" + b'"":0,' * 2_000_000, 413, id="names"),
        pytest.param(b'"' * 4_000_000, 413, id="quotes"),
        pytest.param(("[" + "[]," * 2_000_000).encode("utf-16"), 413, id="UTF-16"),
        pytest.param(b"[" * 100_000, 400, id="deep"),
    ],
)
def test_a_body_that_holds_too_much_is_never_built(content: bytes, status: int) -> None:
    stub = Stub()
    tracemalloc.start()
    try:
        with serving(make_service(stub)) as port:
            url = f"http://127.0.0.1:{port}/v1/score"
            assert httpx.post(url, content=content, headers=HEADERS).status_code == status
            assert httpx.post(url, json=SCORE, headers=HEADERS).status_code == 200
        assert tracemalloc.get_traced_memory()[1] < 3 * len(content) + 2**23
    finally:
        tracemalloc.stop()
    assert stub.begun == 1


@pytest.mark.parametrize(
    "text",
    ["[]{},:" * MAX_VALUES, '"[' * MAX_VALUES, "\\" * MAX_VALUES, "\n," * MAX_VALUES],
    ids=repr,
)
def test_what_stands_in_a_text_is_no_value(text: str) -> None:
    with call_app(make_service(Stub())) as call:
        body = {"candidates": [{"query": "q", "response": text}] * 2}
        answer = call("POST", "/v1/score", json=body)
    assert answer.status_code == 200
    assert answer.json()["judgements"][1]["rating"]["value"] == len(text)


def test_the_largest_request_that_is_meant_to_be_read() -> None:
    rubric = [{"criterion": f"criterion {n}", "points": 1} for n in range(12)]
    row = {"query": "q", "response": "r", "context": {"reference": "x"}, "rubric": rubric}
    with call_app(make_service(script_backend())) as call:
        answer = call("POST", "/v1/score", json={"candidates": [row] * 1024})
    assert answer.status_code != 413, answer.text


@pytest.mark.parametrize("path", ["/v1/score", "/v1/best_of_n", "/v1/judge"])
def test_a_value_of_many_levels(path: str) -> None:
    """The parser takes more levels than what reads its values does."""
    call = {"type": "function", "function": {"name": "f", "arguments": {}}}
    for _ in range(400):
        call = {"type": "function", "function": {"name": "f", "arguments": call}}
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    row = {"query": "q", "response": messages[1:]}
    bodies_of = {
        "/v1/score": {"candidates": [row]},
        "/v1/best_of_n": {"query": "q", "responses": [messages[1:]]},
        "/v1/judge": {"items": [{"messages": messages, "responses": ["a"]}]},
    }
    with call_app(make_service(Stub())) as ask:
        answer = ask("POST", path, json=bodies_of[path])
    assert answer.status_code in (200, 400, 422), answer.text


def test_a_large_body_is_not_held_beside_what_is_made_of_it() -> None:
    row = {"query": "Why?", "response": "x" * 200_000}
    body = json.dumps({"candidates": [row] * 80, "unknown": 1}).encode()
    head = "POST /v1/score HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\n"
    content = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    with (
        serving(make_service(Stub())) as port,
        socket.create_connection(("127.0.0.1", port), timeout=600) as connection,
    ):
        tracemalloc.start()
        try:
            connection.sendall(content)
            assert connection.recv(4096).startswith(b"HTTP/1.1 422 ")
            assert tracemalloc.get_traced_memory()[1] < 2.5 * len(body)
        finally:
            tracemalloc.stop()


def test_a_body_over_the_limit() -> None:
    stub = Stub()
    with call_app(make_service(stub, Limits(body=5000))) as call:
        stated = call("POST", "/v1/score", content=b"x" * 5001)
        streamed = call("POST", "/v1/score", content=generate_chunks(6))
        small = call("POST", "/v1/score", json=SCORE)
    assert stated.status_code == streamed.status_code == 413
    assert small.status_code == 200 and stub.begun == 1


def test_a_stated_length_over_the_limit_is_refused_before_the_body_comes() -> None:
    with (
        serving(make_service(Stub(), Limits(body=5000))) as port,
        socket.create_connection(("127.0.0.1", port), timeout=600) as connection,
    ):
        head = "POST /v1/score HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\n"
        connection.sendall(f"{head}Content-Length: 6000\r\n\r\n".encode())
        assert connection.recv(4096).startswith(b"HTTP/1.1 413 ")


def test_half_a_body_is_not_waited_for() -> None:
    app = make_service(Stub(), Limits(body_s=0.2))
    with (
        serving(app) as port,
        socket.create_connection(("127.0.0.1", port), timeout=600) as connection,
    ):
        head = "POST /v1/score HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\n"
        connection.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
        assert connection.recv(4096).startswith(b"HTTP/1.1 408 ")
    assert metric(app, "autoj_requests_in_flight") == 0


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_half_a_body_and_no_caller_any_more(reset: bool) -> None:
    stub = Stub()
    app = make_service(stub, Limits(bodies=150))
    with serving(app) as port:
        with socket.create_connection(("127.0.0.1", port), timeout=600) as connection:
            head = "POST /v1/score HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\n"
            connection.sendall(f"{head}Content-Length: 200\r\n\r\n{'x' * 100}".encode())
            wait_until(lambda: metric(app, "autoj_requests_in_flight") == 1)
            if reset:
                linger = struct.pack("ii", 1, 0)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        wait_until(lambda: metric(app, "autoj_requests_in_flight") == 0)
        # Its half of the body is no longer counted among those under way.
        url = f"http://127.0.0.1:{port}/v1/score"
        assert httpx.post(url, json=SCORE, headers=HEADERS).status_code == 200
    assert stub.begun == 1
    assert metric(app, "autoj_requests_total", status="499") == 1


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        pytest.param(Limits(requests=2), "2 requests are under way", id="requests"),
        pytest.param(Limits(bodies=150), "requests under way hold", id="bytes"),
    ],
)
def test_a_full_service_asks_to_come_back(limits: Limits, reason: str) -> None:
    gate = threading.Event()
    app = make_service(Stub(gate), limits)

    async def run(port: int) -> None:
        base = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(base_url=base, headers=HEADERS) as client:
            tasks = [asyncio.create_task(client.post("/v1/score", json=SCORE)) for _ in range(2)]
            await asyncio.to_thread(
                wait_until, lambda: metric(app, "autoj_requests_in_flight") == 2
            )
            refused = await client.post("/v1/score", json=SCORE)
            assert refused.status_code == 429 and refused.headers["retry-after"] == "1"
            assert reason in refused.json()["detail"]
            assert (await client.get("/healthz")).status_code == 200
            gate.set()
            assert [(await task).status_code for task in tasks] == [200, 200]
            # An answer is read before the service has counted it off.
            await asyncio.to_thread(
                wait_until, lambda: metric(app, "autoj_requests_in_flight") == 0
            )
            assert (await client.post("/v1/score", json=SCORE)).status_code == 200

    with serving(app) as port:
        asyncio.run(run(port))
    assert metric(app, "autoj_requests_total", status="429") == 1


# Deadlines, disconnects and failures


@pytest.mark.parametrize(
    ("limits", "headers"),
    [
        pytest.param(Limits(deadline_s=0.2), {}, id="of the service"),
        pytest.param(Limits(), {"X-Deadline-S": "0.2"}, id="of the caller"),
        pytest.param(Limits(deadline_s=0.2), {"X-Deadline-S": "60"}, id="the sooner"),
    ],
)
def test_the_deadline_stops_the_work(limits: Limits, headers: dict[str, str]) -> None:
    stub = Stub(threading.Event())
    with call_app(make_service(stub, limits)) as call:
        answer = call("POST", "/v1/score", json=SCORE, headers=HEADERS | headers)
    assert answer.status_code == 504 and stub.begun == stub.cancelled


@pytest.mark.parametrize("value", ["soon", "nan", "0", "-1", "inf"])
def test_a_deadline_that_is_none(value: str) -> None:
    with call_app(make_service(Stub())) as call:
        answer = call("POST", "/v1/score", json=SCORE, headers=HEADERS | {"X-Deadline-S": value})
    assert answer.status_code == 422 and answer.json()["field"] == "x-deadline-s"


@pytest.mark.parametrize(
    ("error", "status", "detail"),
    [
        pytest.param(JournalError("disk full"), 503, "disk full", id="disk full"),
        pytest.param(FormatError("no pairwise protocol"), 422, "no pairwise", id="format"),
        pytest.param(RuntimeError("secret: /etc"), 500, "internal error", id="unexpected"),
    ],
)
def test_errors_become_problems(
    error: Exception, status: int, detail: str, caplog: pytest.LogCaptureFixture
) -> None:
    body = {"candidates": [{"query": "q", "response": "error"}]}
    with call_app(make_service(Stub(error=error))) as call:
        answer = call("POST", "/v1/score", json=body)
    assert answer.status_code == status and detail in answer.json()["detail"]
    assert b"Traceback" not in answer.content and b"/etc" not in answer.content
    assert ("a request failed" in caplog.text) == (status == 500)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (EngineUnavailable("full"), {"unavailable": "full"}),
        (ReplicaLost("died"), {"lost": "died"}),
        (FormatError("no pairs"), {"error": "no pairs"}),
    ],
    ids=str,
)
def test_a_stream_says_how_it_ended(error: Exception, line: dict[str, str]) -> None:
    items = [{"query": "q", "responses": [r]} for r in ("abc", "error")]
    with call_app(make_service(Stub(error=error))) as call:
        lines = call("POST", "/v1/judge", json={"items": items}).text.splitlines()
    assert json.loads(lines[0])["judgement"]["rating"]["value"] == 3
    assert json.loads(lines[1]) == line


# What cannot be judged costs its own item

LONG = "x" * (MAX_TEXT_CHARS + 1)
UNREADABLE = {
    "too long": LONG,
    "half of a pair": "a \ud83d b",
    "both halves": "\ud83d\ude00",
}
REASONS = {
    "too long": f"{MAX_TEXT_CHARS + 1} characters, over judge.max_text_chars",
    "half of a pair": "lone surrogate at character 2",
    "both halves": "lone surrogate at character 0",
}


@pytest.mark.parametrize("name", ["too long", "half of a pair"])
@pytest.mark.parametrize("field", ["query", "response"])
def test_a_text_that_cannot_be_judged_costs_its_candidate(name: str, field: str) -> None:
    app = make_service(script_backend(ratings={"good": 9}))
    good = {"query": "q", "response": "good"}
    body = {"candidates": [good, good | {field: UNREADABLE[name]}, good]}
    with call_app(app) as call:
        answer = call("POST", "/v1/score", content=json.dumps(body))
    assert answer.status_code == 200, answer.text
    judgements = answer.json()["judgements"]
    assert [j["outcome"] for j in judgements] == ["ok", "input_rejected", "ok"]
    assert REASONS[name] in judgements[1]["reason"] and judgements[1]["rating"] is None
    assert judgements[1]["judge"] == answer.headers["x-autoj-judge"]
    assert metric(app, "autoj_judgements_total", outcome="input_rejected") == 1


@pytest.mark.parametrize("swap", [True, False])
@pytest.mark.parametrize("name", ["too long", "half of a pair"])
def test_a_text_that_cannot_be_judged_costs_its_pair(name: str, swap: bool) -> None:
    good = {"query": "q", "first": "longer", "second": "short"}
    body = {"pairs": [good | {"second": UNREADABLE[name]}, good], "swap": swap}
    with call_app(make_service(script_backend())) as call:
        answer = call("POST", "/v1/compare", content=json.dumps(body))
    assert answer.status_code == 200, answer.text
    failed, decided = answer.json()["comparisons"]
    assert (failed["verdict"], decided["verdict"]) == ("failed", "first")
    assert "input_rejected" in failed["reason"] and REASONS[name] in failed["reason"]
    assert [j["outcome"] for j in failed["orders"]] == ["input_rejected"] * (1 + swap)


@pytest.mark.parametrize("name", ["too long", "half of a pair"])
def test_a_text_that_cannot_be_judged_cannot_win(name: str) -> None:
    script = {"ratings": {"poor": 2, "good": 9}}
    with call_app(make_service(script_backend(**script))) as call:
        body = {"query": "q", "responses": [UNREADABLE[name], "poor", "good"]}
        some = call("POST", "/v1/best_of_n", content=json.dumps(body))
        body = {"query": UNREADABLE[name], "responses": ["poor", "good"]}
        none = call("POST", "/v1/best_of_n", content=json.dumps(body))
    assert some.status_code == none.status_code == 200
    assert (some.json()["selection"]["index"], some.json()["selection"]["rule"]) == (2, "rating")
    assert none.json()["selection"]["rule"] == "all_failed"
    assert {j["outcome"] for j in none.json()["judgements"]} == {"input_rejected"}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_text_that_cannot_be_judged_costs_its_item_over_http_as_it_does_here(name: str) -> None:
    """Two halves of a surrogate pair become one character in JSON; in Python they are two invalid
    ones."""
    candidates = [Candidate("q", r) for r in ("good", UNREADABLE[name], "fair")]
    backend = script_backend(ratings={"good": 9, "fair": 6})

    async def run(port: int) -> None:
        remote = await HttpBackend.connect(f"http://127.0.0.1:{port}", "secret", 60)
        limits = ClientLimits(deadline_s=60)
        judgements = await JudgeClient(remote, limits=limits).rate(candidates)
        pairs = [("q", "longer", UNREADABLE[name]), ("q", "longer", "short")]
        failed, decided = await JudgeClient(remote, limits=ClientLimits(deadline_s=60)).compare(
            pairs
        )
        only = await JudgeClient(remote, limits=ClientLimits(deadline_s=60)).rate(candidates[1:2])
        await remote.close()
        assert [j.outcome for j in judgements] == ["ok", "input_rejected", "ok"]
        assert [j.view("rating") for j in judgements] == [9, None, 6]
        assert judgements[1].judge == backend.judge and judgements[1].reason
        assert (failed.verdict, decided.verdict) == (Verdict.FAILED, Verdict.FIRST)
        assert only == [judgements[1]] or only[0].reason == judgements[1].reason

    with serving(make_service(backend)) as port:
        asyncio.run(run(port))


def test_what_a_body_does_not_hold_is_asked_in_pieces() -> None:
    app = make_service(script_backend(ratings={"a": 9, "b": 6}), Limits(body=5000))
    candidates = [
        Candidate("q", r) for r in ("a", "x" * 6000, "b", *("y" * n for n in range(900, 908)))
    ]

    async def run(port: int) -> None:
        remote = await HttpBackend.connect(f"http://127.0.0.1:{port}", "secret", 60)
        judgements = await JudgeClient(remote, limits=ClientLimits(deadline_s=60)).rate(candidates)
        await remote.close()
        assert [j.outcome for j in judgements] == ["ok", "input_rejected", *["ok"] * 9]
        assert (judgements[0].view("rating"), judgements[2].view("rating")) == (9, 6)
        assert "takes no body" in judgements[1].reason

    with serving(app) as port:
        asyncio.run(run(port))


# The client over HTTP behaves as over Serve handles


def test_poison_behind_http_is_asked_for_twice_and_busy_services_until_they_answer() -> None:
    stub = Stub(error=ReplicaLost("died"))

    async def run(port: int) -> None:
        backend = await HttpBackend.connect(f"http://127.0.0.1:{port}", "secret", 60)
        client = JudgeClient(backend)
        lost = await client.rate([Candidate("q", "error")])
        assert lost[0].outcome is Outcome.UNAVAILABLE and "it may kill them" in lost[0].reason
        assert stub.begun == 2
        app.guard.admission.draining = True
        waiting = asyncio.create_task(client.rate([Candidate("q", "four")]))
        await asyncio.sleep(0.5)
        assert not waiting.done() and stub.begun == 2
        app.guard.admission.draining = False
        assert [j.view("rating") for j in await waiting] == [4]
        await backend.close()

    app = make_service(stub)
    with serving(app) as port:
        asyncio.run(run(port))


def test_another_judge_without_a_failed_request() -> None:
    old, new = (
        JudgeConfig(kind="fake", script={"latency_s": 0.05, "ratings": {"a": n}}) for n in (3, 8)
    )
    backend = LocalBackend(judge_spec(old))
    before = backend.judge

    async def run(port: int) -> None:
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", headers=HEADERS, limits=httpx.Limits()
        ) as client:
            body = {"candidates": [{"query": "q", "response": "a"}]}
            answers, tasks = [await client.post("/v1/score", json=body)], []
            for n in range(40):
                tasks.append(asyncio.create_task(client.post("/v1/score", json=body)))
                await asyncio.sleep(0.005)
                if n == 20:
                    await backend.update(judge_spec(new))
            answers += [await task for task in tasks]
            answers.append(await client.post("/v1/score", json=body))
        assert {answer.status_code for answer in answers} == {200}
        judgements = [answer.json()["judgements"][0] for answer in answers]
        names = {"old": before, "new": backend.judge}
        assert {(j["judge"], j["rating"]["value"]) for j in judgements} == {
            (names["old"], 3),
            (names["new"], 8),
        }
        # An answer that was in flight is shared; every later call asks the new judge.
        assert judgements[0]["judge"] == names["old"]
        assert judgements[-1]["judge"] == names["new"]

    with serving(make_service(backend)) as port:
        asyncio.run(run(port))
    assert not +backend._calls_in_flight


# Metrics and logs


def test_metrics_by_hand() -> None:
    script = {"ratings": {"good": 9, "fair": 9, "poor": 2}, "fail": {"lost": "truncated"}}
    app = make_service(script_backend(**script))
    responses = ["good", "fair", "poor", "lost", "...", ""]
    with call_app(app) as call:
        body = {"candidates": [{"query": "q", "response": r} for r in responses]}
        assert call("POST", "/v1/score", json=body).status_code == 200
        pair = {"pairs": [{"query": "q", "first": "long", "second": "s"}]}
        assert call("POST", "/v1/compare", json=pair).status_code == 200
        assert call("POST", "/nowhere-1").status_code == 404
        page = call("GET", "/metrics")
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/plain")
    assert metric(app, "autoj_judgements_total", kind="single", outcome="ok") == 4
    assert metric(app, "autoj_judgements_total", kind="single", outcome="truncated") == 1
    assert metric(app, "autoj_judgements_total", kind="pairwise", outcome="ok") == 2
    # A series that began with its first event would hide that event from rate().
    assert metric(app, "autoj_judgements_total", kind="pairwise", outcome="truncated") == 0
    assert metric(app, "autoj_flagged_total", flag="empty_response") == 1
    # good = fair; "..." rates 4 and no judge is asked about "": four rated, six pairs, one tie
    assert metric(app, "autoj_rated_pairs_total") == 6
    assert metric(app, "autoj_tied_pairs_total") == 1
    assert metric(app, "autoj_comparisons_total", verdict="first") == 1
    assert metric(app, "autoj_tokens_total", direction="in") > 0
    assert metric(app, "autoj_requests_total", route="/v1/score", status="200") == 1
    assert metric(app, "autoj_requests_total", route="other", status="404") == 1
    assert metric(app, "autoj_judge_health", figure="failure_rate") == pytest.approx(1 / 7)
    assert metric(app, "autoj_judge_alarm", figure="failure_rate") == 0
    assert metric(app, "process_resident_memory_bytes") > 0


def test_the_wait_for_the_engine_has_a_metric_of_its_own() -> None:
    class Queueing(Stub):
        async def stream(self, items: Sequence[JudgeInput]) -> AsyncIterator[tuple[int, Judgement]]:
            for index, item in enumerate(items):
                usage = Usage(latency_s=0.5, queued_s=float(len(item.responses[0].text)))
                yield index, rated(5, judge="stub", usage=usage)

    app = make_service(Queueing())
    with call_app(app) as call:
        body = {"candidates": [{"query": "q", "response": "x" * n} for n in range(1, 5)]}
        assert call("POST", "/v1/score", json=body).status_code == 200
    assert metric(app, "autoj_judgement_seconds_count") == 4
    assert metric(app, "autoj_judgement_seconds_sum") == 4 * 0.5
    assert metric(app, "autoj_judgement_queue_seconds_count") == 4
    assert metric(app, "autoj_judgement_queue_seconds_sum") == 1 + 2 + 3 + 4


def test_alarms_rise_in_metrics_and_logs(caplog: pytest.LogCaptureFixture) -> None:
    app = make_service(script_backend(fail={"lost": "truncated"}))
    responses = ["lost" if n % 5 == 0 else "x" * n for n in range(200)]
    with caplog.at_level(logging.INFO, "autoj_reward"), call_app(app) as call:
        body = {"candidates": [{"query": str(n), "response": r} for n, r in enumerate(responses)]}
        call("POST", "/v1/score", json=body)
    assert metric(app, "autoj_judge_alarm", figure="failure_rate") == 1
    assert metric(app, "autoj_judge_alarm", figure="saturation") == 0
    [alarm] = [r for r in caplog.records if r.getMessage() == "judge health alarm"]
    assert alarm.__dict__["facts"] == {"figure": "failure_rate", "value": 0.2, "bound": 0.05}


def test_one_log_line_a_request_with_its_id_and_without_texts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "autoj_reward"), call_app(make_service(Stub())) as call:
        valid = call("POST", "/v1/score", json=SCORE, headers=HEADERS | {"X-Request-Id": "step-7"})
        odd = call("POST", "/v1/score", json=SCORE, headers=HEADERS | {"X-Request-Id": "a\tb"})
        call("GET", "/healthz")
    assert valid.headers["x-request-id"] == "step-7"
    assert len(odd.headers["x-request-id"]) == 32
    lines = [json.loads(JsonLines().format(record)) for record in caplog.records]
    assert [(line["route"], line["status"]) for line in lines] == [("/v1/score", 200)] * 2
    assert "Because" not in caplog.text and "secret" not in caplog.text
