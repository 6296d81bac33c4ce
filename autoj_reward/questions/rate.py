"""Rating of one response: the vote of k critiques, or the expected rating right after the
prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, stdev

from autoj_reward.config import View, Vote
from autoj_reward.questions.ask import Ask
from autoj_reward.types import (
    PLANTED_FLAG,
    RISK,
    SINGLE,
    Candidate,
    JudgeInput,
    Judgement,
    Reading,
    concurrent_usage,
    soft_minimum,
)

VOTE_SPREAD = "vote_spread"
"""Slot that holds the standard deviation of the critiques' ratings, in points."""


def _pessimistic(values: Sequence[float]) -> float:
    return soft_minimum([(value, 1.0) for value in values], RISK)


VOTES: Mapping[Vote, Callable[[Sequence[float]], float]] = {
    "mean": fmean,
    "median": median,
    "pessimistic": _pessimistic,
}
"""Function of the critiques' numbers by vote."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Question: how good is a response?"""

    candidate: Candidate
    critiques: int = 1
    """Number of sampled critiques, whose vote is the answer."""
    direct: bool = False
    """Whether to read only the rating slot right after the prompt: a token or two instead of a
    critique."""
    view: View | None = None
    """Number that the caller needs. A judgement without it abstains as `no_number`."""
    vote: Vote = "mean"
    """How the critiques' numbers make one."""

    def inputs(self) -> list[JudgeInput]:
        """Return the inputs for the judge's first call."""
        own, samples = self.candidate, 1 if self.direct else self.critiques
        return [
            JudgeInput(SINGLE, own.query, (own.response,), sample, self.direct, own.context)
            for sample in range(samples)
        ]

    @property
    def most_inputs(self) -> int:
        """Return the number of inputs for the judge's first call."""
        return len(self.inputs())

    async def answer(self, ask: Ask) -> Judgement:
        """Return one judgement of the response."""
        [judgement] = await rate_all([self], ask)
        return judgement


async def rate_all(questions: Sequence[Rate], ask: Ask) -> list[Judgement]:
    """Answer several ratings in one call of `ask`, or two if ratings right after the prompt are
    missing.

    All questions must have the same view.
    """
    if not questions:
        return []
    view = questions[0].view
    inputs = [question.inputs() for question in questions]
    answers = iter(await ask([item for own in inputs for item in own], view))
    found = [
        vote_of([next(answers) for _ in own], question.vote)
        for question, own in zip(questions, inputs, strict=True)
    ]
    if view is None:
        return found
    if view == "direct":
        lacking = [
            n for n, own in enumerate(found) if own.rating is not None and own.direct is None
        ]
        missing = [replace(questions[n], direct=True, view=None) for n in lacking]
        for n, read in zip(lacking, await rate_all(missing, ask), strict=True):
            found[n] = found[n].with_direct(read)
    return [judgement.with_number(view) for judgement in found]


def vote_of(samples: Sequence[Judgement], vote: Vote = "mean") -> Judgement:
    """Return one judgement from k sampled critiques of the same response.

    In every slot, value and expected value are the vote of the critiques that are ok.
    Distributions, and outside and unknown mass, are means over them. A reading VOTE_SPREAD is
    added if two or more are ok. The critique kept is the one whose rating is nearest the vote. The
    flag `partial_critiques` is set if some critiques abstained.

    The judgement abstains with the first critique's outcome if all abstained. It also abstains if
    one did over a text with a planted verdict: such a text must not choose which critiques count.
    """
    if len(samples) == 1:
        return samples[0]
    usage = concurrent_usage([s.usage for s in samples])
    good = [(s, s.rating) for s in samples if s.rating is not None]
    planted = [s for s in samples if not s.ok and PLANTED_FLAG in s.flags]
    if planted or not good:
        return replace((planted or samples)[0], usage=usage)
    names = dict.fromkeys(own.slot for s, _ in good for own in s.readings)
    means = tuple(
        _voted_reading([own for s, _ in good if (own := s.reading(name))], vote) for name in names
    )
    ratings = [rating for _, rating in good]
    if len(ratings) > 1:
        spread = stdev(ratings)
        means = (*means, Reading(VOTE_SPREAD, f"{spread:g}", spread))
    value = VOTES[vote](ratings)
    nearest = min(good, key=lambda pair: abs(pair[1] - value))[0]
    seen = {flag for s in samples for flag in s.flags}
    seen |= {"partial_critiques"} if len(good) < len(samples) else set()
    return replace(nearest, readings=means, usage=usage, flags=tuple(sorted(seen)))


def _voted_reading(readings: Sequence[Reading], vote: Vote) -> Reading:
    """Return the vote of several critiques' readings of one numeric slot."""
    told = [own for own in readings if own.distribution is not None]
    value = _of_known(VOTES[vote], [own.value for own in readings])
    return Reading(
        readings[0].slot,
        "" if value is None else f"{value:g}",
        value,
        distribution=_mean_distribution(told) if told else None,
        expected=_of_known(VOTES[vote], [own.expected for own in readings]),
        outside=_of_known(fmean, [own.outside for own in told]),
        unknown=_of_known(fmean, [own.unknown for own in told]) or 0.0,
        forced=any(own.forced for own in readings),
    )


def _of_known(
    measure: Callable[[Sequence[float]], float], values: Sequence[float | None]
) -> float | None:
    """Return a measure of the values that are known; None if none is."""
    known = [v for v in values if v is not None]
    return measure(known) if known else None


def _mean_distribution(readings: Sequence[Reading]) -> tuple[tuple[str, float], ...]:
    tables = [dict(own.distribution or ()) for own in readings]
    labels = sorted({label for table in tables for label in table}, key=float)
    return tuple((label, fmean(t.get(label, 0.0) for t in tables)) for label in labels)
