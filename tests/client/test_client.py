from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoj_reward.client.backend import Backend
from autoj_reward.client.client import ClientLimits, JudgeClient
from autoj_reward.client.session import open_judge
from autoj_reward.config import JudgeConfig
from autoj_reward.errors import EngineUnavailable, ReplicaLost
from autoj_reward.journal import Journal
from autoj_reward.models.facts import Asks
from autoj_reward.models.spec import JudgeSpec
from autoj_reward.types import Candidate, JudgeInput, Judgement, Outcome, Verdict
from tests.clock import VirtualClock, measure
from tests.judgements import compared, rated, texts_of


def judge_by_length(item: JudgeInput) -> Judgement:
    """Return the judgement that the longer response wins."""
    first_length, second_length = map(len, texts_of(item))
    winner = (
        Verdict.TIE
        if first_length == second_length
        else Verdict.FIRST
        if first_length > second_length
        else Verdict.SECOND
    )
    return compared(winner, judge="stub")


class Stub(Backend):
    """Backend that rates a response by its length, and answers the last input first."""

    judge = "stub"

    def __init__(
        self,
        answer: Callable[[JudgeInput], Judgement] | None = None,
        fault: Callable[[JudgeInput], BaseException | None] = lambda item: None,
        gate: asyncio.Event | None = None,
    ) -> None:
        self.answer = answer or (lambda item: rated(len(item.responses[0].text), judge="stub"))
        self.fault = fault
        self.gate = gate
        self.calls: list[tuple[JudgeInput, ...]] = []
        self.inside = 0
        self.most_inside = 0
        self.closed = 0

    async def stream(self, items: Sequence[JudgeInput]) -> AsyncIterator[tuple[int, Judgement]]:
        self.calls.append(tuple(items))
        self.inside += len(items)
        self.most_inside = max(self.most_inside, self.inside)
        remaining = len(items)
        try:
            if self.gate:
                await self.gate.wait()
            for index in reversed(range(len(items))):
                await asyncio.sleep(0)
                if error := self.fault(items[index]):
                    raise error
                remaining -= 1
                self.inside -= 1
                yield index, self.answer(items[index])
        finally:
            self.inside -= remaining
            self.closed += 1

    async def check(self) -> int:
        return 1

    async def update(self, spec: JudgeSpec) -> None:
        pass

    async def close(self) -> None:
        pass

    @property
    def asked_items(self) -> list[JudgeInput]:
        return [item for call in self.calls for item in call]


def read_ratings(judgements: Sequence[Judgement]) -> list[float | None]:
    return [j.view("rating") for j in judgements]


def is_idle(client: JudgeClient, slots: int) -> bool:
    return (
        not client._pending
        and client._call_settings.slots._free == slots
        and not client._call_settings.slots._queue
    )


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


class Endpoint(Stub):
    """Stub whose first contact takes a while."""

    async def contact(self, finding: Mapping[str, Any]) -> Mapping[str, Any]:
        await settle()
        return await super().contact(finding)


@pytest.mark.parametrize("callers", [2, 3])
async def test_equal_first_calls_of_an_endpoint_share_one_judgement(callers: int) -> None:
    stub = Endpoint()
    client = JudgeClient(stub)
    async with asyncio.timeout(30):
        answers = await asyncio.gather(
            *(client.rate([Candidate("q", "aa"), Candidate("q", "b")]) for _ in range(callers))
        )
    assert [read_ratings(judgements) for judgements in answers] == [[2, 1]] * callers
    assert sorted(item.responses[0].text for item in stub.asked_items) == ["aa", "b"]
    assert is_idle(client, client.limits.max_in_flight)


async def test_answers_keep_the_order_of_the_candidates() -> None:
    client = JudgeClient(Stub(), limits=ClientLimits(max_in_flight=4))
    judgements = await client.rate([Candidate(f"q{n % 3}", "x" * n) for n in range(1, 9)])
    assert read_ratings(judgements) == [1, 2, 3, 4, 5, 6, 7, 8]


