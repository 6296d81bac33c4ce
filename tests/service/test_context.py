"""References and rubrics through every route of the service, and from its client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import RawTestServer

from autoj_reward.client.backend import LocalBackend
from autoj_reward.client.client import ClientLimits, JudgeClient
from autoj_reward.client.remote import HttpBackend
from autoj_reward.config import JudgeConfig
from autoj_reward.config.models import MAX_TEXT_CHARS
from autoj_reward.conversation import Prompt, Turn, to_plain_text
from autoj_reward.models.spec import judge_spec
from autoj_reward.service.api import Service, make_app
from autoj_reward.types import Candidate, JudgeInput, Judgement, Verdict
from tests.judgements import compared, rated
from tests.reference_format import write_reference_format
from tests.service.test_api import Stub, call_app, make_service, metric, serving

CONTEXT = {"reference": "4", "rubric": "exact"}


@pytest.fixture
def app(tmp_path: Path) -> Service:
    fmt = str(write_reference_format(tmp_path / "marks"))
    config = JudgeConfig(kind="fake", format=fmt, script={"ratings": {"4": 9, "5": 2}})
    return make_app(JudgeClient(LocalBackend(judge_spec(config))), "secret")


def read_outcome(judgement: dict[str, Any]) -> tuple[str, str]:
    return judgement["outcome"], judgement["reason"]


def test_score_by_reference(app: Service) -> None:
    contexts = [
        CONTEXT,
        {},
        {"reference": "4", "referense": "4"},
        {"reference": "x" * (MAX_TEXT_CHARS + 1)},
    ]
    body = {
        "candidates": [{"query": "q", "response": "4", "context": context} for context in contexts]
    }
    with call_app(app) as call:
        judgements = call("POST", "/v1/score", json=body).json()["judgements"]
    assert judgements[0]["rating"]["value"] == 9
    outcomes = [read_outcome(judgement) for judgement in judgements[1:]]
    assert {name for name, _ in outcomes} == {"input_rejected"}
    for (_, reason), word in zip(outcomes, ("'reference'", "'referense'", "1048577"), strict=True):
        assert word in reason


def test_ties_are_counted_beside_the_same_reference(app: Service) -> None:
    references = ["4", "4", "5", "5", "5"]
    rows = [{"query": "q", "response": "4", "context": {"reference": r}} for r in references]
    with call_app(app) as call:
        call("POST", "/v1/score", json={"candidates": rows})
    assert metric(app, "autoj_rated_pairs_total") == metric(app, "autoj_tied_pairs_total") == 4


def test_pairs_and_groups(app: Service) -> None:
    pair = {"query": "q", "first": "long", "second": "b", "context": {"criteria": "length"}}
    group = {"query": "q", "responses": ["5", "4"], "context": CONTEXT}
    with call_app(app) as call:
        comparisons = call("POST", "/v1/compare", json={"pairs": [pair]}).json()["comparisons"]
        chosen = call("POST", "/v1/best_of_n", json=group).json()
    assert comparisons[0]["verdict"] == Verdict.FIRST
    assert chosen["selection"]["index"] == 1


class Echo(Stub):
    """Backend whose critiques are the context that it was given."""

    async def stream(self, items: Sequence[JudgeInput]) -> AsyncIterator[tuple[int, Judgement]]:
        for index, item in enumerate(items):
            critique = repr(dict(item.context))
            yield index, rated(5, critique=critique, judge="stub")


def test_the_context_crosses_the_wire_whole() -> None:
    async def ask(port: int) -> list[Judgement]:
        address = f"http://127.0.0.1:{port}"
        backend = await HttpBackend.connect(address, "secret", 60)
        candidates = [Candidate("q", "r", context=c) for c in (CONTEXT, {"rubric": "ü\n"}, {})]
        try:
            return await JudgeClient(backend, limits=ClientLimits(deadline_s=60)).rate(candidates)
        finally:
            await backend.close()

    with serving(make_service(Echo())) as port:
        judgements = asyncio.run(ask(port))
    assert [j.critique for j in judgements] == [repr(CONTEXT), repr({"rubric": "ü\n"}), "{}"]


def test_an_input_without_context_is_sent_as_before() -> None:
    """Services from before contexts existed refuse unknown fields."""
    sent: list[bytes] = []

    async def keep(request: web.BaseRequest) -> web.Response:
        if request.method == "GET":
            return web.json_response({"judge": "stub"})
        sent.append(await request.read())
        return web.Response(status=500)

    async def ask() -> None:
        async with RawTestServer(keep) as server:
            backend = await HttpBackend.connect(str(server.make_url("/")), "secret", 60)
            try:
                async for _ in backend.stream([JudgeInput("single", "q", ("r",))]):
                    pass
            finally:
                await backend.close()

    with pytest.raises(Exception, match="HTTP 500"):
        asyncio.run(ask())
    assert sent == [b'{"items":[{"protocol":"single","query":"q","responses":["r"],"sample":0}]}']


TALK: list[dict[str, Any]] = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": [{"type": "text", "text": "Hello"}]},
    {"role": "user", "content": "2+2?"},
]


class TurnEcho(Stub):
    """Backend whose critiques are the turns that it was given, or the query."""

    async def stream(self, items: Sequence[JudgeInput]) -> AsyncIterator[tuple[int, Judgement]]:
        for index, item in enumerate(items):
            critique = (
                " | ".join(f"{turn.role} {turn.text}" for turn in item.prompt.turns)
                or item.prompt.text
            )
            is_single = item.protocol == "single"
            answer = rated(5) if is_single else compared(Verdict.FIRST)
            yield index, replace(answer, critique=critique, judge="stub")


TALK_TEXT = "user Hi | assistant Hello | user 2+2?"
ROUTES: dict[str, tuple[str, dict[str, Any]]] = {
    "score": ("/v1/score", {"candidates": [{"messages": TALK, "response": "4"}]}),
    "compare": ("/v1/compare", {"pairs": [{"messages": TALK, "first": "4", "second": "5"}]}),
    "best of n": ("/v1/best_of_n", {"messages": TALK, "responses": ["4", "5"]}),
    "judge": ("/v1/judge", {"items": [{"messages": TALK, "responses": ["4"]}]}),
}


@pytest.mark.parametrize("case", ROUTES)
def test_every_route_takes_a_conversation(case: str) -> None:
    path, body = ROUTES[case]
    with call_app(make_service(TurnEcho())) as call:
        answer = call("POST", path, json=body)
    assert answer.status_code == 200 and TALK_TEXT in answer.text


NO_TALK: dict[str, tuple[dict[str, Any], str]] = {
    "neither": ({"response": "4"}, "give either query or messages"),
    "both": ({"query": "q", "messages": TALK, "response": "4"}, "give either query or messages"),
    "order": ({"messages": TALK[1:], "response": "4"}, "messages[0].role: out of order"),
    "blank": ({"messages": [TALK[0] | {"content": " "}], "response": "4"}, "messages[0].content"),
}


@pytest.mark.parametrize("case", NO_TALK)
def test_what_is_no_conversation_is_refused(case: str) -> None:
    body, detail = NO_TALK[case]
    with call_app(make_service(TurnEcho())) as call:
        answer = call("POST", "/v1/score", json={"candidates": [body]})
    assert answer.status_code == 422
    assert answer.json()["field"] == "candidates.0" and detail in answer.json()["detail"]


def test_a_clients_conversations_cross_the_wire_in_any_order() -> None:
    odd = (Turn("user", "a"), Turn("user", " "), Turn("bot", "b"), Turn("assistant", "c"))
    forged = to_plain_text(odd)

    async def ask(port: int) -> list[Judgement]:
        backend = await HttpBackend.connect(f"http://127.0.0.1:{port}", "secret", 60)
        candidates = [Candidate(Prompt.of(odd), "r"), Candidate(forged, "r")]
        try:
            return await JudgeClient(backend, limits=ClientLimits(deadline_s=60)).rate(candidates)
        finally:
            await backend.close()

    with serving(make_service(TurnEcho())) as port:
        judgements = asyncio.run(ask(port))
    assert [j.critique for j in judgements] == ["user a | user   | bot b | assistant c", forged]
