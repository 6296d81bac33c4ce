"""Faults between a JudgeClient and its service: one answer each, whatever comes."""

from __future__ import annotations

import asyncio
import json
import math
import random
import struct
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from socket import SO_LINGER, SOL_SOCKET
from typing import Any

import httpx
import pytest

from autoj_reward.client.backend import LocalBackend
from autoj_reward.client.client import ClientLimits, JudgeClient
from autoj_reward.client.remote import HttpBackend
from autoj_reward.client.session import open_judge, open_service
from autoj_reward.config import JudgeConfig, ReplicaConfig, ServiceConfig
from autoj_reward.errors import ConfigError, EngineError, JournalError
from autoj_reward.journal import Journal
from autoj_reward.models.spec import judge_spec
from autoj_reward.service.api import make_app
from autoj_reward.types import Candidate, Judgement, Outcome
from tests.judgements import rated

Writer = asyncio.StreamWriter
Items = list[dict[str, Any]]
Fault = Callable[[Writer, Items], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def encode_line(index: int, item: dict[str, Any]) -> bytes:
    [response] = item["responses"]
    judgement = rated(float(len(response)), judge="raw")
    return json.dumps({"index": index, "judgement": judgement.record()}).encode() + b"\n"


def encode_chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


async def whole(writer: Writer, items: Items) -> None:
    body = b"".join(encode_chunk(encode_line(n, item)) for n, item in enumerate(items))
    writer.write(OK + body + b"0\r\n\r\n")


async def too_few(writer: Writer, items: Items) -> None:
    writer.write(OK + encode_chunk(encode_line(0, items[0])) + b"0\r\n\r\n")


async def half_a_line(writer: Writer, items: Items) -> None:
    writer.write(
        OK
        + encode_chunk(encode_line(0, items[0]))
        + encode_chunk(encode_line(1, items[1])[:20])
        + b"0\r\n\r\n"
    )


async def garbage(writer: Writer, items: Items) -> None:
    writer.write(
        OK
        + encode_chunk(encode_line(0, items[0]))
        + encode_chunk(b"\xff\x00 nonsense\n")
        + b"0\r\n\r\n"
    )


async def other_json(writer: Writer, items: Items) -> None:
    writer.write(OK + encode_chunk(b'[1, 2]\n{"index": 0}\n') + b"0\r\n\r\n")


async def no_http(writer: Writer, items: Items) -> None:
    writer.write(b"SSH-2.0-OpenSSH\r\n\r\n")


async def cut_off(writer: Writer, items: Items) -> None:
    writer.write(OK + encode_chunk(encode_line(0, items[0])) + b"40\r\nhalf")


async def reset(writer: Writer, items: Items) -> None:
    writer.write(OK + encode_chunk(encode_line(0, items[0])))
    await writer.drain()
    writer.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))


async def busy(writer: Writer, items: Items) -> None:
    writer.write(b"HTTP/1.1 503 Busy\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n")


async def lost(writer: Writer, items: Items) -> None:
    notice = json.dumps({"lost": "replica 3"}).encode() + b"\n"
    writer.write(OK + encode_chunk(encode_line(0, items[0])) + encode_chunk(notice) + b"0\r\n\r\n")


FAULTS = [too_few, half_a_line, garbage, other_json, no_http, cut_off, reset, busy, lost]


