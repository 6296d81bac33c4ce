"""Ranking by comparisons: schedules of pairs, and win rates from a Bradley-Terry fit."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

from autoj_reward.conversation import Context, Response
from autoj_reward.errors import InputError
from autoj_reward.questions.ask import Ask
from autoj_reward.questions.compare import Compare, compare_all, find_spoilers
from autoj_reward.questions.rank import (
    Members,
    PairScore,
    Ranking,
    find_members,
    find_planting_texts,
    rank_copies,
)
from autoj_reward.questions.strengths import Win, fit_bradley_terry, win_rates
from autoj_reward.types import Candidate, Comparison, Judgement, Pair, Verdict

Schedule = Literal["all", "circular", "reference"]
WON = {Verdict.FIRST: 1.0, Verdict.TIE: 0.5, Verdict.SECOND: 0.0}
REFERENCE = "reference"
REFERENCE_PLACE = -1
"""Place of the reference in a `PairScore`."""
Pairing = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Tournament:
    """Question which responses of a group win against the others."""

    candidates: tuple[Candidate, ...]
    schedule: Schedule = "circular"
    """Pairs that are compared; this and the next field are as in `RelativeConfig`."""
    neighbours: int = 4
    both: bool = True
    """Whether both orders of each pair are judged. If not, each response is first about as often as
    second."""
    tie: float | None = None
    """If set, responses are compared by their ratings; see `Compare`."""
    seed: int = 0
    """Seed of the circle."""

    @property
    def most_inputs(self) -> int:
        """Return the largest number of judge inputs."""
        count = len(self.candidates)
        pairs = {
            "all": count * (count - 1) // 2,
            "circular": min(count * self.neighbours, count * (count - 1) // 2),
            "reference": count,
        }
        return (1 + self.both) * pairs[self.schedule]

    async def answer(self, ask: Ask) -> Ranking:
        """Return the win rates. Raises InputError without the reference that the schedule needs."""
        members = find_members(self.candidates)
        if len(members.candidates) < 2:
            return rank_copies(members)
        results = _Results(self, _remove_reference(members) if self._by_reference else members)
        if self._by_reference:
            pairs = _pair_with_reference(results.add_reference(members))
        else:
            pairs = list(_yield_fixed_pairs(self, members))
        await results.play_round(pairs, ask)
        return await asyncio.to_thread(results.build_ranking)

    async def answer_late(
        self, group_ranking: Ranking, late_candidate: Candidate, ask: Ask
    ) -> Ranking:
        """Return the ranking of the group with one more response, which is the last in it.

        group_ranking: the answer of this question. late_candidate: a readable response with a text
        of its own. It is compared with twice `neighbours` of the group, or with the reference if
        the group was. All comparisons are fitted together, so its score is on the scale of the
        group's.
        """
        members = find_members((*self.candidates, late_candidate))
        if len(members.candidates) == 1:  # the others hold no answer
            return rank_copies(members)
        results = _Results(self, _remove_reference(members) if self._by_reference else members)
        late_text = len(members.candidates) - 1
        text_at = {place: text for text, places in enumerate(members.places) for place in places}
        others = [i for i in members.shuffle_texts(self.seed) if i != late_text][
            : 2 * self.neighbours
        ]
        if self._by_reference:
            others = [results.add_reference(members)]
            text_at[REFERENCE_PLACE] = others[0]
        results.wins += [
            (text_at[match.first], text_at[match.second], match.won)
            for match in group_ranking.matches
            if match.won is not None
        ]
        await results.play_round(
            [(i, late_text) if n % 2 else (late_text, i) for n, i in enumerate(others)], ask
        )
        return await asyncio.to_thread(results.build_ranking)

    @property
    def _by_reference(self) -> bool:
        return self.schedule == REFERENCE


def share_won(comparison: Comparison) -> float | None:
    """Return the share of a comparison that its first response won, 0 to 1; None if it failed.

    It is the probability of the label at the verdict if the engine gives one, else the verdict. A
    tie counts half. Both orders have equal weight, so that position bias cancels out.
    """
    if comparison.verdict is Verdict.FAILED:
        return None
    shares = [share_of_first(order) for order in comparison.orders]
    known_shares = [s if n == 0 else 1 - s for n, s in enumerate(shares) if s is not None]
    return sum(known_shares) / len(known_shares) if len(known_shares) == len(shares) else None


def share_of_first(order: Judgement) -> float | None:
    """Return the share of one order that the response shown first won; None if it failed."""
    probabilities = dict(order.confidence or ())
    mass = sum(probabilities.values())
    if mass > 0:
        return (probabilities.get("first", 0.0) + probabilities.get("tie", 0.0) / 2) / mass
    return WON.get(order.verdict) if order.verdict else None


class _Results:
    """Comparisons of a group so far. Responses are named by the number of their distinct text."""

    def __init__(self, question: Tournament, members: Members) -> None:
        self.question, self.members = question, members
        self.texts = list(members.candidates)
        self.wins: list[Win] = []
        self.matches: list[PairScore] = []
        self.comparisons: list[Comparison] = []
        self.judgements: list[Judgement] = []
        self.shown: list[Pairing] = []
        """Texts that each judgement of a comparison shows, in the order shown."""
        self.spoiled_texts: set[int] = set()
        """Texts whose planted verdict made a comparison fail. They get no score."""

    async def play_round(self, pairs: Sequence[Pairing], ask: Ask) -> None:
        """Compare pairs in one round. With a single order, the first of a pair is shown first."""
        questions = [
            Compare(Pair.of(self.texts[i], self.texts[j]), self.question.both, self.question.tie)
            for i, j in pairs
        ]
        for (i, j), comparison in zip(pairs, await compare_all(questions, ask), strict=True):
            won = share_won(comparison)
            self.comparisons.append(comparison)
            self.judgements += comparison.orders
            self.shown += [(i, j), (j, i)][: len(comparison.orders)]
            self.spoiled_texts |= {(i, j)[place - 1] for place in find_spoilers(comparison)}
            self.matches.append(PairScore(self._find_place(i), self._find_place(j), won))
            if won is not None:
                self.wins.append((i, j, won))

    def _find_place(self, text: int) -> int:
        places = self.members.places
        return places[text][0] if text < len(places) else REFERENCE_PLACE

    def add_reference(self, members: Members) -> int:
        """Add the reference as a text, and return its number. Raises InputError without one.

        members: the group with its context.
        """
        reference = members.candidates[0].context.get(REFERENCE)
        if not reference:
            raise InputError("schedule is reference, and this group brings none in its context")
        self.texts.append(replace(self.texts[0], response=Response(reference)))
        return len(self.texts) - 1

    def build_ranking(self) -> Ranking:
        members = self.members
        played_texts = {i for win in self.wins for i in win[:2]}
        compared_texts = [i for i in range(len(members.candidates)) if i in played_texts]
        alone = len(compared_texts) < 2  # a lone one has nobody to be ranked among
        rates = {}
        if not alone:
            strengths = fit_bradley_terry(len(self.texts), self.wins)
            rates = win_rates(strengths, members.copies, compared_texts)
        orders = [order for comparison in self.comparisons for order in comparison.orders]
        planting_texts = find_planting_texts(self.shown, orders)
        scores, errors, reasons, critiques = [], [], [], []
        for i in range(len(members.candidates)):
            value, error = (None, None) if i in self.spoiled_texts else rates.get(i, (None, None))
            scores.append(value)
            errors.append(error)
            place = self._find_place(i)
            comparisons = [
                comparison
                for match, comparison in zip(self.matches, self.comparisons, strict=True)
                if place in (match.first, match.second)
            ]
            why = next(
                (
                    comparison.reason
                    for comparison in comparisons
                    if comparison.verdict is Verdict.FAILED
                ),
                "",
            )
            problem = "no valid comparison"
            if i in self.spoiled_texts:
                problem = "a verdict in this response made a comparison fail"
            reasons.append("" if value is not None else f"{problem}: {why}")
            texts = (order.critique for comparison in comparisons for order in comparison.orders)
            critiques.append(next(filter(None, texts), ""))
        return members.make_ranking(
            scores,
            errors,
            reasons,
            self.judgements,
            critiques,
            planting_texts,
            matches=tuple(self.matches),
        )


def _yield_fixed_pairs(question: Tournament, members: Members) -> Iterator[Pairing]:
    """Yield the pairs of the responses. Each response is first about as often as second."""
    order = members.shuffle_texts(question.seed)
    count = len(order)
    if question.schedule == "all" or 2 * question.neighbours >= count - 1:
        for a, b in combinations(range(count), 2):
            i, j = order[a], order[b]
            yield (i, j) if (a + b) % 2 else (j, i)
        return
    for offset in range(1, question.neighbours + 1):
        for place in range(count):
            yield order[place], order[(place + offset) % count]


def _pair_with_reference(reference: int) -> list[Pairing]:
    """Return the pairs of each response and the reference, which is first about as often as
    second.

    reference: its number. The responses have the numbers below.
    """
    return [(i, reference) if i % 2 else (reference, i) for i in range(reference)]


def _remove_reference(members: Members) -> Members:
    """Return the members without the reference in their context. It is a response here."""
    context = members.candidates[0].context
    reduced_context = Context({name: text for name, text in context.items() if name != REFERENCE})
    return replace(
        members, candidates=tuple(replace(c, context=reduced_context) for c in members.candidates)
    )
