from __future__ import annotations

import asyncio
from typing import Any

import pytest

from autoj_reward.cli.score import verdict_fields
from autoj_reward.config import JudgeConfig
from autoj_reward.engine.base import Engine, LabelProbs, Prepared, Sampling
from autoj_reward.errors import InputRejected
from autoj_reward.formats.render import Prompt
from autoj_reward.formats.schema import load_format
from autoj_reward.judge.fingerprint import fingerprint
from autoj_reward.judge.generative import BY_RATINGS, GenerativeJudge
from autoj_reward.models import ResolvedModel, frequency_penalty, known_models, ratings_tie
from autoj_reward.questions.aggregate import swap_consistent
from autoj_reward.types import JudgeInput, Outcome, Usage, Verdict
from tests.judgements import asked


class Reader(Engine):
    """An engine that reads a rating out of the prompt, and writes nothing."""

    def __init__(self, ratings: dict[str, dict[str, float] | None]) -> None:
        self.ratings = ratings

    async def start(self) -> None: ...

    async def prepare(self, prompt: Prompt, max_tokens: int, over_long: str) -> Prepared:
        if "refused" in str(prompt):
            raise InputRejected("too long")
        return Prepared(prompt)

    async def generate(self, prepared: Prepared, sampling: Sampling) -> list[Any]:
        raise AssertionError("a comparison by ratings writes no text")

    def continued(self, prepared: Prepared, own: Any, text: str) -> Prepared:
        raise AssertionError("a comparison by ratings writes no text")

    async def label_probs(
        self, prepared: Prepared, own: Any, keep: int, slot: str, labels: Any
    ) -> LabelProbs | None:
        [probs] = [p for text, p in self.ratings.items() if text in str(prepared.prompt)]
        if probs is None:
            return None
        return LabelProbs(tuple((label, probs.get(label, 0.0)) for label in labels), Usage(9, 0, 1))

    async def check(self) -> None: ...

    async def close(self) -> None: ...


RATINGS: dict[str, dict[str, float] | None] = {
    "good answer": {"7": 1.0},
    "like answer": {"7": 0.96, "6": 0.04},
    "poor answer": {"3": 1.0},
    "mute answer": None,
}


async def compared(first: str, second: str, tie: float | None = 0.05) -> Any:
    judge = GenerativeJudge(
        JudgeConfig(kind="fake"), load_format("autoj-en"), Reader(RATINGS), "judge-1", tie
    )
    forward = await judge.judge(JudgeInput("pairwise", "Why?", (first, second)))
    backward = await judge.judge(JudgeInput("pairwise", "Why?", (second, first)))
    return swap_consistent(forward, backward)


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        ("good answer", "poor answer", Verdict.FIRST),
        ("poor answer", "good answer", Verdict.SECOND),
        ("good answer", "like answer", Verdict.TIE),
        ("good answer", "good answer", Verdict.TIE),
    ],
)
async def test_the_higher_expected_rating_wins_in_both_orders(
    first: str, second: str, verdict: Verdict
) -> None:
    found = await compared(first, second)
    assert found.verdict is verdict
    assert [order.flags for order in found.orders] == [(BY_RATINGS,), (BY_RATINGS,)]
    # Two reads each: the half point beside the likeliest number is told apart.
    assert found.orders[0].usage.tokens_in == 2 * 9 * len({first, second})
    assert verdict_fields(found)["rule"] == "ratings"


class Counting(Reader):
    """Answers once so many readings are under way; counts them all."""

    def __init__(self, together: int) -> None:
        super().__init__(RATINGS)
        self.asked = asyncio.Semaphore(0)
        self.cancelled = asyncio.Semaphore(0)
        self.count = 0
        self.together = asyncio.Barrier(together)

    async def label_probs(self, *args: Any, **kwargs: Any) -> LabelProbs | None:
        self.count += 1
        self.asked.release()
        try:
            await self.together.wait()
        except asyncio.CancelledError:
            self.cancelled.release()
            raise
        return await super().label_probs(*args, **kwargs)


