from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from autoj_reward.cli.judging import verdict_fields
from autoj_reward.config import JudgeConfig, View
from autoj_reward.engine.base import Engine, LabelProbs, Prepared, Sampling
from autoj_reward.errors import InputRejected
from autoj_reward.formats.render import RenderedPrompt
from autoj_reward.formats.schema import load_format
from autoj_reward.judge.generative import GenerativeJudge
from autoj_reward.models import ResolvedModel, known_models
from autoj_reward.models.fingerprint import fingerprint
from autoj_reward.models.spec import judge_spec
from autoj_reward.questions.compare import BY_RATINGS, Compare
from autoj_reward.types import (
    Comparison,
    JudgeInput,
    Judgement,
    Outcome,
    Pair,
    Usage,
    Verdict,
)
from tests.judgements import texts_of


class Reader(Engine):
    """Engine that takes the rating from the prompt, and generates nothing."""

    def __init__(self, ratings: dict[str, dict[str, float] | None]) -> None:
        self.ratings = ratings

    async def start(self) -> None: ...

    async def prepare(self, prompt: RenderedPrompt, max_tokens: int, over_long: str) -> Prepared:
        if "refused" in str(prompt):
            raise InputRejected("too long")
        return Prepared(prompt)

    async def generate(self, prepared: Prepared, sampling: Sampling) -> list[Any]:
        raise AssertionError("a comparison by ratings writes no text")

    def extend_prompt(self, prepared: Prepared, generation: Any, text: str) -> Prepared:
        raise AssertionError("a comparison by ratings writes no text")

    async def label_probs(
        self, prepared: Prepared, generation: Any, keep: int, slot: str, labels: Any
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


def make_judge() -> GenerativeJudge:
    return GenerativeJudge(
        JudgeConfig(kind="fake"), load_format("autoj-en"), Reader(RATINGS), "judge-1"
    )


async def compare_texts(first: str, second: str, tie: float = 0.05) -> Comparison:
    judge = make_judge()

    async def ask(items: Sequence[JudgeInput], view: View | None = None) -> list[Judgement]:
        return [await judge.judge(item) for item in items]

    return await Compare(Pair("Why?", first, second), tie=tie).answer(ask)


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
    comparison = await compare_texts(first, second)
    assert comparison.verdict is verdict
    assert [order.flags for order in comparison.orders] == [(BY_RATINGS,), (BY_RATINGS,)]
    # Two reads each: the half point beside the likeliest number is told apart.
    assert comparison.orders[0].usage.tokens_in == 2 * 9 * 2
    assert verdict_fields(comparison)["rule"] == "ratings"


async def test_each_response_is_read_once_for_both_orders() -> None:
    inputs: list[JudgeInput] = []

    async def ask(items: Sequence[JudgeInput], view: View | None = None) -> list[Judgement]:
        inputs.extend(items)
        return [await make_judge().judge(item) for item in items]

    question = Compare(Pair("Why?", "good answer", "poor answer"), tie=0.05)
    comparison = await question.answer(ask)
    assert [(item.protocol, texts_of(item), item.direct) for item in inputs] == [
        ("single", ("good answer",), True),
        ("single", ("poor answer",), True),
    ]
    assert [order.verdict for order in comparison.orders] == [Verdict.FIRST, Verdict.SECOND]
    assert sum(order.usage.tokens_in for order in comparison.orders) == 36
    assert comparison.orders[0].judge == "judge-1"


@pytest.mark.parametrize("bad", ["mute answer", "refused answer"])
async def test_a_response_without_a_rating_leaves_no_verdict(bad: str) -> None:
    comparison = await compare_texts("good answer", bad)
    assert comparison.verdict is Verdict.FAILED
    assert comparison.orders[0].outcome in (Outcome.UNPARSABLE, Outcome.INPUT_REJECTED)
    assert comparison.orders[0].reason


def test_the_default_judge_compares_by_ratings() -> None:
    tie = known_models()["default"].ratings_tie
    assert tie is not None and 0 < tie < 1
    assert judge_spec(JudgeConfig()).ratings_tie == tie
    # A stand-in or another service of that name is another model.
    assert judge_spec(JudgeConfig(kind="fake")).ratings_tie is None
    assert judge_spec(JudgeConfig(model="GAIR/autoj-13b")).ratings_tie is None


def test_the_default_judge_has_a_frequency_penalty_that_its_name_says() -> None:
    penalty = known_models()["default"].frequency_penalty
    assert 0 < penalty < 1

    def read_penalty(**decoding: Any) -> float | None:
        return judge_spec(JudgeConfig(**decoding)).config.frequency_penalty

    assert read_penalty() == penalty
    assert read_penalty(frequency_penalty=0) == 0
    assert read_penalty(kind="fake") == 0
    assert read_penalty(model="GAIR/autoj-13b") == 0

    def read_name(**decoding: Any) -> str:
        same = ResolvedModel("folder", "identity", "cpu")
        config = judge_spec(JudgeConfig(**decoding)).config
        return fingerprint(config, load_format("autoj-en"), "chat", same)

    assert read_name() == read_name(frequency_penalty=penalty) != read_name(frequency_penalty=0)
    # A rating right after the prompt is decoded without it.
    assert read_name(critique=False) == read_name(critique=False, frequency_penalty=0)