async def start_server(faults: Sequence[Fault]) -> asyncio.Server:
    """A raw server that meets one request after the other with these faults, then is well."""
    remaining_faults = list(faults)

    async def answer(reader: asyncio.StreamReader, writer: Writer) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET"):
            body = b'{"judge": "raw", "scale": [1, 10], "in_flight": 7}'
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n")
            writer.write(f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        else:
            lengths = [h for h in head.lower().split(b"\r\n") if h.startswith(b"content-length")]
            size = int(lengths[0].split(b":")[1])
            items = json.loads(await reader.readexactly(size))["items"]
            await (remaining_faults.pop(0) if remaining_faults else whole)(writer, items)
        await writer.drain()
        writer.close()

    return await asyncio.start_server(answer, "127.0.0.1", 0)


async def judge_candidates(
    faults: Sequence[Fault], journal: Journal | None = None
) -> list[Judgement]:
    reported_judgements: list[Judgement] = []
    async with await start_server(faults) as server:
        port = server.sockets[0].getsockname()[1]
        backend = await HttpBackend.connect(f"http://127.0.0.1:{port}", "secret", 5)
        client = JudgeClient(
            backend,
            journal=journal,
            progress=lambda judgement, reused: reported_judgements.append(judgement),
            limits=ClientLimits(deadline_s=30),
        )
        client._call_settings.first_pause_s = 0.001
        try:
            judgements = await client.rate([Candidate("q", r) for r in ("a", "bb", "ccc")])
        finally:
            await backend.close()
    assert len(reported_judgements) == 3
    return judgements


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
async def test_each_candidate_has_one_answer_in_order(fault: Fault) -> None:
    judgements = await judge_candidates([fault])
    assert [j.view("rating") for j in judgements] == [1, 2, 3]


async def test_all_faults_in_a_row() -> None:
    judgements = await judge_candidates(FAULTS)
    assert [j.view("rating") for j in judgements] == [1, 2, 3]


@pytest.mark.parametrize(("form", "critiques"), [("autoj-en", 4), ("scalar", 1)])
async def test_a_service_is_asked_as_often_as_its_judge_would_be(
    form: str, critiques: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOJ_TOKEN", "secret")
    judge = JudgeConfig(kind="fake", format=form, critiques=4, temperature=0.7)
    async with await start_server([]) as server:
        port = server.sockets[0].getsockname()[1]
        service = ServiceConfig(address=f"http://127.0.0.1:{port}")
        async with open_service(service, judge) as remote_judge, open_judge(judge) as local_judge:
            assert remote_judge.asks.critiques == local_judge.asks.critiques == critiques


async def test_a_refusal_for_good_is_raised_at_once() -> None:
    async def refuse(writer: Writer, items: Items) -> None:
        writer.write(b"HTTP/1.1 422 No\r\nContent-Length: 9\r\n\r\nbad items")

    with pytest.raises(EngineError, match="HTTP 422: bad items"):
        await judge_candidates([refuse])


async def test_a_journal_that_cannot_be_written_stops_the_caller(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.sqlite")
    journal._execute("PRAGMA query_only = ON", ())
    with pytest.raises(JournalError, match="what was stored before is safe"):
        await judge_candidates([], journal)
    journal.close()


async def test_a_busy_service_is_left_alone_for_as_long_as_it_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    at_once = asyncio.sleep

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        await at_once(0)

    monkeypatch.setattr(asyncio, "sleep", pause)

    async def postpone(writer: Writer, items: Items) -> None:
        writer.write(b"HTTP/1.1 520 Odd\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n")

    judgements = await judge_candidates([postpone])
    assert [j.view("rating") for j in judgements] == [1, 2, 3]
    assert 7.0 in pauses


def make_change(**change: Any) -> Callable[[dict[str, Any]], None]:
    return lambda judgement: judgement["readings"][0].update(change)


UNSOUND: dict[str, Callable[[dict[str, Any]], None]] = {
    "nan": make_change(value=math.nan),
    "infinite": make_change(expected=math.inf),
    "too large for a float": make_change(outside=10**400),
    "off the scale": make_change(value=11),
    "below the scale": make_change(expected=0.2),
    "a text": make_change(value="7"),
    "a truth value": make_change(value=True),
    "nothing": make_change(value=None),
    "negative": make_change(distribution=[["1", -0.1], ["2", 0.3]]),
    "more than all": make_change(distribution=[["1", 0.9], ["2", 0.3]]),
    "nan of a label": make_change(distribution=[["1", math.nan]]),
    "no labels": make_change(distribution=[0.1]),
    "outside": make_change(outside=1.5),
    "unknown outcome": lambda judgement: judgement.update(outcome="fine"),
    "no rating": lambda judgement: judgement.update(readings=[]),
    "critique": lambda judgement: judgement.update(critique=5),
    "a field too many": make_change(more=1),
    "another slot": make_change(slot="verdict"),
    "no object": lambda judgement: judgement.clear(),
}


@pytest.mark.parametrize("name", UNSOUND)
async def test_a_judgement_that_cannot_be_is_the_failure_of_its_input_alone(name: str) -> None:
    async def answer_unsoundly(writer: Writer, items: Items) -> None:
        records = [json.loads(encode_line(n, item)) for n, item in enumerate(items)]
        UNSOUND[name](records[1]["judgement"])
        body = b"".join(encode_chunk(json.dumps(record).encode() + b"\n") for record in records)
        writer.write(OK + body + b"0\r\n\r\n")

    judgements = await judge_candidates([answer_unsoundly])
    assert [j.view("rating") for j in judgements] == [1, None, 3]
    assert judgements[1].outcome is Outcome.UNAVAILABLE
    assert "what is no judgement" in judgements[1].reason


@pytest.mark.parametrize("index", [-1, 3, True, "1", 1.0, None])
async def test_an_answer_to_nothing_asked_is_none(index: Any) -> None:
    async def answer_astray(writer: Writer, items: Items) -> None:
        record = json.loads(encode_line(0, items[2])) | {"index": index}
        writer.write(OK + encode_chunk(json.dumps(record).encode() + b"\n") + b"0\r\n\r\n")

    judgements = await judge_candidates([answer_astray])
    assert [j.view("rating") for j in judgements] == [1, 2, 3]


async def test_the_second_answer_to_an_input_does_not_count() -> None:
    async def answer_twice(writer: Writer, items: Items) -> None:
        body = (
            encode_chunk(encode_line(0, items[0]))
            + encode_chunk(encode_line(0, items[2]))
            + encode_chunk(encode_line(1, items[2]))
        )
        writer.write(OK + body + b"0\r\n\r\n")

    judgements = await judge_candidates([answer_twice])
    assert [j.view("rating") for j in judgements] == [1, 2, 3]


async def test_lines_of_any_length_in_any_pieces() -> None:
    async def answer_at_length(writer: Writer, items: Items) -> None:
        body = b""
        for n, item in enumerate(items):
            record = json.loads(encode_line(n, item))
            record["judgement"]["critique"] = "x" * 300_000
            body += json.dumps(record).encode() + b"\n"
        for start in range(0, len(body), 70_001):
            writer.write((OK if not start else b"") + encode_chunk(body[start : start + 70_001]))
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    judgements = await judge_candidates([answer_at_length])
    assert [(j.view("rating"), len(j.critique)) for j in judgements] == [
        (n, 300_000) for n in (1, 2, 3)
    ]


async def test_as_much_is_in_flight_as_the_service_takes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AUTOJ_TOKEN", "secret")
    async with await start_server([]) as server:
        service = ServiceConfig(address=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        async with open_service(service, JudgeConfig()) as client:
            assert client.limits.max_in_flight == 7
        judge = JudgeConfig(serve=ReplicaConfig(max_ongoing=3))
        async with open_service(service, judge) as client:
            assert client.limits.max_in_flight == 3


async def test_a_service_of_another_scale_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The neutral reward, among others, goes by the scale."""
    monkeypatch.setenv("AUTOJ_TOKEN", "secret")
    async with await start_server([]) as server:
        service = ServiceConfig(address=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        with pytest.raises(ConfigError, match=r"from 1 to 10, and judge\.format .* from 1 to 5"):
            async with open_service(service, JudgeConfig(format="prometheus2")):
                raise AssertionError("opened")


# A full disk: SQLite's own error, as it comes when no page can be added


def open_full_journal(path: Path) -> Journal:
    """A journal on whose disk there is no room for another page."""
    journal = Journal(path)
    [(pages,)] = journal._execute("PRAGMA page_count", ())
    journal._execute(f"PRAGMA max_page_count = {pages}", ())
    return journal


def make_room(journal: Journal) -> None:
    journal._execute("PRAGMA max_page_count = 1000000", ())


LONG = [Candidate("q", random.Random(n).randbytes(5000).hex()) for n in range(3)]
"""A judgement of one of these takes a page of its own, however it is packed."""


async def test_a_full_disk_stops_a_job_and_what_was_stored_stays(tmp_path: Path) -> None:
    path = tmp_path / "j.sqlite"
    journal = Journal(path)
    backend = LocalBackend(judge_spec(JudgeConfig(kind="fake")))
    before = await JudgeClient(backend, journal=journal).rate(LONG[:1])
    journal.close()
    journal = open_full_journal(path)
    answers: list[tuple[Judgement, bool]] = []
    client = JudgeClient(backend, journal=journal, progress=lambda *answer: answers.append(answer))
    with pytest.raises(JournalError) as caught:
        await client.rate(LONG)
    assert str(caught.value).startswith(f"journal {path}: database or disk is full")
    assert "free disk space" in str(caught.value)
    assert answers == [(before[0], True)]  # nothing was used that is not on record
    make_room(journal)
    assert (await client.rate(LONG))[0] == before[0]
    assert len(list(journal.export())) == 3
    journal.close()


async def test_a_service_with_a_full_disk_refuses_until_there_is_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = open_full_journal(tmp_path / "j.sqlite")
    backend = LocalBackend(judge_spec(JudgeConfig(kind="fake")))
    app = make_app(JudgeClient(backend, journal=journal), "secret")
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app.guard),
        base_url="http://service",
        headers={"Authorization": "Bearer secret"},
    ) as http:
        body = {"candidates": [{"query": c.prompt.text, "response": c.response.text} for c in LONG]}
        for _ in range(3):
            refusal = await http.post("/v1/score", json=body)
            assert refusal.status_code == 503 and refusal.headers["retry-after"] == "1"
            assert f"{journal.path}: database or disk is full" in refusal.json()["detail"]
        for probe in ("/healthz", "/readyz"):
            assert (await http.get(probe)).status_code == 200
        # JudgeClients keep a journal of their own.
        items = [{"query": "q", "responses": ["a"]}]
        assert (await http.post("/v1/judge", json={"items": items})).status_code == 200
        make_room(journal)
        answer = await http.post("/v1/score", json=body)
    assert [j["outcome"] for j in answer.json()["judgements"]] == ["ok"] * 3
    assert caplog.text.count("a judgement cannot be recorded") == 3
    assert len(list(journal.export())) == 3
    journal.close()