async def test_nothing_to_rate_asks_nothing() -> None:
    stub = Stub()
    assert await JudgeClient(stub).rate([]) == []
    assert stub.calls == []


async def test_identical_candidates_are_judged_once() -> None:
    stub = Stub()
    client = JudgeClient(stub)
    judgements = await client.rate(
        [Candidate("q", "aa"), Candidate("q", "b"), Candidate("q", "aa")]
    )
    assert read_ratings(judgements) == [2, 1, 2]
    assert sorted(i.responses[0].text for i in stub.asked_items) == ["aa", "b"]


async def test_concurrent_calls_share_what_is_under_way() -> None:
    stub = Stub(gate=asyncio.Event())
    client = JudgeClient(stub)
    first = asyncio.create_task(client.rate([Candidate("q", "a"), Candidate("q", "bb")]))
    await settle()
    second = asyncio.create_task(client.rate([Candidate("q", "bb"), Candidate("q", "ccc")]))
    await settle()
    assert stub.gate is not None
    stub.gate.set()
    assert read_ratings(await first) == [1, 2]
    assert read_ratings(await second) == [2, 3]
    assert [tuple(i.responses[0].text for i in c) for c in stub.calls] == [("a", "bb"), ("ccc",)]
    assert is_idle(client, 256)


@pytest.mark.parametrize(
    ("chunk", "limit", "sizes"),
    [
        pytest.param(32, 256, {"a": [5], "b": [2]}, id="one call a query"),
        pytest.param(2, 256, {"a": [2, 2, 1], "b": [2]}, id="chunked"),
        pytest.param(32, 3, {"a": [3, 2], "b": [2]}, id="no call is over the limit"),
    ],
)
async def test_calls_hold_one_query_each(
    chunk: int, limit: int, sizes: dict[str, list[int]]
) -> None:
    stub = Stub()
    candidates = [Candidate("a", "x" * n) for n in (1, 2, 3)] + [Candidate("b", "y")]
    candidates += [Candidate("a", "x" * n) for n in (4, 5)] + [Candidate("b", "z")]
    await JudgeClient(stub, limits=ClientLimits(chunk=chunk, max_in_flight=limit)).rate(candidates)
    call_sizes: dict[str, list[int]] = {}
    for call in stub.calls:
        assert len({item.prompt.text for item in call}) == 1
        call_sizes.setdefault(call[0].prompt.text, []).append(len(call))
    assert call_sizes == sizes


@pytest.mark.parametrize("limit", [1, 2, 5])
async def test_never_more_in_flight_than_allowed(limit: int) -> None:
    stub = Stub()
    client = JudgeClient(stub, limits=ClientLimits(max_in_flight=limit, chunk=2))
    batches = [[Candidate(f"q{n}", "x" * k) for k in range(1, 5)] for n in range(4)]
    await asyncio.gather(*(client.rate(batch) for batch in batches))
    assert 0 < stub.most_inside <= limit
    assert len(stub.asked_items) == 16
    assert is_idle(client, limit)


async def test_an_answer_makes_room_before_the_rest_of_its_call() -> None:
    class Slow(Stub):
        """Backend that holds back the last answer of the query `a`."""

        async def stream(self, items: Sequence[JudgeInput]) -> AsyncIterator[tuple[int, Judgement]]:
            async for index, judgement in super().stream(items):
                if items[index] == JudgeInput("single", "a", ("x",)):
                    await last.wait()
                yield index, judgement

    last = asyncio.Event()
    stub = Slow()
    client = JudgeClient(stub, limits=ClientLimits(max_in_flight=4, chunk=4))
    slow = asyncio.create_task(client.rate([Candidate("a", "x" * n) for n in (1, 2, 3, 4)]))
    await settle()
    others = await client.rate([Candidate("b", "x" * n) for n in (1, 2, 3)])
    assert read_ratings(others) == [1, 2, 3]
    assert not slow.done()
    last.set()
    assert read_ratings(await slow) == [1, 2, 3, 4]
    assert is_idle(client, 4)


