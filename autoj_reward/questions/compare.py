"""Comparison of two responses: in both orders, or by two ratings for judges that compare
that way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from autoj_reward.models.facts import Asks, JudgeFacts
from autoj_reward.questions.ask import Ask
from autoj_reward.types import (
    PLANTED_FLAG,
    SINGLE,
    Comparison,
    JudgeInput,
    Judgement,
    Outcome,
    Pair,
    Usage,
    Verdict,
    concurrent_usage,
    planted_flag,
)

UNANSWERED_FLAG = "no_answer"
"""Flag of a comparison that needed no judge, because only one response holds an answer."""
BY_RATINGS = "compared_by_ratings"
"""Flag of a comparison that was made from two ratings."""


@dataclass(frozen=True, slots=True)
class Compare:
    """Question: which of two responses to one query is better?"""

    pair: Pair
    swap: bool = True
    """Whether to judge both orders, which must agree."""
    tie: float | None = None
    """Maximum difference of expected ratings that counts as a tie.

    With a number, each response is rated alone, at the slot right after the prompt. Use it for a
    model whose own comparisons are uninformative. None: the judge compares.
    """
    sample: int = 0
    """Index of this comparison among several sampled ones."""

    def inputs(self) -> list[JudgeInput]:
        """Return the inputs for the judge: none if a response holds no answer."""
        pair = self.pair
        if pair.first.unanswered or pair.second.unanswered:
            return []
        if self.tie is None:
            return pair.inputs(self.swap, self.sample)
        return [
            JudgeInput(SINGLE, pair.prompt, (text,), self.sample, True, pair.context)
            for text in (pair.first, pair.second)
        ]

    @property
    def most_inputs(self) -> int:
        """Return the number of judge inputs."""
        return len(self.inputs())

    def read(self, answers: Sequence[Judgement]) -> Comparison:
        """Return the comparison that follows from the judgements of `inputs`.

        An answer wins against none. Two responses without one are not compared.
        """
        if not answers:
            order = self._settle_unanswered()
            return swap_consistent(*([order, _mirror_judgement(order)] if self.swap else [order]))
        if self.tie is None:
            return swap_consistent(*answers)
        first = compare_by_ratings(answers, self.tie)
        # The other order uses the same two ratings, at no extra cost.
        return (
            swap_consistent(first, _mirror_judgement(first))
            if self.swap
            else swap_consistent(first)
        )

    def _settle_unanswered(self) -> Judgement:
        """Return the judgement of a pair in which a response holds no answer."""
        first, second = self.pair.first.unanswered, self.pair.second.unanswered
        if first and second:
            return Judgement(Outcome.NO_ANSWER, reason=first)
        verdict = Verdict.SECOND if first else Verdict.FIRST
        return replace(Judgement.of_verdict(verdict), flags=(UNANSWERED_FLAG,))

    async def answer(self, ask: Ask) -> Comparison:
        """Return the verdict with the judgement of each order."""
        [comparison] = await compare_all([self], ask)
        return comparison


def comparison_question(
    pair: Pair, facts: JudgeFacts, asks: Asks, *, swap: bool = True, sample: int = 0
) -> Compare:
    """Return the question which of two responses is better. swap, sample: as in `Compare`."""
    return Compare(pair.for_judge(asks), swap, facts.tie, sample)


async def compare_all(questions: Sequence[Compare], ask: Ask) -> list[Comparison]:
    """Answer several comparisons in one call of `ask`."""
    inputs = [question.inputs() for question in questions]
    asked_items = [item for batch in inputs for item in batch]
    answers = iter(await ask(asked_items) if asked_items else ())
    return [
        question.read([next(answers) for _ in batch])
        for question, batch in zip(questions, inputs, strict=True)
    ]


def swap_consistent(forward: Judgement, backward: Judgement | None = None) -> Comparison:
    """Combine the judgements of (first, second) and (second, first) into one comparison.

    If both name the same response or both say tie, that is the verdict. Otherwise it is
    INCONSISTENT, which is neither a tie nor a failure. It is FAILED if either order has no verdict.
    backward: None if only one order was judged, which then decides alone.
    """
    orders = (forward,) if backward is None else (forward, backward)
    failed_orders = [
        order for order in orders if order.outcome is not Outcome.OK or order.verdict is None
    ]
    if failed_orders:
        return Comparison(Verdict.FAILED, orders, "; ".join(order.why for order in failed_orders))
    verdicts = {
        order.verdict if place == 0 else order.verdict.swapped()
        for place, order in enumerate(orders)
        if order.verdict
    }
    if len(verdicts) == 1:
        return Comparison(verdicts.pop(), orders)
    return Comparison(Verdict.INCONSISTENT, orders, "the two orders disagree")


def find_spoilers(comparison: Comparison) -> set[int]:
    """Return the places, 1 or 2, of the responses whose planted verdict made a comparison fail."""
    spoilers = set()
    for swapped, order in enumerate(comparison.orders):
        if not order.ok:
            spoilers |= {3 - n if swapped else n for n in (1, 2) if order.spoiled(n, 2)}
    return spoilers


def compare_by_ratings(judgements: Sequence[Judgement], tie: float) -> Judgement:
    """Return the verdict of two responses from their ratings, each made alone.

    A small judge may prefer the response shown second whatever the two contain. Rated alone, at the
    slot right after the prompt, a response has no position.

    The higher expected rating wins; ratings at most `tie` apart tie. If either judgement abstains,
    so does the verdict, with that judgement's outcome and reason.
    """
    usage, judge = (
        concurrent_usage([judgement.usage for judgement in judgements]),
        judgements[0].judge,
    )
    flag_names = {BY_RATINGS, *(flag for judgement in judgements for flag in judgement.flags)}
    for place, judgement in enumerate(judgements, 1):
        flag_names |= {planted_flag(place, 2)} if PLANTED_FLAG in judgement.flags else set()
    flags = tuple(sorted(flag_names))
    values = [judgement.view("expected") for judgement in judgements]
    for place, (judgement, value) in enumerate(zip(judgements, values, strict=True), 1):
        if value is None:
            outcome = Outcome.UNPARSABLE if judgement.ok else judgement.outcome
            reason = f"response {place} has no expected rating: {judgement.reason}"
            return Judgement(outcome, reason=reason, usage=usage, judge=judge, flags=flags)
    first, second = (value for value in values if value is not None)
    verdict = Verdict.FIRST if first > second else Verdict.SECOND
    if abs(first - second) <= tie:
        verdict = Verdict.TIE
    return replace(Judgement.of_verdict(verdict), usage=usage, judge=judge, flags=flags)


def _mirror_judgement(judgement: Judgement) -> Judgement:
    """Return the same comparison for the swapped order, at no cost."""
    places = {planted_flag(1, 2): planted_flag(2, 2), planted_flag(2, 2): planted_flag(1, 2)}
    flags = tuple(sorted(places.get(flag, flag) for flag in judgement.flags))
    if judgement.verdict is None:
        return replace(judgement, usage=Usage(), flags=flags)
    [reading] = judgement.readings
    reading = replace(reading, label=judgement.verdict.swapped().value)
    return replace(judgement, readings=(reading,), usage=Usage(), flags=flags)
