"""Groups whose responses arrive one by one, without HTTP: timers are fired by the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from autoj_reward.client.client import JudgeClient
from autoj_reward.client.session import open_judge
from autoj_reward.config import JudgeConfig, RelativeConfig
from autoj_reward.questions.relative import rank_question
from autoj_reward.service import gather
from autoj_reward.service.gather import KEPT_S, LATE_FLAG, PARTIAL_FLAG, Gatherer
from autoj_reward.service.metrics import Metrics
from autoj_reward.types import Candidate, JudgeInput, Judgement, Outcome
from tests.judgements import texts_of

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

    def __init__(self, client: JudgeClient) -> None:
        self.alarms: list[Alarm] = []
        self.judged_inputs: list[JudgeInput] = []
        self.clock = 0.0
        self.client, self.metrics = client, Metrics()
        self.gate = asyncio.Event()
        self.gate.set()
        self.gatherer = Gatherer(
            client, self.ask, self.metrics, lambda: self.clock, self.start_timer
        )

    async def ask(self, items: Any, view: Any = None) -> list[Judgement]:
        self.judged_inputs += items
        await self.gate.wait()
        return await self.client.judge(items, view)

    def start_timer(self, seconds: float, ring: Callable[[], object]) -> Alarm:
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
        tasks = []
        for text in texts:
            candidate = Candidate(query, text, group_id="g")
            tasks.append(
                asyncio.create_task(self.gatherer.rate(candidate, size, relative, 1.0, run))
            )
            await asyncio.sleep(0)
        return tasks

    def count_members(self, answer: str) -> float:
        value = self.metrics.registry.get_sample_value(
            "autoj_group_members_total", {"answer": answer}
        )
        return value or 0.0


@pytest.fixture(params=["listwise", "autoj-en"])
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    """By a listwise judge, and by one that compares; of two responses the longer one wins."""
    script = {"ratings": RATINGS, "fail": {"lost": "truncated"}}
    config = JudgeConfig(kind="fake", format=request.param, script=script)
    async with open_judge(config) as client:
        yield Bench(client)


GROUP = ("poor", "good one", "a fair answer")
"""Rated by length: by comparisons these are in order."""


async def gather_answers(tasks: list[asyncio.Task[Judgement]]) -> list[Judgement]:
    return list(await asyncio.gather(*tasks))


async def test_a_group_waits_for_all_and_is_judged_once(bench: Bench) -> None:
    early = await bench.send(*GROUP[:2])
    assert not bench.judged_inputs and not any(task.done() for task in early)
    judgements = await gather_answers([*early, *await bench.send(GROUP[2])])
    group = [Candidate("Why?", text) for text in GROUP]
    question = rank_question(group, bench.client.facts, bench.client.asks)
    together = await question.answer(bench.client.judge)
    assert [judgement.rating for judgement in judgements] == list(together.scores)
    assert (
        not any(judgement.flags for judgement in judgements)
        and bench.count_members("complete") == 3
    )
    input_count = len(bench.judged_inputs)
    assert await gather_answers(await bench.send(*GROUP)) == judgements  # retries
    assert len(bench.judged_inputs) == input_count


async def test_equal_texts_of_callers_that_wait_are_two_members(bench: Bench) -> None:
    judgements = await gather_answers(await bench.send("poor", "poor", "good one"))
    assert judgements[0] == judgements[1] and bench.count_members("complete") == 3
    assert judgements[0].rating != judgements[2].rating


async def test_what_is_missing_in_time_is_judged_without_and_said(bench: Bench) -> None:
    early = await bench.send(*GROUP[:2])
    bench.ring()
    judgements = await gather_answers(early)
    assert all(judgement.ok and judgement.flags == (PARTIAL_FLAG,) for judgement in judgements)
    assert bench.count_members("partial") == 2


async def test_a_late_member_is_judged_beside_the_others(bench: Bench) -> None:
    early = await bench.send("poor", "a fair answer", size=4)
    bench.ring()
    low, high = await gather_answers(early)
    input_count = len(bench.judged_inputs)
    [middle] = await gather_answers(await bench.send("good one", size=4))
    assert middle.flags == (LATE_FLAG,) and middle.rating is not None
    new = bench.judged_inputs[input_count:]
    assert new and all("good one" in texts_of(item) for item in new)
    assert middle.usage.tokens_out >= max(low.usage.tokens_out, high.usage.tokens_out)
    assert await gather_answers(await bench.send("good one", size=4)) == [middle]
    assert len(bench.judged_inputs) == input_count + len(new) and bench.count_members("late") == 2


async def test_a_member_that_comes_while_its_group_is_judged_is_late(bench: Bench) -> None:
    bench.gate.clear()
    early = await bench.send(*GROUP[:2])
    bench.ring()
    late = await bench.send(GROUP[2])
    bench.gate.set()
    assert [judgement.flags for judgement in await gather_answers(early + late)] == [
        (PARTIAL_FLAG,), (PARTIAL_FLAG,), (LATE_FLAG,)
    ]  # fmt: skip


async def test_equal_late_members_are_judged_once_even_if_the_first_hangs_up(bench: Bench) -> None:
    early = await bench.send(*GROUP[:2])
    bench.ring()
    await gather_answers(early)
    input_count = len(bench.judged_inputs)
    bench.gate.clear()
    first, second = await bench.send(GROUP[2], GROUP[2])
    await asyncio.sleep(0)
    new_count = len(bench.judged_inputs) - input_count
    first.cancel()
    await asyncio.wait([first])
    bench.gate.set()
    assert (await second).flags == (LATE_FLAG,)
    assert 0 < new_count == len(bench.judged_inputs) - input_count
    assert bench.count_members("late") == 1


async def test_a_group_with_too_few_members_fails_and_its_stragglers_with_it(
    bench: Bench,
) -> None:
    early = await bench.send("poor")
    bench.ring()
    [alone] = await gather_answers(early)
    assert alone.outcome is Outcome.INPUT_REJECTED
    assert "1 of 3 responses came in time" in alone.reason
    alarms = len(bench.alarms)
    assert await gather_answers(await bench.send("good one", "poor")) == [alone, alone]
    assert all(alarm.cancelled for alarm in bench.alarms[alarms:]) and not bench.judged_inputs
    assert bench.count_members("abstained") == 3


async def test_a_group_that_no_judge_answers_fails_and_its_stragglers_with_it(
    bench: Bench,
) -> None:
    early = await bench.send("lost", "lost too")
    await bench.client.close()
    bench.ring()
    judgements = await gather_answers(early)
    assert [judgement.outcome for judgement in judgements] == [Outcome.UNAVAILABLE] * 2
    [late] = await gather_answers(await bench.send("good one"))
    assert late == judgements[0] and late.reason.startswith("its group failed: ")


async def test_the_group_goes_on_without_a_caller_that_hangs_up(bench: Bench) -> None:
    first, second = await bench.send("poor", "good one")
    first.cancel()
    await asyncio.wait([first])
    [again] = await bench.send("poor")  # the same member
    assert not second.done() and not bench.judged_inputs
    again.cancel()
    bench.gate.clear()
    [third] = await bench.send("a fair answer")
    second.cancel()
    await asyncio.wait([second])
    bench.gate.set()
    assert (await third).flags == ()
    [retried] = await gather_answers(await bench.send("poor"))
    assert retried.ok and retried.flags == () and bench.count_members("complete") == 2


@pytest.mark.parametrize("other", [{"query": "Who?"}, {"size": 4}])
async def test_a_response_that_does_not_fit_its_group_abstains(
    bench: Bench, other: dict[str, Any]
) -> None:
    early = await bench.send(*GROUP[:2])
    [odd] = await gather_answers(await bench.send("odd", **other))
    assert odd.outcome is Outcome.INPUT_REJECTED and odd.reason == gather.MIXED
    judgements = await gather_answers([*early, *await bench.send(GROUP[2])])
    assert all(judgement.ok for judgement in judgements) and bench.count_members("refused") == 1


async def test_runs_with_the_same_ids_do_not_meet(bench: Bench) -> None:
    mine = await bench.send("poor", size=2, run="mine")
    others = await bench.send("fair", "good", size=2, run="other")
    judgements = await gather_answers(
        [*others, *mine, *await bench.send("good one", size=2, run="mine")]
    )
    assert all(judgement.ok for judgement in judgements) and bench.count_members("complete") == 4


async def test_a_response_that_no_service_can_judge_fails_alone(bench: Bench) -> None:
    judgements = await gather_answers(await bench.send("poor", "half \ud800", "good one"))
    assert [judgement.ok for judgement in judgements] == [True, False, True]
    assert judgements[1].outcome is Outcome.INPUT_REJECTED


async def test_idle_groups_are_forgotten(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    first = await gather_answers(await bench.send(*GROUP))
    input_count = len(bench.judged_inputs)
    bench.clock = KEPT_S + 1
    await bench.send("x", run="another")
    again = await bench.send(GROUP[0])  # a new group, which waits
    assert not again[0].done()
    assert [
        judgement.rating for judgement in await gather_answers(again + await bench.send(*GROUP[1:]))
    ] == [judgement.rating for judgement in first]
    assert len(bench.judged_inputs) == 2 * input_count
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
        await gather_answers(early)
        [late] = await gather_answers(await bench.send(texts[2], size=5, relative=PAIRS))
        group = [Candidate("Why?", text) for text in texts]
        question = rank_question(group, client.facts, client.asks, PAIRS)
        whole = await question.answer(client.judge)
    assert late.rating == pytest.approx(whole.scores[2])