async def test_a_lost_replica_is_asked_again_only_for_what_is_missing() -> None:
    lost = iter([EngineUnavailable("died")])
    stub = Stub(
        fault=lambda item: (
            next(lost, None) if tuple(r.text for r in item.responses) == ("bb",) else None
        )
    )
    reported: list[Judgement] = []
    client = JudgeClient(stub, progress=lambda judgement, reused: reported.append(judgement))
    judgements = await client.rate([Candidate("q", r) for r in ("a", "bb", "ccc")])
    assert read_ratings(judgements) == [1, 2, 3]
    assert [[i.responses[0].text for i in c] for c in stub.calls] == [
        ["a", "bb", "ccc"],
        ["a", "bb"],
    ]
    assert sorted(v for v in read_ratings(reported) if v) == [1, 2, 3]


async def test_a_stream_that_ends_early_is_asked_again() -> None:
    class Short(Stub):
        async def stream(self, items: Sequence[JudgeInput]) -> AsyncIterator[tuple[int, Judgement]]:
            self.calls.append(tuple(items))
            yield 0, self.answer(items[0])

    stub = Short()
    judgements = await JudgeClient(stub).rate([Candidate("q", "a"), Candidate("q", "bb")])
    assert read_ratings(judgements) == [1, 2]
    assert [len(call) for call in stub.calls] == [2, 1]


def test_a_hanging_input_is_unavailable_by_its_deadline(virtual_clock: VirtualClock) -> None:
    class Hang(Stub):
        async def stream(self, items: Sequence[JudgeInput]) -> AsyncIterator[tuple[int, Judgement]]:
            for index, item in enumerate(items):
                if tuple(r.text for r in item.responses) == ("hang",):
                    await asyncio.Event().wait()
                yield index, self.answer(item)

    client = JudgeClient(Hang(), limits=ClientLimits(deadline_s=2.0))
    candidates = [Candidate("q", "a"), Candidate("q", "hang"), Candidate("p", "bb")]
    judgements, seconds = virtual_clock.run(measure(client.rate(candidates)))
    assert seconds == pytest.approx(2.0)
    assert read_ratings(judgements) == [1, None, 2]
    assert judgements[1].outcome is Outcome.UNAVAILABLE
    assert judgements[1].reason == "no answer within 2 s"
    assert judgements[1].judge == "stub"
    assert is_idle(client, 256)


def test_the_last_error_is_named_when_the_deadline_passes(virtual_clock: VirtualClock) -> None:
    stub = Stub(fault=lambda item: EngineUnavailable("replica 3 is gone"))
    client = JudgeClient(stub, limits=ClientLimits(deadline_s=1.0))
    client._call_settings.first_pause_s = 0.001
    [judgement] = virtual_clock.run(client.rate([Candidate("q", "a")]))
    assert judgement.outcome is Outcome.UNAVAILABLE
    assert judgement.reason == "no answer within 1 s; last: replica 3 is gone"
    assert len(stub.calls) >= 2


@pytest.mark.parametrize("limit", [2, 3, 256], ids="limit {}".format)
async def test_an_unexpected_error_propagates_and_leaves_nothing_behind(limit: int) -> None:
    broken = True
    stub = Stub(
        fault=lambda item: ValueError("a bug") if broken and item.prompt.text == "q1" else None
    )
    client = JudgeClient(stub, limits=ClientLimits(max_in_flight=limit, chunk=2))
    candidates = [Candidate(f"q{n}", "x" * k) for n in range(4) for k in (1, 2, 3)]
    with pytest.raises(ValueError, match="a bug"):
        await client.rate(candidates)
    assert is_idle(client, limit)
    assert stub.inside == 0
    broken = False
    assert read_ratings(await client.rate(candidates)) == [1, 2, 3] * 4


