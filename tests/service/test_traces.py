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
from autoj_reward.service.serve import EdgeConfig, listen, open_edge
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
    new_exporter = InMemorySpanExporter()
    PROVIDER.add_span_processor(SimpleSpanProcessor(new_exporter))
    yield new_exporter
    new_exporter.shutdown()


def make_judge_config(endpoint: Any, traced: bool) -> JudgeConfig:
    return JudgeConfig(kind="openai", model="m", base_url=endpoint.url, trace=traced)


@contextmanager
def serve_judge(judge_config: JudgeConfig, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Serve a judge as `autoj serve` does, in this process. Yields the address."""
    monkeypatch.setenv("AUTOJ_TOKEN", "secret")
    listening = listen("127.0.0.1", 0)
    config = EdgeConfig(reward=RewardConfig(judge=judge_config), drain_s=5)
    with open_edge(config, "secret") as edge:
        server_future = edge.loop.submit(edge.server.serve([listening]))
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            edge.stop()
            server_future.result()


def ask_rewards(address: str, traced: bool, *batches: Sequence[Candidate]) -> list[Any]:
    """Ask a reward model over the service, one call after the other."""
    config = RewardConfig(
        judge=JudgeConfig(trace=traced), service=ServiceConfig(address=address), view="rating"
    )
    with RewardModel(config) as model:
        return [reward for batch in batches for reward in model.rewards_now(batch)]


def build_tree(spans: Sequence[ReadableSpan]) -> Any:
    """Return the names of spans as nested lists, each sorted: [name, [child, …], …]."""
    ids = {span.context.span_id for span in spans if span.context}

    def list_children(parent: int | None) -> list[Any]:
        return sorted(
            [span.name, *list_children(span.context.span_id)]
            for span in spans
            if span.context
            and (span.parent.span_id if span.parent and span.parent.span_id in ids else None)
            == parent
        )

    return list_children(None)


def test_one_trace_from_the_trainers_call_to_the_endpoint(
    exporter: InMemorySpanExporter,
    speaking: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    endpoint = speaking(goes_on=True)

    with serve_judge(make_judge_config(endpoint, True), monkeypatch) as address:
        rewards = ask_rewards(address, True, [*ANSWERS, OTHER], [ANSWERS[0]])
    assert [reward.value for reward in rewards] == [7.0] * 4
    spans = exporter.get_finished_spans()
    call = ["autoj.call", ["autoj.request", ["autoj.judgement"]]]
    of_two = ["autoj.call", ["autoj.request", ["autoj.judgement"], ["autoj.judgement"]]]
    first, second = build_tree(spans)
    assert first[0] == second[0] == "autoj.rewards"
    assert sorted([first[1:], second[1:]], key=len) == [[call], sorted([of_two, call])]
    assert len({span.context.trace_id for span in spans if span.context}) == 2
    sent = {headers["traceparent"].split("-")[2] for _, _, headers in endpoint.requests[-8:]}
    judgement_spans = [span for span in spans if span.name == "autoj.judgement"]
    assert sent <= {f"{span.context.span_id:016x}" for span in judgement_spans if span.context}
    [request, *_] = [span for span in spans if span.name == "autoj.request"]
    assert dict(request.attributes or {}).items() >= {
        ("http.route", "/v1/judge"),
        ("http.response.status_code", 200),
    }
    facts: dict[str, Any] = dict(judgement_spans[0].attributes or {})
    assert facts["autoj.outcome"] == "ok" and facts["autoj.protocol"] == "single"
    assert facts["gen_ai.usage.output_tokens"] == rewards[0].judgement.usage.tokens_out > 0
    assert facts["autoj.engine_seconds"] > 0
    assert "SECRET" not in "".join(span.to_json() for span in spans)


def test_calls_that_share_an_event_loop_keep_their_own_trace(
    exporter: InMemorySpanExporter,
) -> None:
    """Three callers ask in the same turn of the event loop, each in a span of its own."""
    tracer = PROVIDER.get_tracer("a trainer")

    async def ask_in_span(client: Any, query: str) -> int:
        with tracer.start_as_current_span(query) as span:
            await client.rate([Candidate(query, "good")])
        return span.get_span_context().trace_id

    async def ask_together() -> list[int]:
        async with open_judge(JudgeConfig(kind="fake", trace=True)) as client:
            return list(await asyncio.gather(*(ask_in_span(client, query) for query in "abc")))

    ids = asyncio.run(ask_together())
    assert len(set(ids)) == 3
    assert build_tree(exporter.get_finished_spans()) == [
        [query, ["autoj.call", ["autoj.judgement"]]] for query in "abc"
    ]


def test_a_stranger_starts_no_span_and_an_error_leaves_its_type(
    exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"candidates": [{"query": "Why?", "response": "SECRET"}]}
    trusted, stranger = {**HEADERS, "traceparent": FOREIGN}, {"traceparent": FOREIGN}
    judge_config = JudgeConfig(kind="fake", script={"fail": {"SECRET": "hang"}}, trace=True)
    with serve_judge(judge_config, monkeypatch) as address:
        url = f"{address}/v1/score"
        assert httpx.post(url, json=body, headers=stranger).status_code == 401
        deadline_s = 0.01
        # On a busy machine the deadline may pass before the judgement begins.
        while "autoj.judgement" not in {span.name for span in exporter.get_finished_spans()}:
            headers = trusted | {"X-Deadline-S": str(deadline_s)}
            assert httpx.post(url, json=body, headers=headers, timeout=None).status_code == 504
            deadline_s *= 4
    spans = exporter.get_finished_spans()
    descriptions = {span.name: span.status.description for span in spans}
    assert descriptions == {
        "autoj.request": "Refused",
        "autoj.call": "CancelledError",
        "autoj.judgement": "CancelledError",
    }
    assert {f"{span.context.trace_id:032x}" for span in spans if span.context} == {
        FOREIGN.split("-")[1]
    }
    assert "SECRET" not in "".join(span.to_json() for span in spans)


def test_without_the_key_nothing_is_recorded_or_sent(
    exporter: InMemorySpanExporter,
    speaking: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    endpoint = speaking(goes_on=True)

    with serve_judge(make_judge_config(endpoint, False), monkeypatch) as address:
        rewards = ask_rewards(address, False, ANSWERS)
    assert [reward.value for reward in rewards] == [7.0] * 2
    assert exporter.get_finished_spans() == ()
    assert not any("traceparent" in headers for _, _, headers in endpoint.requests)


def test_without_opentelemetry_the_key_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_tracer", None)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ConfigError, match=r"pip install 'autoj-reward\[otel\]'"):
        RewardModel(RewardConfig(judge=JudgeConfig(kind="fake", trace=True))).open()
