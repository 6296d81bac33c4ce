"""Listwise judging: one judgement scores a whole group, in several orders against position bias."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from autoj_reward.questions.ask import Ask
from autoj_reward.questions.rank import (
    Members,
    Order,
    Ranking,
    find_members,
    find_planting_texts,
    rank_copies,
)
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
        members = find_members(self.candidates)
        return [_build_input(members, window) for window in self._arrange_windows(members)]

    @property
    def most_inputs(self) -> int:
        """Return the largest number of judge inputs."""
        # Counted and not built: a caller may ask for any number of orders.
        texts = list(range(len(find_members(self.candidates).candidates)))
        if len(texts) < 2:
            return 0
        return self.orders * len(_split_into_windows(texts, self.max_responses))

    async def answer(self, ask: Ask) -> Ranking:
        """Return the scores as shares of the scale."""
        members = find_members(self.candidates)
        windows = self._arrange_windows(members)
        if not windows:
            return rank_copies(members)
        answers = await ask([_build_input(members, window) for window in windows])
        # Many orders take a while, in which an event loop must go on.
        return await asyncio.to_thread(self._read_ranking, members, windows, answers)

    def _read_ranking(
        self, members: Members, windows: Sequence[Sequence[int]], answers: Sequence[Judgement]
    ) -> Ranking:
        orders = [
            self._read_order(window, judgement)
            for window, judgement in zip(windows, answers, strict=True)
        ]
        return _build_ranking(members, orders, answers)

    async def answer_late(
        self, group_ranking: Ranking, late_candidate: Candidate, ask: Ask
    ) -> Ranking:
        """Return a ranking of judged responses and of one more, which is the last in it.

        group_ranking: the answer of this question. late_candidate: a readable response with a text
        of its own. It is judged beside as many of the group as one judgement takes. Its score is
        moved by the mean change of theirs, so that it is on the scale of `group_ranking`. It
        abstains if none of them gets a score.
        """
        whole_group = find_members((*self.candidates, late_candidate))
        if len(whole_group.candidates) == 1:  # the others hold no answer
            return rank_copies(whole_group)
        scores_by_response = {
            candidate.response: score
            for candidate, score in zip(self.candidates, group_ranking.scores, strict=True)
            if score is not None
        }
        members = find_members(self.candidates).candidates
        anchors = [c for c in members if c.response in scores_by_response][: self.max_responses - 1]
        ranking = await replace(self, candidates=(*anchors, late_candidate)).answer(ask)
        changes = [
            scores_by_response[candidate.response] - score
            for candidate, score in zip(anchors, ranking.scores, strict=False)
            if score is not None
        ]
        score, reason = ranking.scores[-1], ranking.reasons[-1]
        if score is not None and changes:
            score = min(1.0, max(0.0, score + fmean(changes)))
        elif score is not None:
            score, reason = None, "none of its group got a score beside it"
        return replace(
            ranking, scores=(*ranking.scores[:-1], score), reasons=(*ranking.reasons[:-1], reason)
        )

    def _arrange_windows(self, members: Members) -> list[list[int]]:
        """Return the texts of each judgement by number, in the order shown.

        Returns no judgement for a group of copies.
        """
        texts = members.shuffle_texts(self.seed)
        if len(texts) < 2:
            return []
        windows = []
        for k in range(self.orders):
            start = k * len(texts) // self.orders
            windows += _split_into_windows(texts[start:] + texts[:start], self.max_responses)
        return windows

    def _read_order(self, window: Sequence[int], judgement: Judgement) -> Order:
        low, high = self.scale
        raw_scores = read_scores(judgement, len(window))
        scores = (
            None if value is None else (value - low) / (high - low) for value, _ in raw_scores
        )
        return Order(tuple(window), tuple(scores), tuple(forced for _, forced in raw_scores))


def read_scores(judgement: Judgement, count: int) -> list[tuple[float | None, bool]]:
    """Return the score of each of `count` responses in the order shown, and whether it was forced.

    Scores are on the judge's scale. None if the judge gave a response no score.
    """
    readings = [judgement.reading(f"response_{n}") for n in range(1, count + 1)]
    # One kind of number for all: a mean beside a written score would be another scale.
    by_mean = all(reading.expected is not None for reading in readings if reading)
    return [
        ((reading.expected if by_mean else reading.value), reading.forced)
        if reading
        else (None, False)
        for reading in readings
    ]


def _build_input(members: Members, window: Sequence[int]) -> JudgeInput:
    candidates = [members.candidates[n] for n in window]
    return JudgeInput(
        GROUP,
        candidates[0].prompt,
        tuple(candidate.response for candidate in candidates),
        context=candidates[0].context,
    )


def _split_into_windows(order: list[int], size: int) -> list[list[int]]:
    """Split an order into windows of equal size. Neighbours share a quarter, at least two."""
    if len(order) <= size:
        return [order]
    step = size - min(size - 1, max(2, size // 4))
    starts = [*range(0, len(order) - size, step), len(order) - size]
    return [order[start : start + size] for start in starts]


def _build_ranking(
    members: Members, orders: Sequence[Order], answers: Sequence[Judgement]
) -> Ranking:
    scores_by_order = [
        {i: s for i, s in zip(order.shown, order.scores, strict=True) if s is not None}
        for order in orders
    ]
    joint_scores = join_scores([scores for scores in scores_by_order if scores])
    scores, errors, reasons, critiques = [], [], [], []
    for i in range(len(members.candidates)):
        judgements = [
            judgement for order, judgement in zip(orders, answers, strict=True) if i in order.shown
        ]
        value, error = joint_scores.get(i, (None, None))
        scores.append(None if value is None else min(1.0, max(0.0, value)))
        errors.append(error)
        failure = next(
            (judgement.why for judgement in judgements if not judgement.ok),
            "the judge gave it no score",
        )
        reasons.append("" if value is not None else failure)
        critiques.append(
            next((judgement.critique for judgement in judgements if judgement.critique), "")
        )
    planting_texts = find_planting_texts([order.shown for order in orders], answers)
    places = members.places  # an order names a text by its first place in the group
    orders_by_place = tuple(
        Order(tuple(places[i][0] for i in order.shown), order.scores, order.forced)
        for order in orders
    )
    return members.make_ranking(
        scores, errors, reasons, answers, critiques, planting_texts, orders=orders_by_place
    )