async def test_an_error_of_the_caller_stops_the_stream() -> None:
    """A judgement that cannot be recorded must stop the replica's work."""
    stub = Stub()

    def refuse(judgement: Judgement, reused: bool) -> None:
        raise RuntimeError("cannot record")

    client = JudgeClient(stub, progress=refuse)
    gc.disable()
    try:
        with pytest.raises(RuntimeError, match="cannot record") as caught:
            await client.rate([Candidate("q", "a"), Candidate("q", "bb")])
        assert caught.value.__traceback__ is not None
        assert stub.closed == len(stub.calls) == 1
    finally:
        gc.enable()
    assert is_idle(client, 256)


async def test_a_cancelled_caller_leaves_nothing_behind() -> None:
    stub = Stub(gate=asyncio.Event())
    client = JudgeClient(stub, limits=ClientLimits(max_in_flight=2, chunk=2))
    task = asyncio.create_task(client.rate([Candidate(f"q{n}", "x") for n in range(5)]))
    await settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert is_idle(client, 2)
    assert stub.inside == 0


async def test_callers_of_one_query_ask_together() -> None:
    stub = Stub()
    client = JudgeClient(stub, limits=ClientLimits(chunk=3))
    rows = [Candidate(f"q{n % 2}", "x" * n) for n in range(1, 9)]
    batches = await asyncio.gather(*(client.rate([row]) for row in rows))
    assert [read_ratings(batch) for batch in batches] == [[n] for n in range(1, 9)]
    assert sorted(map(len, stub.calls)) == [1, 1, 3, 3]
    assert is_idle(client, 256)


async def test_a_caller_who_leaves_takes_nobody_along() -> None:
    stub = Stub(gate=asyncio.Event())
    client = JudgeClient(stub)
    leaving, staying = (asyncio.create_task(client.rate([Candidate("q", r)])) for r in ("a", "bb"))
    await settle()
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert stub.inside == 2 and stub.gate
    stub.gate.set()
    assert read_ratings(await staying) == [2]
    assert is_idle(client, 256)


async def test_who_stays_does_not_wait_for_what_others_left() -> None:
    def answer(item: JudgeInput) -> Judgement:
        if tuple(r.text for r in item.responses) == (
            "bb",
        ):  # the last is answered first, and only it
            client_asked.set()
        return rated(len(item.responses[0].text), judge="stub")

    client_asked = asyncio.Event()
    stub = Stub(
        answer,
        lambda item: (
            EngineUnavailable("x") if tuple(r.text for r in item.responses) == ("a",) else None
        ),
    )
    client = JudgeClient(stub)
    leaving, staying = (asyncio.create_task(client.rate([Candidate("q", r)])) for r in ("a", "bb"))
    await client_asked.wait()
    assert read_ratings(await staying) == [2]
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert is_idle(client, 256) and stub.inside == 0


async def test_an_error_of_a_call_reaches_all_who_asked_with_it() -> None:
    stub = Stub(fault=lambda item: RuntimeError("no such engine"))
    client = JudgeClient(stub)
    calls = (client.rate([Candidate("q", r)]) for r in ("a", "bb"))
    errors = await asyncio.gather(*calls, return_exceptions=True)
    assert [str(error) for error in errors] == ["no such engine"] * 2
    assert len(stub.calls) == 1 and is_idle(client, 256)


async def test_an_error_does_not_wait_for_other_queries() -> None:
    gate = asyncio.Event()

    class Half(Stub):
        async def stream(self, items: Sequence[JudgeInput]) -> AsyncIterator[tuple[int, Judgement]]:
            if items[0].prompt.text == "slow":
                await gate.wait()
            raise RuntimeError("no such engine")
            yield

    client = JudgeClient(Half())
    with pytest.raises(RuntimeError, match="no such engine"):
        await client.rate([Candidate("slow", "x"), Candidate("q", "x")])
    assert is_idle(client, 256)


