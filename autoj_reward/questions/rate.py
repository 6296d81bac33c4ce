"""Rating of one response: the vote of k critiques, or the expected rating right after the
prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, multimode, stdev

from autoj_reward.config import PanelVote, View, Vote
from autoj_reward.models.facts import Asks
from autoj_reward.questions.ask import Ask, ask_answered
from autoj_reward.types import (
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


def _compute_pessimistic(values: Sequence[float]) -> float:
    return soft_minimum([(value, 1.0) for value in values], RISK)


def _compute_majority(values: Sequence[float]) -> float:
    return median(multimode(values))


VOTES: Mapping[Vote | PanelVote, Callable[[Sequence[float]], float]] = {
    "mean": fmean,
    "median": median,
    "pessimistic": _compute_pessimistic,
    "majority": _compute_majority,
}
"""Function of the numbers of critiques or judges by vote."""


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
        candidate, samples = self.candidate, 1 if self.direct else self.critiques
        return [
            JudgeInput(
                SINGLE,
                candidate.prompt,
                (candidate.response,),
                sample,
                self.direct,
                candidate.context,
            )
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


def rating_question(
    candidate: Candidate, asks: Asks, *, direct: bool = False, view: View | None = None
) -> Rate:
    """Return the question how good a response is. direct, view: as in `Rate`."""
    shown_candidate = candidate.for_judge(asks)
    return Rate(shown_candidate, asks.critiques, direct, view, asks.vote)


async def rate_all(questions: Sequence[Rate], ask: Ask) -> list[Judgement]:
    """Answer several ratings in one call of `ask`, or two if ratings right after the prompt are
    missing.

    All questions must have the same view.
    """
    if not questions:
        return []
    view = questions[0].view
    inputs = [question.inputs() for question in questions]
    answers = iter(await ask_answered(ask, [item for batch in inputs for item in batch], view))
    judgements = [
        vote_of([next(answers) for _ in batch], question.vote)
        for question, batch in zip(questions, inputs, strict=True)
    ]
    if view is None:
        return judgements
    if view == "direct":
        lacking_places = [
            n
            for n, judgement in enumerate(judgements)
            if judgement.rating is not None and judgement.direct is None
        ]
        direct_questions = [replace(questions[n], direct=True, view=None) for n in lacking_places]
        for n, direct_judgement in zip(
            lacking_places, await rate_all(direct_questions, ask), strict=True
        ):
            judgements[n] = judgements[n].with_direct(direct_judgement)
    return [judgement.with_number(view) for judgement in judgements]


def vote_of(samples: Sequence[Judgement], vote: Vote | PanelVote = "mean") -> Judgement:
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
    rated_samples = [(s, s.rating) for s in samples if s.rating is not None]
    spoiled_samples = [s for s in samples if not s.ok and s.spoiled()]
    if spoiled_samples or not rated_samples:
        return replace((spoiled_samples or samples)[0], usage=usage)
    slots = dict.fromkeys(reading.slot for s, _ in rated_samples for reading in s.readings)
    means = tuple(
        _vote_on_reading([reading for s, _ in rated_samples if (reading := s.reading(slot))], vote)
        for slot in slots
    )
    ratings = [rating for _, rating in rated_samples]
    if len(ratings) > 1:
        spread = stdev(ratings)
        means = (*means, Reading(VOTE_SPREAD, f"{spread:g}", spread))
    value = VOTES[vote](ratings)
    nearest_sample = min(rated_samples, key=lambda pair: abs(pair[1] - value))[0]
    flags = {flag for s in samples for flag in s.flags}
    flags |= {"partial_critiques"} if len(rated_samples) < len(samples) else set()
    return replace(nearest_sample, readings=means, usage=usage, flags=tuple(sorted(flags)))


def _vote_on_reading(readings: Sequence[Reading], vote: Vote | PanelVote) -> Reading:
    """Return the vote of several critiques' readings of one numeric slot."""
    distribution_readings = [reading for reading in readings if reading.distribution is not None]
    value = _measure_known(VOTES[vote], [reading.value for reading in readings])
    return Reading(
        readings[0].slot,
        "" if value is None else f"{value:g}",
        value,
        distribution=_average_distributions(distribution_readings)
        if distribution_readings
        else None,
        expected=_measure_known(VOTES[vote], [reading.expected for reading in readings]),
        outside=_measure_known(fmean, [reading.outside for reading in distribution_readings]),
        unknown=_measure_known(fmean, [reading.unknown for reading in distribution_readings])
        or 0.0,
        forced=any(reading.forced for reading in readings),
    )


def _measure_known(
    measure: Callable[[Sequence[float]], float], values: Sequence[float | None]
) -> float | None:
    """Return a measure of the values that are known; None if none is."""
    known_values = [v for v in values if v is not None]
    return measure(known_values) if known_values else None


def _average_distributions(readings: Sequence[Reading]) -> tuple[tuple[str, float], ...]:
    tables = [dict(reading.distribution or ()) for reading in readings]
    labels = sorted({label for table in tables for label in table}, key=float)
    return tuple((label, fmean(table.get(label, 0.0) for table in tables)) for label in labels)
