"""Cases of a check: the responses to one query, and all that a judge is asked about them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autoj_reward.config import View
from autoj_reward.conversation import EMPTY_CONTEXT, Context, Prompt, Response
from autoj_reward.evaluate.ask import rating_questions, resampled
from autoj_reward.models.spec import JudgeSpec
from autoj_reward.questions.ask import Ask
from autoj_reward.questions.compare import Compare
from autoj_reward.questions.rate import Rate, rate_all
from autoj_reward.types import Candidate, Comparison, JudgeInput, Judgement, Pair


@dataclass(frozen=True, slots=True)
class CheckCase:
    """Responses to one query that are rated, and compared or rated again."""

    kind: str
    """Kind of the query."""
    prompt: Prompt
    responses: Mapping[str, Response]
    """Responses by name."""
    spec: JudgeSpec
    view: View
    compared: bool = False
    """Whether `good` and `flawed` are compared in both orders."""
    again: Sequence[str] = ()
    """Names of the responses that are rated again with another sample."""
    context: Context = EMPTY_CONTEXT

    def questions(self, names: Iterable[str]) -> list[Rate]:
        """Return the questions about the responses of these names."""
        candidates = [
            Candidate(self.prompt, self.responses[name], context=self.context) for name in names
        ]
        return rating_questions(candidates, self.spec, self.view)

    @property
    def comparison(self) -> Compare:
        """The comparison of the good with the flawed response."""
        good, flawed = self.responses["good"], self.responses["flawed"]
        return Compare(Pair(self.prompt, good, flawed, self.context))

    def inputs(self) -> list[JudgeInput]:
        """Return the judge inputs of the case."""
        inputs = [item for question in self.questions(self.responses) for item in question.inputs()]
        repeated_inputs = [
            item for question in self.questions(self.again) for item in question.inputs()
        ]
        inputs += [resampled(item, self.spec.asks.critiques) for item in repeated_inputs]
        return inputs + (self.comparison.inputs() if self.compared else [])

    async def answer(self, ask: Ask) -> tuple[JudgedCase, list[Judgement]]:
        """Return the judgements by name, and all of them in a list."""
        judgements = await rate_all(self.questions(self.responses), ask)

        async def ask_again(
            items: Sequence[JudgeInput], view: View | None = None
        ) -> list[Judgement]:
            return await ask([resampled(item, self.spec.asks.critiques) for item in items], view)

        repeated_judgements = await rate_all(self.questions(self.again), ask_again)
        comparison = await self.comparison.answer(ask) if self.compared else None
        judged_case = JudgedCase(
            self,
            dict(zip(self.responses, judgements, strict=True)),
            dict(zip(self.again, repeated_judgements, strict=True)),
            comparison,
        )
        return judged_case, [
            *judgements,
            *repeated_judgements,
            *(comparison.orders if comparison else ()),
        ]


@dataclass(frozen=True, slots=True)
class JudgedCase:
    """Judgements of a case."""

    case: CheckCase
    judgements: Mapping[str, Judgement]
    """Judgement of each text, by name."""
    again: Mapping[str, Judgement]
    """Judgements from other samples; empty if nothing was rated again."""
    comparison: Comparison | None
    """Comparison of the good with the flawed response in both orders; None if the judge does not
    compare."""