async def test_close_before_a_call_has_left_ends_it_with_an_error() -> None:
    stub = Stub()
    client = JudgeClient(stub)
    call = asyncio.create_task(client.rate([Candidate("q", "x")]))
    await asyncio.sleep(0)
    await client.close()
    with pytest.raises(EngineUnavailable, match="the judge was closed"):
        await call
    assert not stub.calls and is_idle(client, 256)


async def test_close_during_a_call_ends_it_with_an_error() -> None:
    stub = Stub(gate=asyncio.Event())
    client = JudgeClient(stub, limits=ClientLimits(max_in_flight=2, chunk=2))
    calls = [[Candidate(f"q{n}", "x") for n in range(5)], [Candidate("q0", "x")]]
    tasks = [asyncio.create_task(client.rate(call)) for call in calls]
    await settle()
    await client.close()
    assert stub.inside == 0
    for task in tasks:
        with pytest.raises(EngineUnavailable, match="the judge was closed"):
            await task
    with pytest.raises(EngineUnavailable, match="the judge was closed"):
        await client.rate(calls[0])
    assert is_idle(client, 2)


async def test_who_leaves_open_judge_leaves_no_call_waiting() -> None:
    config = JudgeConfig(kind="fake", script={"fail": {"slow": "hang"}})
    async with open_judge(config) as client:
        call = asyncio.create_task(client.rate([Candidate("q", "slow")]))
        await settle()
    with pytest.raises(EngineUnavailable, match="the judge was closed"):
        await call


@pytest.mark.parametrize("how", ["cancelled", "failed"])
async def test_a_caller_does_not_suffer_from_the_one_that_asked_first(how: str) -> None:
    gate = asyncio.Event()
    faults = iter([ValueError("a bug")] if how == "failed" else [])
    stub = Stub(gate=gate, fault=lambda item: next(faults, None))
    client = JudgeClient(stub)
    first = asyncio.create_task(client.rate([Candidate("q", "aa")]))
    await settle()
    second = asyncio.create_task(client.rate([Candidate("q", "aa"), Candidate("q", "b")]))
    await settle()
    if how == "cancelled":
        first.cancel()
        await settle()
    gate.set()
    with pytest.raises(asyncio.CancelledError if how == "cancelled" else ValueError):
        await first
    assert read_ratings(await second) == [2, 1]
    assert is_idle(client, 256)


async def test_a_cancelled_wait_for_slots_lets_the_next_one_in() -> None:
    gate = asyncio.Event()
    stub = Stub(gate=gate)
    client = JudgeClient(stub, limits=ClientLimits(max_in_flight=3, chunk=3))
    holding = asyncio.create_task(client.rate([Candidate("a", "x"), Candidate("a", "xx")]))
    await settle()
    waiting = asyncio.create_task(client.rate([Candidate("b", "x" * n) for n in (1, 2, 3)]))
    await settle()
    small = asyncio.create_task(client.rate([Candidate("c", "xxx")]))
    await settle()
    assert [call[0].prompt.text for call in stub.calls] == ["a"]
    waiting.cancel()
    await settle()
    assert [call[0].prompt.text for call in stub.calls] == ["a", "c"]
    gate.set()
    assert read_ratings(await holding) + read_ratings(await small) == [1, 2, 3]
    assert is_idle(client, 3)


