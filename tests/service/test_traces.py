"""OpenTelemetry spans of a trainer's call, over a service, to the judge's endpoint."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from autoj_reward import tracing
from autoj_reward.client.session import open_judge
from autoj_reward.config import JudgeConfig, RewardConfig, ServiceConfig
from autoj_reward.errors import ConfigError
from autoj_reward.service.serve import EdgeConfig, listen, make_edge
from autoj_reward.trainer.reward import RewardModel
from autoj_reward.types import Candidate
from tests.service.test_api import HEADERS

ANSWERS = [Candidate("Why?", "SECRET one"), Candidate("Why?", "SECRET two")]
OTHER = Candidate("Where?", "SECRET three")
FOREIGN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
PROVIDER = TracerProvider()


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Keep the spans of this process in memory, as of a program that has set up OpenTelemetry."""
    monkeypatch.setattr(tracing, "_tracer", None)
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: PROVIDER)
    kept = InMemorySpanExporter()
    PROVIDER.add_span_processor(SimpleSpanProcessor(kept))
    yield kept
    kept.shutdown()


def judge(endpoint: Any, traced: bool) -> JudgeConfig:
    return JudgeConfig(kind="openai", model="m", base_url=endpoint.url, trace=traced)


@contextmanager
def serving(own: JudgeConfig, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Serve a judge as `autoj serve` does, in this process. Yields the address."""
    monkeypatch.setenv("AUTOJ_TOKEN", "secret")
    listening = listen("127.0.0.1", 0)
    config = EdgeConfig(reward=RewardConfig(judge=own), drain_s=5)
    with RewardModel(config.reward) as model:
        edge = model.run(lambda client: make_edge(config, client, model, "secret")).result()
        served = model.run(lambda client: edge.server.serve([listening]))
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            edge.stop()
            served.result()


def rewards(address: str, traced: bool, *asked: Sequence[Candidate]) -> list[Any]:
    """Ask a reward model over the service, one call after the other."""
    config = RewardConfig(
        judge=JudgeConfig(trace=traced), service=ServiceConfig(address=address), view="rating"
    )
    with RewardModel(config) as model:
        return [reward for batch in asked for reward in model.rewards_now(batch)]


def tree(spans: Sequence[ReadableSpan]) -> Any:
    """Return the names of spans as nested lists, each sorted: [name, [child, …], …]."""
    ids = {own.context.span_id for own in spans if own.context}

    def below(parent: int | None) -> list[Any]:
        return sorted(
            [own.name, *below(own.context.span_id)]
            for own in spans
            if own.context
            and (own.parent.span_id if own.parent and own.parent.span_id in ids else None) == parent
        )

    return below(None)


def test_one_trace_from_the_trainers_call_to_the_endpoint(
    exporter: InMemorySpanExporter,
    speaking: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    endpoint = speaking(goes_on=True)

    with serving(judge(endpoint, True), monkeypatch) as address:
        found = rewards(address, True, [*ANSWERS, OTHER], [ANSWERS[0]])
    assert [own.value for own in found] == [7.0] * 4
    spans = exporter.get_finished_spans()
    call = ["autoj.call", ["autoj.request", ["autoj.judgement"]]]
    of_two = ["autoj.call", ["autoj.request", ["autoj.judgement"], ["autoj.judgement"]]]
    first, second = tree(spans)
    assert first[0] == second[0] == "autoj.rewards"
    assert sorted([first[1:], second[1:]], key=len) == [[call], sorted([of_two, call])]
    assert len({own.context.trace_id for own in spans if own.context}) == 2
    sent = {headers["traceparent"].split("-")[2] for _, _, headers in endpoint.requests[-8:]}
    judged = [own for own in spans if own.name == "autoj.judgement"]
    assert sent <= {f"{own.context.span_id:016x}" for own in judged if own.context}
    [request, *_] = [own for own in spans if own.name == "autoj.request"]
    assert dict(request.attributes or {}).items() >= {
        ("http.route", "/v1/judge"),
        ("http.response.status_code", 200),
    }
    facts: dict[str, Any] = dict(judged[0].attributes or {})
    assert facts["autoj.outcome"] == "ok" and facts["autoj.protocol"] == "single"
    assert facts["gen_ai.usage.output_tokens"] == found[0].judgement.usage.tokens_out > 0
    assert facts["autoj.engine_seconds"] > 0
    assert "SECRET" not in "".join(own.to_json() for own in spans)


def test_calls_that_share_an_event_loop_keep_their_own_trace(
    exporter: InMemorySpanExporter,
) -> None:
    """Three callers ask in the same turn of the event loop, each in a span of its own."""
    tracer = PROVIDER.get_tracer("a trainer")

    async def asked(client: Any, query: str) -> int:
        with tracer.start_as_current_span(query) as own:
            await client.rate([Candidate(query, "good")])
        return own.get_span_context().trace_id

    async def together() -> list[int]:
        async with open_judge(JudgeConfig(kind="fake", trace=True)) as client:
            return list(await asyncio.gather(*(asked(client, query) for query in "abc")))

    ids = asyncio.run(together())
    assert len(set(ids)) == 3
    assert tree(exporter.get_finished_spans()) == [
        [query, ["autoj.call", ["autoj.judgement"]]] for query in "abc"
    ]


def test_a_stranger_starts_no_span_and_an_error_leaves_its_type(
    exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"candidates": [{"query": "Why?", "response": "SECRET"}]}
    known, stranger = {**HEADERS, "traceparent": FOREIGN}, {"traceparent": FOREIGN}
    own = JudgeConfig(kind="fake", script={"fail": {"SECRET": "hang"}}, trace=True)
    with serving(own, monkeypatch) as address:
        statuses = [
            httpx.post(f"{address}/v1/score", json=body, headers=headers).status_code
            for headers in (stranger, known | {"X-Deadline-S": "0.01"})
        ]
    assert statuses == [401, 504]
    spans = exporter.get_finished_spans()
    ended = {own.name: own.status.description for own in spans}
    assert ended == {
        "autoj.request": "Refused",
        "autoj.call": "CancelledError",
        "autoj.judgement": "CancelledError",
    }
    assert {f"{own.context.trace_id:032x}" for own in spans if own.context} == {
        FOREIGN.split("-")[1]
    }
    assert "SECRET" not in "".join(own.to_json() for own in spans)


def test_without_the_key_nothing_is_recorded_or_sent(
    exporter: InMemorySpanExporter,
    speaking: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    endpoint = speaking(goes_on=True)

    with serving(judge(endpoint, False), monkeypatch) as address:
        found = rewards(address, False, ANSWERS)
    assert [own.value for own in found] == [7.0] * 2
    assert exporter.get_finished_spans() == ()
    assert not any("traceparent" in headers for _, _, headers in endpoint.requests)


def test_without_opentelemetry_the_key_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_tracer", None)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ConfigError, match=r"pip install 'autoj-reward\[otel\]'"):
        RewardModel(RewardConfig(judge=JudgeConfig(kind="fake", trace=True))).open()
