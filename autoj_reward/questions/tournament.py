"""Ranking by comparisons: schedules of pairs, and win rates from a Bradley-Terry fit."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from typing import Literal

from autoj_reward.conversation import context_of
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
from autoj_reward.questions.rate import Rate, rate_all
from autoj_reward.questions.strengths import Strengths, Win, fit_bradley_terry, win_rates
from autoj_reward.types import Candidate, Comparison, Judgement, Pair, Verdict

Schedule = Literal["all", "circular", "pivot", "swiss"]
WON = {Verdict.FIRST: 1.0, Verdict.TIE: 0.5, Verdict.SECOND: 0.0}
SEPARATE = 2.0
"""Standard errors by which neighbours must differ for a Swiss tournament to stop."""
REFERENCE = "reference"
REFERENCE_PLACE = -1
"""Place of the reference in a `PairScore`."""
Pairing = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Tournament:
    """Question which responses of a group win against the others."""

    candidates: tuple[Candidate, ...]
    schedule: Schedule = "circular"
    """Pairs that are compared; this and the next three fields are as in `RelativeConfig`."""
    neighbours: int = 4
    rounds: int = 5
    pivot: Literal["best", "reference"] = "best"
    both: bool = True
    """Whether both orders of each pair are judged. If not, each response is first about as often as
    second."""
    tie: float | None = None
    """If set, responses are compared by their ratings; see `Compare`."""
    seed: int = 0
    """Seed of the circle and of the first round."""

    @property
    def most_inputs(self) -> int:
        """Return the largest number of judge inputs."""
        count = len(self.candidates)
        rating_inputs = 0 if self._by_reference or self.schedule != "pivot" else count
        pairs = {
            "all": count * (count - 1) // 2,
            "circular": min(count * self.neighbours, count * (count - 1) // 2),
            "pivot": count if self._by_reference else count - 1,
            "swiss": self.rounds * (count // 2),
        }
        return rating_inputs + (1 + self.both) * pairs[self.schedule]

    async def answer(self, ask: Ask) -> Ranking:
        """Return the win rates. Raises InputError if the pivot is a reference that is missing."""
        members = find_members(self.candidates)
        if len(members.candidates) < 2:
            return rank_copies(members)
        results = _Results(self, _remove_reference(members) if self._by_reference else members)
        if self.schedule == "swiss":
            await _play_swiss(results, ask)
        elif self.schedule == "pivot":
            await _play_pivot(results, ask, members)
        else:
            await results.play_round(list(_yield_fixed_pairs(self, members)), ask)
        return await asyncio.to_thread(results.build_ranking)

    async def answer_late(
        self, group_ranking: Ranking, late_candidate: Candidate, ask: Ask
    ) -> Ranking:
        """Return the ranking of the group with one more response, which is the last in it.

        group_ranking: the answer of this question. late_candidate: a readable response with a text
        of its own. It is compared with twice `neighbours` of the group, or with the reference if
        that is the pivot. All comparisons are fitted together, so its score is on the scale of the
        group's.
        """
        members = find_members((*self.candidates, late_candidate))
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
        return self.schedule == "pivot" and self.pivot == REFERENCE


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
            raise InputError("pivot is the reference, and this group brings none in its context")
        self.texts.append(replace(self.texts[0], response=reference))
        return len(self.texts) - 1

    def fit_strengths(self) -> Strengths:
        return fit_bradley_terry(len(self.texts), self.wins)

    def build_ranking(self) -> Ranking:
        members = self.members
        played_texts = {i for win in self.wins for i in win[:2]}
        compared_texts = [i for i in range(len(members.candidates)) if i in played_texts]
        alone = len(compared_texts) < 2  # a lone one has nobody to be ranked among
        rates = {} if alone else win_rates(self.fit_strengths(), members.copies, compared_texts)
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
    """Yield the pairs of a schedule that does not depend on results.

    Each response is first about as often as second.
    """
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


async def _play_pivot(results: _Results, ask: Ask, members: Members) -> None:
    count = len(results.texts)
    if results.question.pivot == REFERENCE:
        pivot = results.add_reference(members)
    else:
        judgements = await rate_all([Rate(candidate) for candidate in results.texts], ask)
        results.judgements += judgements
        values = [_get_rating(judgement) for judgement in judgements]
        pivot = max(range(count), key=lambda i: values[i])
    others = [i for i in range(count) if i != pivot]
    await results.play_round(
        [(i, pivot) if n % 2 else (pivot, i) for n, i in enumerate(others)], ask
    )


def _get_rating(judgement: Judgement) -> float:
    value = judgement.view("expected")
    value = judgement.view("rating") if value is None else value
    return float("-inf") if value is None else value


async def _play_swiss(results: _Results, ask: Ask) -> None:
    """Compare neighbours in the current ranking, round by round.

    Stops when all neighbours differ by SEPARATE standard errors, when the rounds are used up, or
    when all pairs were compared.
    """
    order, past_pairs = (
        results.members.shuffle_texts(results.question.seed),
        set[frozenset[int]](),
    )
    first_counts = [0] * len(order)
    for _ in range(results.question.rounds):
        pairs = [
            (i, j) if first_counts[i] <= first_counts[j] else (j, i)
            for i, j in _pair_neighbours(order, past_pairs)
        ]
        if not pairs:
            return
        past_pairs |= {frozenset(pair) for pair in pairs}
        for i, _j in pairs:
            first_counts[i] += 1
        await results.play_round(pairs, ask)
        strengths = await asyncio.to_thread(results.fit_strengths)
        order.sort(key=lambda i: -strengths.values[i])
        gaps = (strengths.difference(i, j) for i, j in pairwise(order))
        if all(gap > SEPARATE * error for gap, error in gaps):
            return


def _pair_neighbours(order: Sequence[int], past_pairs: set[frozenset[int]]) -> Iterator[Pairing]:
    """Yield pairs that were not compared yet, each response with the nearest one below it."""
    unpaired_texts = list(order)
    while unpaired_texts:
        i = unpaired_texts.pop(0)
        j = next(
            (other for other in unpaired_texts if frozenset((i, other)) not in past_pairs), None
        )
        if j is not None:
            unpaired_texts.remove(j)
            yield i, j


def _remove_reference(members: Members) -> Members:
    """Return the members without the reference in their context. It is a response here."""
    context = context_of(members.candidates[0].context)
    fields = {name: text for name, text in context.items() if name != REFERENCE}
    reduced_context = context.showing(fields)
    return replace(
        members, candidates=tuple(replace(c, context=reduced_context) for c in members.candidates)
    )
