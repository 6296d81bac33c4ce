"""Groups whose responses arrive one by one, without HTTP: timers are fired by the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from autoj_reward.client.client import RewardClient
from autoj_reward.client.session import open_judge
from autoj_reward.config import JudgeConfig, RelativeConfig
from autoj_reward.service import gather
from autoj_reward.service.gather import KEPT_S, LATE_FLAG, PARTIAL_FLAG, Gatherer
from autoj_reward.service.metrics import Metrics
from autoj_reward.types import Candidate, JudgeInput, Judgement, Outcome

RATINGS = {"good": 9, "fair": 5, "poor": 2}
PAIRS = RelativeConfig(by="comparisons", schedule="all")


class Alarm:
    """A timer that the test fires."""

    def __init__(self, ring: Callable[[], object]) -> None:
        self.ring, self.cancelled = ring, False

    def cancel(self) -> None:
        self.cancelled = True


class Bench:
    """A gatherer with a clock and timers of the test, and the judge inputs that it asked for."""

    def __init__(self, client: RewardClient) -> None:
        self.alarms: list[Alarm] = []
        self.asked: list[JudgeInput] = []
        self.clock = 0.0
        self.client, self.metrics = client, Metrics()
        self.gate = asyncio.Event()
        self.gate.set()
        self.gatherer = Gatherer(client, self.ask, self.metrics, lambda: self.clock, self.later)

    async def ask(self, items: Any, view: Any = None) -> list[Judgement]:
        self.asked += items
        await self.gate.wait()
        return await self.client.judge(items, view)

    def later(self, seconds: float, ring: Callable[[], object]) -> Alarm:
        self.alarms.append(Alarm(ring))
        return self.alarms[-1]

    def ring(self) -> None:
        """Let the first caller that still waits have waited long enough."""
        next(alarm for alarm in self.alarms if not alarm.cancelled).ring()

    async def send(
        self,
        *texts: str,
        size: int = 3,
        relative: RelativeConfig | None = None,
        query: str = "Why?",
        run: str = "",
    ) -> list[asyncio.Task[Judgement]]:
        """Send responses of the group g, and return once each caller waits."""
        found = []
        for text in texts:
            one = Candidate(query, text, group_id="g")
            found.append(asyncio.create_task(self.gatherer.rate(one, size, relative, 1.0, run)))
            await asyncio.sleep(0)
        return found

    def counted(self, answer: str) -> float:
        found = self.metrics.registry.get_sample_value(
            "autoj_group_members_total", {"answer": answer}
        )
        return found or 0.0


@pytest.fixture(params=["listwise", "autoj-en"])
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    """By a listwise judge, and by one that compares; of two responses the longer one wins."""
    script = {"ratings": RATINGS, "fail": {"lost": "truncated"}}
    config = JudgeConfig(kind="fake", format=request.param, script=script)
    async with open_judge(config) as client:
        yield Bench(client)


GROUP = ("poor", "good one", "a fair answer")
"""Rated by length: by comparisons these are in order."""


async def answers(tasks: list[asyncio.Task[Judgement]]) -> list[Judgement]:
    return list(await asyncio.gather(*tasks))


async def test_a_group_waits_for_all_and_is_judged_once(bench: Bench) -> None:
    early = await bench.send(*GROUP[:2])
    assert not bench.asked and not any(task.done() for task in early)
    found = await answers([*early, *await bench.send(GROUP[2])])
    together = await (
        await bench.client.question_of_rank([Candidate("Why?", text) for text in GROUP])
    ).answer(bench.client.judge)
    assert [own.rating for own in found] == list(together.scores)
    assert not any(own.flags for own in found) and bench.counted("complete") == 3
    asked = len(bench.asked)
    assert await answers(await bench.send(*GROUP)) == found  # retries
    assert len(bench.asked) == asked


async def test_equal_texts_of_callers_that_wait_are_two_members(bench: Bench) -> None:
    found = await answers(await bench.send("poor", "poor", "good one"))
    assert found[0] == found[1] and bench.counted("complete") == 3
    assert found[0].rating != found[2].rating


async def test_what_is_missing_in_time_is_judged_without_and_said(bench: Bench) -> None:
    early = await bench.send(*GROUP[:2])
    bench.ring()
    found = await answers(early)
    assert all(own.ok and own.flags == (PARTIAL_FLAG,) for own in found)
    assert bench.counted("partial") == 2


async def test_a_late_member_is_judged_beside_the_others(bench: Bench) -> None:
    early = await bench.send("poor", "a fair answer", size=4)
    bench.ring()
    low, high = await answers(early)
    asked = len(bench.asked)
    [middle] = await answers(await bench.send("good one", size=4))
    assert middle.flags == (LATE_FLAG,) and middle.rating is not None
    new = bench.asked[asked:]
    assert new and all("good one" in item.responses for item in new)
    assert middle.usage.tokens_out >= max(low.usage.tokens_out, high.usage.tokens_out)
    assert await answers(await bench.send("good one", size=4)) == [middle]
    assert len(bench.asked) == asked + len(new) and bench.counted("late") == 2


async def test_a_member_that_comes_while_its_group_is_judged_is_late(bench: Bench) -> None:
    bench.gate.clear()
    early = await bench.send(*GROUP[:2])
    bench.ring()
    late = await bench.send(GROUP[2])
    bench.gate.set()
    assert [own.flags for own in await answers(early + late)] == [
        (PARTIAL_FLAG,), (PARTIAL_FLAG,), (LATE_FLAG,)
    ]  # fmt: skip


async def test_a_group_with_too_few_members_fails_and_its_stragglers_with_it(
    bench: Bench,
) -> None:
    early = await bench.send("poor")
    bench.ring()
    [alone] = await answers(early)
    assert alone.outcome is Outcome.INPUT_REJECTED
    assert "1 of 3 responses came in time" in alone.reason
    alarms = len(bench.alarms)
    assert await answers(await bench.send("good one", "poor")) == [alone, alone]
    assert all(alarm.cancelled for alarm in bench.alarms[alarms:]) and not bench.asked
    assert bench.counted("abstained") == 3


async def test_a_group_that_no_judge_answers_fails_and_its_stragglers_with_it(
    bench: Bench,
) -> None:
    early = await bench.send("lost", "lost too")
    await bench.client.close()
    bench.ring()
    found = await answers(early)
    assert [own.outcome for own in found] == [Outcome.UNAVAILABLE] * 2
    [late] = await answers(await bench.send("good one"))
    assert late == found[0] and late.reason.startswith("its group failed: ")


async def test_the_group_goes_on_without_a_caller_that_hangs_up(bench: Bench) -> None:
    first, second = await bench.send("poor", "good one")
    first.cancel()
    await asyncio.wait([first])
    [again] = await bench.send("poor")  # the same member
    assert not second.done() and not bench.asked
    again.cancel()
    bench.gate.clear()
    [third] = await bench.send("a fair answer")
    second.cancel()
    await asyncio.wait([second])
    bench.gate.set()
    assert (await third).flags == ()
    [retried] = await answers(await bench.send("poor"))
    assert retried.ok and retried.flags == () and bench.counted("complete") == 2


@pytest.mark.parametrize("other", [{"query": "Who?"}, {"size": 4}])
async def test_a_response_that_does_not_fit_its_group_abstains(
    bench: Bench, other: dict[str, Any]
) -> None:
    early = await bench.send(*GROUP[:2])
    [odd] = await answers(await bench.send("odd", **other))
    assert odd.outcome is Outcome.INPUT_REJECTED and odd.reason == gather.MIXED
    found = await answers([*early, *await bench.send(GROUP[2])])
    assert all(own.ok for own in found) and bench.counted("refused") == 1


async def test_runs_with_the_same_ids_do_not_meet(bench: Bench) -> None:
    mine = await bench.send("poor", size=2, run="mine")
    others = await bench.send("fair", "good", size=2, run="other")
    found = await answers([*others, *mine, *await bench.send("good one", size=2, run="mine")])
    assert all(own.ok for own in found) and bench.counted("complete") == 4


async def test_a_response_that_no_service_can_judge_fails_alone(bench: Bench) -> None:
    found = await answers(await bench.send("poor", "half \ud800", "good one"))
    assert [own.ok for own in found] == [True, False, True]
    assert found[1].outcome is Outcome.INPUT_REJECTED


async def test_idle_groups_are_forgotten(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    first = await answers(await bench.send(*GROUP))
    asked = len(bench.asked)
    bench.clock = KEPT_S + 1
    await bench.send("x", run="another")
    again = await bench.send(GROUP[0])  # a new group, which waits
    assert not again[0].done()
    assert [own.rating for own in await answers(again + await bench.send(*GROUP[1:]))] == [
        own.rating for own in first
    ]
    assert len(bench.asked) == 2 * asked
    monkeypatch.setattr(gather, "MAX_CHARACTERS", 0)
    await bench.send("x", run="third")
    assert not (await bench.send(GROUP[0]))[0].done()


async def test_a_late_member_of_a_tournament_is_on_the_groups_scale() -> None:
    """Its score is that of a tournament in which it had been from the start, if all pairs meet."""
    async with open_judge(JudgeConfig(kind="fake", format="autoj-en")) as client:
        bench = Bench(client)
        texts = [n * "x" for n in range(1, 6)]
        early = await bench.send(*texts[:2], *texts[3:], size=5, relative=PAIRS)
        bench.ring()
        await answers(early)
        [late] = await answers(await bench.send(texts[2], size=5, relative=PAIRS))
        whole = await (
            await client.question_of_rank([Candidate("Why?", text) for text in texts], PAIRS)
        ).answer(client.judge)
    assert late.rating == pytest.approx(whole.scores[2])