async def test_the_journal_answers_first_and_unavailable_is_asked_again(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.sqlite")
    down = True
    stub = Stub(
        answer=lambda item: (
            Judgement(Outcome.UNAVAILABLE, reason="down", judge="stub")
            if down and tuple(r.text for r in item.responses) == ("bb",)
            else rated(len(item.responses[0].text), judge="stub")
        )
    )
    reported: list[tuple[float | None, bool]] = []
    client = JudgeClient(
        stub,
        journal=journal,
        progress=lambda j, reused: reported.append((j.view("rating"), reused)),
    )
    candidates = [Candidate("q", "a"), Candidate("q", "bb")]
    assert read_ratings(await client.rate(candidates)) == [1, None]
    assert sorted(reported, key=str) == [(1, False), (None, False)]
    down = False
    reported.clear()
    assert read_ratings(await client.rate(candidates)) == [1, 2]
    assert sorted(reported, key=str) == [(1, True), (2, False)]
    assert [i.responses[0].text for i in stub.asked_items] == ["a", "bb", "bb"]
    journal.close()


async def test_a_judgement_is_on_record_before_the_caller_sees_it(tmp_path: Path) -> None:
    path = tmp_path / "j.sqlite"
    journal, reader = Journal(path), Journal(path)
    on_record: list[bool] = []

    def progress(judgement: Judgement, reused: bool) -> None:
        on_record.append(
            any(r["rating"]["value"] == judgement.view("rating") for r in reader.export())
        )

    client = JudgeClient(Stub(), journal=journal, progress=progress)
    await client.rate([Candidate("q", "a"), Candidate("q", "bb")])
    assert on_record == [True, True]
    journal.close()
    reader.close()


async def test_k_critiques_are_averaged_and_asked_in_one_call() -> None:
    stub = Stub(
        answer=lambda item: rated(len(item.responses[0].text) + 2 * item.sample, judge="stub")
    )
    judgements = await JudgeClient(stub, asks=Asks(critiques=3)).rate(
        [Candidate("q", "x"), Candidate("q", "xxxx")]
    )
    assert read_ratings(judgements) == [3, 6]  # (1 + 3 + 5) / 3, (4 + 6 + 8) / 3
    assert [len(call) for call in stub.calls] == [6]
    assert [(i.responses[0].text, i.sample) for i in stub.asked_items[:3]] == [
        ("x", 0),
        ("x", 1),
        ("x", 2),
    ]


async def test_compare_asks_both_orders() -> None:
    stub = Stub(answer=judge_by_length)
    comparisons = await JudgeClient(stub).compare(
        [("q", "long", "s"), ("q", "s", "t"), ("p", "a", "bb")]
    )
    assert [c.verdict for c in comparisons] == [Verdict.FIRST, Verdict.TIE, Verdict.SECOND]
    assert [len(c.orders) for c in comparisons] == [2, 2, 2]
    assert {texts_of(i) for i in stub.asked_items if i.prompt.text == "p"} == {
        ("a", "bb"),
        ("bb", "a"),
    }


async def test_a_judge_that_always_takes_the_first_is_inconsistent() -> None:
    stub = Stub(answer=lambda item: compared(Verdict.FIRST))
    [swapped] = await JudgeClient(stub).compare([("q", "a", "b")])
    [single] = await JudgeClient(stub).compare([("q", "a", "b")], swap=False)
    assert swapped.verdict is Verdict.INCONSISTENT
    assert single.verdict is Verdict.FIRST
    assert len(single.orders) == 1
    assert [len(call) for call in stub.calls] == [2, 1]


@settings(max_examples=60)
@given(st.data())
def test_any_interleaving_of_failures_gives_one_answer_each(data: st.DataObject) -> None:
    texts = st.tuples(st.sampled_from("qp"), st.integers(1, 6))
    batches = data.draw(st.lists(st.lists(texts, max_size=8), min_size=1, max_size=4))
    faults = data.draw(st.lists(st.booleans(), max_size=5))
    limit = data.draw(st.integers(1, 7))
    chunk = data.draw(st.integers(1, 4))

    async def run() -> None:
        script = iter(faults)
        stub = Stub(fault=lambda item: EngineUnavailable("") if next(script, False) else None)
        reported: list[Judgement] = []
        client = JudgeClient(
            stub,
            progress=lambda judgement, reused: reported.append(judgement),
            limits=ClientLimits(max_in_flight=limit, chunk=chunk),
        )
        client._call_settings.first_pause_s = 0.001
        candidates = [[Candidate(q, "x" * n) for q, n in batch] for batch in batches]
        results = await asyncio.gather(*(client.rate(group) for group in candidates))
        assert [read_ratings(f) for f in results] == [[n for _, n in batch] for batch in batches]
        distinct = {pair for batch in batches for pair in batch}
        assert len(reported) == len(distinct)
        assert stub.most_inside <= limit
        assert is_idle(client, limit)

    asyncio.run(run())


class Killer(Stub):
    """Backend that loses its replica on every call that holds a `poison`, before any answer."""

    async def stream(self, items: Sequence[JudgeInput]) -> AsyncIterator[tuple[int, Judgement]]:
        self.calls.append(tuple(items))
        await asyncio.sleep(0)
        if any(tuple(r.text for r in item.responses) == ("poison",) for item in items):
            raise ReplicaLost("replica 3 died")
        for index, item in enumerate(items):
            yield index, self.answer(item)


@pytest.mark.parametrize(
    ("responses", "calls"),
    [
        pytest.param(["poison"], [1, 1], id="alone: twice"),
        pytest.param(["a", "poison", "ccc"], [3, 3, 1, 1, 1], id="in company: once more alone"),
    ],
)
async def test_what_kills_replicas_is_given_up(responses: list[str], calls: list[int]) -> None:
    stub = Killer()
    client = JudgeClient(stub)
    client._call_settings.first_pause_s = 0.001
    judgements = await client.rate([Candidate("q", r) for r in responses])
    assert read_ratings(judgements) == [None if r == "poison" else len(r) for r in responses]
    assert [len(call) for call in stub.calls] == calls
    [lost] = [j for j in judgements if not j.ok]
    assert lost.outcome is Outcome.UNAVAILABLE
    assert lost.reason.startswith("replicas were lost while they held this input")
    assert lost.reason.endswith("last: replica 3 died")
    assert is_idle(client, 256)


async def test_the_same_dead_replica_counts_once() -> None:
    dead = ReplicaLost("actor died")
    dead.replica = "ab12"
    stub = Stub(fault=lambda item: dead if len(stub.calls) < 6 else None)
    client = JudgeClient(stub)
    client._call_settings.first_pause_s = 0.001
    assert read_ratings(await client.rate([Candidate("q", "aa")])) == [2]
    assert len(stub.calls) == 6


async def test_a_replica_that_is_only_busy_is_asked_until_the_deadline() -> None:
    stub = Stub(fault=lambda item: EngineUnavailable("HTTP 429") if len(stub.calls) < 6 else None)
    client = JudgeClient(stub)
    client._call_settings.first_pause_s = 0.001
    assert read_ratings(await client.rate([Candidate("q", "aa")])) == [2]
    assert len(stub.calls) == 6


def test_who_asks_to_wait_is_not_asked_sooner(virtual_clock: VirtualClock) -> None:
    busy = EngineUnavailable("HTTP 503")
    busy.retry_after_s = 0.3
    stub = Stub(fault=lambda item: busy if len(stub.calls) < 2 else None)
    client = JudgeClient(stub)
    client._call_settings.first_pause_s = 0.001
    judgements, seconds = virtual_clock.run(measure(client.rate([Candidate("q", "aa")])))
    assert read_ratings(judgements) == [2]
    assert seconds == pytest.approx(0.3)


async def test_while_a_judge_is_replaced_each_answer_is_on_record_under_its_own_judge(
    tmp_path: Path,
) -> None:
    def answer(item: JudgeInput) -> Judgement:
        return rated(3, judge=f"judge {item.responses[0].text}")

    journal = Journal(tmp_path / "j.sqlite")
    await JudgeClient(Stub(answer), journal=journal).rate([Candidate("q", r) for r in "ab"])
    assert sorted(row["judge"] for row in journal.export()) == ["judge a", "judge b"]
    journal.close()
