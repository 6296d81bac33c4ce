"""Comparing two responses: both orders of a pair, or two ratings where a judge compares by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from autoj_reward.questions.ask import Ask
from autoj_reward.types import (
    SINGLE,
    Comparison,
    JudgeInput,
    Judgement,
    Outcome,
    Pair,
    Usage,
    Verdict,
    concurrent_usage,
)

BY_RATINGS = "compared_by_ratings"
"""The flag of a comparison that was made of two ratings."""


@dataclass(frozen=True, slots=True)
class Compare:
    """Which of two responses to one query is better?

    swap: judge both orders, which must agree. tie: with a number, each response is rated alone at
    the slot right after the prompt, and expected ratings at most so far apart tie: for a model
    whose own comparisons mean nothing. sample: which of several sampled comparisons this is.
    """

    pair: Pair
    swap: bool = True
    tie: float | None = None
    sample: int = 0

    def inputs(self) -> list[JudgeInput]:
        """Return what a judge is asked."""
        pair = self.pair
        if self.tie is None:
            return pair.inputs(self.swap, self.sample)
        return [
            JudgeInput(SINGLE, pair.query, (text,), self.sample, True, pair.context)
            for text in (pair.first, pair.second)
        ]

    def read(self, answers: Sequence[Judgement]) -> Comparison:
        """Return the comparison that the judgements of `inputs` make."""
        if self.tie is None:
            return swap_consistent(*answers)
        first = by_ratings(answers, self.tie)
        # The other order reads the same two ratings, and costs nothing more.
        return swap_consistent(first, _mirrored(first)) if self.swap else swap_consistent(first)

    async def answer(self, ask: Ask) -> Comparison:
        """Return the verdict, and the judgement of each order."""
        [comparison] = await compare_all([self], ask)
        return comparison


async def compare_all(questions: Sequence[Compare], ask: Ask) -> list[Comparison]:
    """Answer several questions in one call."""
    inputs = [question.inputs() for question in questions]
    answers = iter(await ask([item for own in inputs for item in own]))
    return [
        question.read([next(answers) for _ in own])
        for question, own in zip(questions, inputs, strict=True)
    ]


def swap_consistent(forward: Judgement, backward: Judgement | None = None) -> Comparison:
    """Join the judgements of (first, second) and (second, first).

    Both must name the same response, or both say tie; otherwise the comparison is INCONSISTENT,
    which is neither a tie nor a failure. FAILED when either order has no verdict.
    backward None: only one order was asked for, and it decides alone.
    """
    orders = (forward,) if backward is None else (forward, backward)
    failed = [o for o in orders if o.outcome is not Outcome.OK or o.verdict is None]
    if failed:
        return Comparison(Verdict.FAILED, orders, "; ".join(o.why for o in failed))
    verdicts = {
        o.verdict if k == 0 else o.verdict.swapped() for k, o in enumerate(orders) if o.verdict
    }
    if len(verdicts) == 1:
        return Comparison(verdicts.pop(), orders)
    return Comparison(Verdict.INCONSISTENT, orders, "the two orders disagree")


def by_ratings(alone: Sequence[Judgement], tie: float) -> Judgement:
    """The verdict of the judgements of two responses, each rated alone, for a model
    whose own comparisons mean nothing.

    A small judge may name the response shown second whatever the two say. Rated alone, each at the
    slot right after the prompt, the responses have no place to be preferred for.

    The higher expected rating wins; at most `tie` apart, they tie. Where either abstains, so does
    the verdict, with that one's outcome and reason.
    """
    usage, judge = concurrent_usage([judgement.usage for judgement in alone]), alone[0].judge
    flags = tuple(sorted({BY_RATINGS, *(flag for judgement in alone for flag in judgement.flags)}))
    values = [judgement.view("expected") for judgement in alone]
    for place, (judgement, value) in enumerate(zip(alone, values, strict=True), 1):
        if value is None:
            outcome = Outcome.UNPARSABLE if judgement.ok else judgement.outcome
            reason = f"response {place} has no expected rating: {judgement.reason}"
            return Judgement(outcome, reason=reason, usage=usage, judge=judge, flags=flags)
    first, second = (value for value in values if value is not None)
    verdict = Verdict.FIRST if first > second else Verdict.SECOND
    if abs(first - second) <= tie:
        verdict = Verdict.TIE
    return replace(Judgement.of_verdict(verdict), usage=usage, judge=judge, flags=flags)


def _mirrored(judgement: Judgement) -> Judgement:
    """Return the same comparison of the exchanged order, at no cost."""
    if judgement.verdict is None:
        return replace(judgement, usage=Usage())
    [own] = judgement.readings
    own = replace(own, label=judgement.verdict.swapped().value)
    return replace(judgement, readings=(own,), usage=Usage())