async def test_both_orders_read_each_response_once_and_at_the_same_time() -> None:
    engine = Counting(2)
    judge = GenerativeJudge(
        JudgeConfig(kind="fake"), load_format("autoj-en"), engine, "judge-1", 0.05
    )
    pair = ("good answer", "poor answer")
    forward, backward = await asyncio.gather(
        judge.judge(asked("Why?", pair)), judge.judge(asked("Why?", pair[::-1]))
    )
    assert (forward.verdict, backward.verdict) == (Verdict.FIRST, Verdict.SECOND)
    assert engine.count == 4
    assert (forward.usage + backward.usage).tokens_in == 36


async def test_a_reading_ends_with_the_last_who_waits_for_it() -> None:
    engine = Counting(3)
    judge = GenerativeJudge(
        JudgeConfig(kind="fake"), load_format("autoj-en"), engine, "judge-1", 0.05
    )
    pair = ("good answer", "poor answer")
    orders = [
        asyncio.create_task(judge.judge(asked("Why?", order))) for order in (pair, pair[::-1])
    ]
    await engine.asked.acquire()
    await engine.asked.acquire()
    orders[0].cancel()
    await asyncio.wait(orders, timeout=0.01)
    assert engine.cancelled.locked() and not orders[1].done()
    orders[1].cancel()
    await engine.cancelled.acquire()
    await engine.cancelled.acquire()
    again = asyncio.create_task(judge.judge(asked("Why?", pair)))
    await engine.asked.acquire()
    await engine.asked.acquire()
    await engine.together.wait()
    await engine.asked.acquire()
    await engine.asked.acquire()
    await engine.together.wait()
    assert (await again).verdict is Verdict.FIRST


@pytest.mark.parametrize("bad", ["mute answer", "refused answer"])
async def test_a_response_without_a_rating_leaves_no_verdict(bad: str) -> None:
    found = await compared("good answer", bad)
    assert found.verdict is Verdict.FAILED
    assert found.orders[0].outcome in (Outcome.UNPARSABLE, Outcome.INPUT_REJECTED)
    assert found.orders[0].reason


def test_the_default_judge_compares_by_ratings_and_says_so_in_its_name() -> None:
    tie = known_models()["default"].ratings_tie
    assert tie is not None and 0 < tie < 1
    assert ratings_tie(JudgeConfig()) == tie
    # A stand-in or another service of that name is another model.
    assert ratings_tie(JudgeConfig(kind="fake")) is None
    assert ratings_tie(JudgeConfig(model="GAIR/autoj-13b")) is None
    same = ResolvedModel("folder", "identity", "cpu")
    names = {
        fingerprint(JudgeConfig(model=model), load_format("autoj-en"), "chat", same)
        .rpartition(":")[2]
        for model in ("default", "smollm2-135m-instruct")
    }  # fmt: skip
    assert len(names) == 2


def test_the_default_judge_has_a_frequency_penalty_that_its_name_says() -> None:
    own = known_models()["default"].frequency_penalty
    assert 0 < own < 1 and frequency_penalty(JudgeConfig()) == own
    assert frequency_penalty(JudgeConfig(frequency_penalty=0)) == 0
    assert frequency_penalty(JudgeConfig(kind="fake")) == 0
    assert frequency_penalty(JudgeConfig(model="GAIR/autoj-13b")) == 0

    def name(**decoding: Any) -> str:
        same = ResolvedModel("folder", "identity", "cpu")
        return fingerprint(JudgeConfig(**decoding), load_format("autoj-en"), "chat", same)

    assert name() == name(frequency_penalty=own) != name(frequency_penalty=0)
    # A rating right after the prompt is decoded without it.
    assert name(critique=False) == name(critique=False, frequency_penalty=0)
