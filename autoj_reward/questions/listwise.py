"""Listwise judging: one judgement scores a whole group, in several orders against position bias."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from autoj_reward.questions.ask import Ask
from autoj_reward.questions.rank import Members, Order, Ranking, all_alike, members_of
from autoj_reward.questions.strengths import join_scores
from autoj_reward.types import GROUP, Candidate, JudgeInput, Judgement


@dataclass(frozen=True, slots=True)
class Listwise:
    """Question how good the responses of a group are, asked in one round."""

    candidates: tuple[Candidate, ...]
    scale: tuple[float, float]
    """Lowest and highest score of the judge's format."""
    max_responses: int
    """Responses of one judgement at most. A larger group is judged in overlapping windows."""
    orders: int = 2
    """Number of orders that are judged. They move each response through early, middle and late
    positions."""
    seed: int = 0
    """Seed of the orders."""

    def inputs(self) -> list[JudgeInput]:
        """Return the judge inputs."""
        members = members_of(self.candidates)
        return [_input(members, shown) for shown in self._shown(members)]

    @property
    def most_inputs(self) -> int:
        """Return the largest number of judge inputs."""
        return len(self.inputs())

    async def answer(self, ask: Ask) -> Ranking:
        """Return the scores as shares of the scale."""
        members = members_of(self.candidates)
        shown = self._shown(members)
        if not shown:
            return all_alike(members)
        answers = await ask([_input(members, own) for own in shown])
        orders = [self._read(own, found) for own, found in zip(shown, answers, strict=True)]
        return _ranking(members, orders, answers)

    async def answer_late(self, judged: Ranking, late: Candidate, ask: Ask) -> Ranking:
        """Return a ranking of judged responses and of one more, which is the last in it.

        judged: the answer of this question. late: a response with a text of its own. It is judged
        beside as many of the group as one judgement takes. Its score is moved by the mean change of
        theirs, so that it is on the scale of `judged`. It abstains if none of them gets a score.
        """
        known = {
            own.response: score
            for own, score in zip(self.candidates, judged.scores, strict=True)
            if score is not None
        }
        members = members_of(self.candidates).candidates
        anchors = [own for own in members if own.response in known][: self.max_responses - 1]
        found = await replace(self, candidates=(*anchors, late)).answer(ask)
        changes = [
            known[own.response] - score
            for own, score in zip(anchors, found.scores, strict=False)
            if score is not None
        ]
        score, reason = found.scores[-1], found.reasons[-1]
        if score is not None and changes:
            score = min(1.0, max(0.0, score + fmean(changes)))
        elif score is not None:
            score, reason = None, "none of its group got a score beside it"
        return replace(
            found, scores=(*found.scores[:-1], score), reasons=(*found.reasons[:-1], reason)
        )

    def _shown(self, members: Members) -> list[list[int]]:
        """Return the texts of each judgement by number, in the order shown.

        Returns no judgement for a group of copies.
        """
        base = members.shuffled(self.seed)
        if len(base) < 2:
            return []
        found = []
        for k in range(self.orders):
            start = k * len(base) // self.orders
            found += _windows(base[start:] + base[:start], self.max_responses)
        return found

    def _read(self, shown: Sequence[int], judgement: Judgement) -> Order:
        low, high = self.scale
        read = read_scores(judgement, len(shown))
        scores = (None if value is None else (value - low) / (high - low) for value, _ in read)
        return Order(tuple(shown), tuple(scores), tuple(forced for _, forced in read))


def read_scores(judgement: Judgement, count: int) -> list[tuple[float | None, bool]]:
    """Return the score of each of `count` responses in the order shown, and whether it was forced.

    Scores are on the judge's scale. None if the judge gave a response no score.
    """
    readings = [judgement.reading(f"response_{n}") for n in range(1, count + 1)]
    # One kind of number for all: a mean beside a written score would be another scale.
    by_mean = all(own.expected is not None for own in readings if own)
    return [
        ((own.expected if by_mean else own.value), own.forced) if own else (None, False)
        for own in readings
    ]


def _input(members: Members, shown: Sequence[int]) -> JudgeInput:
    own = [members.candidates[n] for n in shown]
    return JudgeInput(GROUP, own[0].query, tuple(c.response for c in own), context=own[0].context)


def _windows(order: list[int], size: int) -> list[list[int]]:
    """Split an order into windows of equal size. Neighbours share a quarter, at least two."""
    if len(order) <= size:
        return [order]
    step = size - min(size - 1, max(2, size // 4))
    starts = [*range(0, len(order) - size, step), len(order) - size]
    return [order[start : start + size] for start in starts]


def _ranking(members: Members, orders: Sequence[Order], answers: Sequence[Judgement]) -> Ranking:
    judged = [
        {i: s for i, s in zip(own.shown, own.scores, strict=True) if s is not None}
        for own in orders
    ]
    joined = join_scores([scores for scores in judged if scores])
    scores, errors, reasons, critiques = [], [], [], []
    for i in range(len(members.candidates)):
        seen = [found for own, found in zip(orders, answers, strict=True) if i in own.shown]
        value, error = joined.get(i, (None, None))
        scores.append(None if value is None else min(1.0, max(0.0, value)))
        errors.append(error)
        failed = next((found.why for found in seen if not found.ok), "the judge gave it no score")
        reasons.append("" if value is not None else failed)
        critiques.append(next((found.critique for found in seen if found.critique), ""))
    places = members.places  # an order names a text by its first place in the group
    return Ranking(
        members.spread_out(scores),
        members.spread_out(errors),
        members.spread_out(reasons),
        tuple(answers),
        orders=tuple(
            Order(tuple(places[i][0] for i in own.shown), own.scores, own.forced) for own in orders
        ),
        critiques=members.spread_out(critiques),
    )
