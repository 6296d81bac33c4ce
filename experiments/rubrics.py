"""Ways of judging rubric items, all on one engine, and what they cost.

The studies of rubrics share it. A judge that serves one format needs an engine for each way.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from autoj_reward.client.backend import LocalBackend
from autoj_reward.client.client import JudgeClient
from autoj_reward.client.session import client_of
from autoj_reward.config import JudgeConfig, RubricConfig
from autoj_reward.judge.make import make_judge
from autoj_reward.models.settings import max_ongoing
from autoj_reward.models.spec import JudgeSpec, judge_spec
from autoj_reward.questions.rubric import RubricScore, rubric_question
from autoj_reward.replicas.replica import JudgeReplica
from autoj_reward.types import Candidate, Usage


@dataclass(frozen=True, slots=True)
class RubricWay:
    """One way of judging the items of a rubric."""

    by: Literal["items", "checklist", "overall"]
    """Way of the reward's config."""
    format: str
    """Judge format for it."""
    critique: bool
    """Whether the judge writes its reasons."""

    @property
    def name(self) -> str:
        """Name of the way in tables."""
        return f"`{self.by}`, {'with' if self.critique else 'without'} reasons"

    @property
    def how(self) -> RubricConfig:
        """Config of the rubric."""
        return RubricConfig(by=self.by)

    def make_spec(self, base: JudgeConfig) -> JudgeSpec:
        """Return the spec of a judge that scores rubrics this way."""
        config = base.model_copy(update={"format": self.format, "critique": self.critique})
        return judge_spec(config).that_scores(self.how)


RUBRIC_WAYS = {
    "items": RubricWay("items", "rubric-item", False),
    "checklist": RubricWay("checklist", "rubric-checklist", False),
    "overall": RubricWay("overall", "rubric-overall", False),
    "items-reasons": RubricWay("items", "rubric-item", True),
    "checklist-reasons": RubricWay("checklist", "rubric-checklist", True),
    "overall-reasons": RubricWay("overall", "rubric-overall", True),
}
"""Ways by the name of a study's part."""


@asynccontextmanager
async def open_ways(base: JudgeConfig) -> AsyncIterator[Callable[[RubricWay], JudgeClient]]:
    """Start an engine in this process, and yield a function from a way of judging to its client.

    All clients use the engine, and so its prefix cache. No two ways have a prompt in common.
    """
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    engine = make_judge(RUBRIC_WAYS["items"].make_spec(base)).engine
    await engine.start()

    def make_client(way: RubricWay) -> JudgeClient:
        spec = way.make_spec(base)
        judge = make_judge(spec)
        judge.engine = engine
        return client_of(spec, LocalBackend(spec, JudgeReplica(judge)), max_ongoing(spec.config, 0))

    try:
        yield make_client
    finally:
        await engine.close()


async def score_and_time(
    client: JudgeClient, candidates: Sequence[Candidate], rubric: RubricConfig
) -> tuple[list[RubricScore], float]:
    """Return the scores of all responses, asked for at once, and the seconds that they took."""
    questions = [
        rubric_question(candidate, client.facts, client.asks, rubric) for candidate in candidates
    ]
    started = time.monotonic()
    scores = await client.answer(questions)
    return scores, time.monotonic() - started


def sum_judging_cost(scores: Sequence[RubricScore]) -> dict[str, int]:
    """Return calls, failed calls and tokens of the judgements behind scores."""
    judgements = list(chain.from_iterable(score.judgements for score in scores))
    usage = sum((judgement.usage for judgement in judgements), Usage())
    return {
        "calls": len(judgements),
        "failed": sum(not judgement.ok for judgement in judgements),
        "tokens_in": usage.tokens_in,
        "tokens_cached": usage.tokens_cached,
        "tokens_out": usage.tokens_out,
    }
