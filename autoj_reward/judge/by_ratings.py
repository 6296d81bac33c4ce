"""A comparison made of two ratings, for a model whose own comparisons mean nothing.

A small judge may name the response shown second whatever the two say. Rated alone, each at the slot
right after the prompt, the responses have no place to be preferred for.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from autoj_reward.types import JudgeInput, Judgement, Outcome, Usage, Verdict, concurrent_usage

BY_RATINGS = "compared_by_ratings"
"""The flag of such a judgement."""


def by_ratings(alone: Sequence[Judgement], tie: float) -> Judgement:
    """The verdict of the judgements of two responses, each rated alone.

    The higher expected rating wins; at most `tie` apart, they tie. Where either abstains, so does
    the verdict, with that one's outcome and reason.
    """
    usage = concurrent_usage([judgement.usage for judgement in alone])
    flags = tuple(sorted({BY_RATINGS, *(flag for judgement in alone for flag in judgement.flags)}))
    values = [judgement.view("expected") for judgement in alone]
    for place, (judgement, value) in enumerate(zip(alone, values, strict=True), 1):
        if value is None:
            outcome = Outcome.UNPARSABLE if judgement.ok else judgement.outcome
            reason = f"response {place} has no expected rating: {judgement.reason}"
            return Judgement(outcome, reason=reason, usage=usage, flags=flags)
    first, second = (value for value in values if value is not None)
    verdict = Verdict.FIRST if first > second else Verdict.SECOND
    if abs(first - second) <= tie:
        verdict = Verdict.TIE
    return Judgement(Outcome.OK, verdict=verdict, usage=usage, flags=flags)


class Readings:
    """Ratings of responses alone: one that is under way is read once, whoever asks for it, since
    both orders of a pair do. It costs the first who asked, and ends with the last who waits."""

    def __init__(self, ask: Callable[[JudgeInput], Coroutine[Any, Any, Judgement]]) -> None:
        self._ask = ask
        self._under_way: dict[JudgeInput, asyncio.Task[Judgement]] = {}
        self._waiting: Counter[JudgeInput] = Counter()

    async def read(self, item: JudgeInput) -> Judgement:
        """The judgement of one response."""
        first = item not in self._under_way
        if first:
            self._under_way[item] = asyncio.create_task(self._ask(item))
        task = self._under_way[item]
        self._waiting[item] += 1
        try:
            judgement = await asyncio.shield(task)
        finally:
            self._waiting[item] -= 1
            if not self._waiting[item]:
                del self._waiting[item], self._under_way[item]
                task.cancel()
        return judgement if first else replace(judgement, usage=Usage())
