"""What a question is: one thing that a caller wants to know, and the judge inputs that answer it.

`Rate`, `Compare` and `Choose` are questions; nothing else decides which inputs make one answer.
They are logic over `ask` alone: a client, a job and a test answer them alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from autoj_reward.config import View
from autoj_reward.types import JudgeInput, Judgement

T = TypeVar("T", covariant=True)


class Ask(Protocol):
    """Judges inputs: one judgement an input, in order.

    view: the number of a rating that is needed. A judgement on record that lacks it, though the
    judge gives it, is asked for again.
    """

    async def __call__(
        self, items: Sequence[JudgeInput], view: View | None = ..., /
    ) -> list[Judgement]: ...


class Question(Protocol[T]):
    """One thing that a caller wants to know. It may ask once or in rounds."""

    async def answer(self, ask: Ask) -> T:
        """Return the answer. What `ask` raises ends the question."""


class OneCall(Question[T], Protocol[T]):
    """A question that asks once, so that what it will cost is known before."""

    def inputs(self) -> list[JudgeInput]:
        """Return what the judge is asked."""
