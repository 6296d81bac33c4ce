"""A protocol of three responses goes all the way without a change to the package: format, client,
journal, service, page, and replicas, to which it travels with the judge's spec."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.client.client import ClientLimits, JudgeClient
from autoj_reward.client.remote import HttpBackend
from autoj_reward.client.session import open_judge
from autoj_reward.config import JudgeConfig
from autoj_reward.formats.protocols import PROTOCOLS
from autoj_reward.formats.schema import load_any_format
from autoj_reward.journal import Journal
from autoj_reward.models.spec import JudgeSpec, judge_spec
from autoj_reward.service.api import make_app
from autoj_reward.types import Judgement, Outcome
from tests import own_protocol
from tests.own_protocol import TRIPLE, Best, Triple, write_format
from tests.service.test_api import metric, serving
from tests.watch.conftest import ReadAnswers

QUESTION = Best("Which?", ("long answer", "short", "middling"))
# The scripted judge says what is scripted for the first response of an order that has something.
SCRIPT = {
    "comparisons": {
        "long answer": "It is the longest. The best is [Left].",
        "middling": "It is the longest. The best is [Right].",
    }
}


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JudgeSpec]:
    monkeypatch.setitem(PROTOCOLS, TRIPLE, Triple)
    load_any_format.cache_clear()
    serve = {"replicas": 1, "num_cpus": 0.1}
    fmt = write_format(tmp_path / "own")
    yield judge_spec(JudgeConfig(kind="fake", format=fmt, script=SCRIPT, serve=serve))
    load_any_format.cache_clear()


def require_both_orders(answer: tuple[str | None, Any]) -> None:
    best, judgements = answer
    assert best == "long answer"
    assert [j.outcome for j in judgements] == [Outcome.OK, Outcome.OK]
    [left], [right] = (judgement.readings for judgement in judgements)
    assert (left.slot, left.label, left.value, left.forced) == ("best", "one", None, False)
    assert right.label == "three"
    assert dict(left.distribution or ())["one"] > 0.8 and set(dict(left.distribution or ())) == {
        *own_protocol.LABELS
    }


def test_through_client_journal_and_page(
    spec: JudgeSpec, tmp_path: Path, read_answers: ReadAnswers
) -> None:
    async def ask(journal: Journal) -> list[tuple[str | None, Any]]:
        async with open_judge(spec, journal=journal) as client:
            return await client.answer([QUESTION, QUESTION])

    with closing(Journal(tmp_path / "journal.sqlite")) as journal:
        for answer in asyncio.run(ask(journal)):
            require_both_orders(answer)
        rows = list(journal.export())
        on_record = journal.get(spec.name, QUESTION.inputs())
    assert [row["input"]["protocol"] for row in rows] == [TRIPLE, TRIPLE]
    assert [row["readings"][0]["label"] for row in rows] == ["one", "three"]
    assert len(on_record) == 2 and all(judgement.ok for judgement in on_record.values())

    page = read_answers(tmp_path)
    assert page.answer("run", {})["journal"]["kinds"] == {TRIPLE: 2}
    [row] = page.answer("queries", {})["rows"]
    listed = page.answer("query", {"id": str(row["id"])})["candidates"]
    names = {key: candidate["name"] for key, candidate in zip(("one", "two"), listed, strict=False)}
    pair = page.answer("pair", {"id": str(row["id"])} | names)
    readings = {
        (j["kind"], slot, label)
        for candidate in pair["candidates"]
        for j in candidate["judgements"]
        for slot, label in j["readings"]
    }
    assert readings == {(TRIPLE, "best", "one"), (TRIPLE, "best", "three")}


def test_through_a_service(spec: JudgeSpec) -> None:
    async def ask() -> None:
        async with open_judge(spec) as judge_client:
            app = make_app(judge_client, "secret")
            with serving(app) as port:
                address = f"http://127.0.0.1:{port}"
                backend = await HttpBackend.connect(address, "secret", 10)
                try:
                    client = JudgeClient(backend, limits=ClientLimits(deadline_s=30))
                    [answer] = await client.answer([QUESTION])
                finally:
                    await backend.close()
            require_both_orders(answer)
            assert metric(app, "autoj_judgements_total", kind=TRIPLE, outcome="ok") == 2

    asyncio.run(ask())


@pytest.mark.engine
def test_it_travels_to_replicas_that_never_heard_of_it(spec: JudgeSpec) -> None:
    import cloudpickle  # type: ignore[import-untyped]

    from autoj_reward.replicas.cluster import Cluster

    cloudpickle.register_pickle_by_value(own_protocol)
    cluster = Cluster()
    try:
        backend = cluster.deploy_judge(spec)
        [answer] = asyncio.run(
            JudgeClient(backend, limits=ClientLimits(deadline_s=120)).answer([QUESTION])
        )
    finally:
        cluster.close()
        cloudpickle.unregister_pickle_by_value(own_protocol)
    require_both_orders(answer)


def test_a_judgement_of_another_protocol_is_refused_by_name(spec: JudgeSpec) -> None:
    async def ask() -> Judgement:
        async with open_judge(spec) as client:
            items = [QUESTION.inputs()[0]]
            short = [type(items[0])(TRIPLE, "Which?", ("a", "b"))]
            [judgement] = await client.judge(short)
            return judgement

    judgement = asyncio.run(ask())
    assert judgement.outcome is Outcome.INPUT_REJECTED
    assert "2 responses, and the protocol triple shows 3" in judgement.reason
