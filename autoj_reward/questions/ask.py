"""Interface of questions: what a caller wants to know, and the judge inputs that answer it.

The questions are `Rate`, `Compare`, `Choose`, `Listwise` and `Tournament`. Only they decide which
inputs make one answer. They depend on nothing but `ask`, so a client, a job and a test answer them
alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from autoj_reward.config import View
from autoj_reward.types import JudgeInput, Judgement, Outcome

T = TypeVar("T", covariant=True)


class Ask(Protocol):
    """Judge inputs and return one judgement for each, in order.

    view: the number of a rating that the caller needs. A recorded judgement without it is requested
    again if the judge gives that number.
    """

    async def __call__(
        self, items: Sequence[JudgeInput], view: View | None = ..., /
    ) -> list[Judgement]: ...


class Question(Protocol[T]):
    """One thing that a caller wants to know. It may call the judge once or in rounds."""

    async def answer(self, ask: Ask) -> T:
        """Return the answer. An exception of `ask` ends the question and is raised."""


class BoundedQuestion(Question[T], Protocol[T]):
    """Question whose number of judge inputs has a limit that is known in advance."""

    @property
    def most_inputs(self) -> int:
        """Return the largest number of judge inputs."""


async def ask_answered(
    ask: Ask, items: Sequence[JudgeInput], view: View | None = None
) -> list[Judgement]:
    """Return the judgements of inputs in order. Those without an answer to judge are not asked."""
    asked_items = [item for item in items if not item.unanswered]
    answers = iter(await ask(asked_items, view) if asked_items else ())
    return [
        Judgement(Outcome.NO_ANSWER, reason=item.unanswered) if item.unanswered else next(answers)
        for item in items
    ]
