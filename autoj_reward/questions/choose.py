"""Best-of-N: rate all candidates of a query and choose one, within a token budget if there
is one."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from autoj_reward.config import View, Vote
from autoj_reward.questions.ask import Ask
from autoj_reward.questions.budget import Race, Spending, Standing
from autoj_reward.questions.compare import Compare
from autoj_reward.questions.rate import Rate, rate_all
from autoj_reward.questions.tie_break import RULES, choose
from autoj_reward.types import (
    DIRECT,
    RATING,
    Candidate,
    Comparison,
    Judgement,
    Outcome,
    Pair,
    Selection,
    Verdict,
)

SHORTLIST_RULE = "shortlist"
"""Rule of a selection whose shortlist left one candidate."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Result of best-of-N: the selection and the judgements behind it."""

    selection: Selection
    judgements: tuple[Judgement, ...]
    """Judgement of every candidate, in order.

    With a budget, an abandoned candidate's judgement has the outcome ABANDONED, or that of its
    cheap rating if this failed. A copy has its original's judgement, at no cost and flagged
    `copied_judgement`.
    """
    comparisons: tuple[Comparison, ...] = ()
    """Comparisons that were made to break ties."""
    standings: tuple[Standing, ...] = ()
    """Result of each candidate within the budget; None without one."""
    spending: Spending | None = None
    """Cost of the selection within the budget; None without one."""
    direct: tuple[float | None, ...] = ()
    """Expected rating of every candidate right after the prompt, None where it was not readable.
    Empty without a shortlist."""


@dataclass(frozen=True, slots=True)
class Choose:
    """Question: which of one query's candidates is best?"""

    candidates: tuple[Candidate, ...]
    view: View = "rating"
    """Number that ranks the candidates."""
    rules: Sequence[str] = RULES
    """Tie-break rules in order; see `tie_break.choose`."""
    critiques: int = 1
    """Critiques of each response."""
    vote: Vote = "mean"
    """How their numbers make one."""
    compares: bool = True
    """Whether the judge can compare responses."""
    tie: float | None = None
    """Maximum difference that counts as a tie, as for `Compare`."""
    matches: float = math.inf
    """Maximum number of comparisons."""
    shortlist: int | None = None
    """Number of distinct responses that get critiques; see `_choose_from_shortlist`. None: all."""
    share: float | None = None
    """Budget as a share of full judging's tokens, over 0 and at most 1 (see `budget`). None judges
    all candidates."""

    async def answer(self, ask: Ask) -> Choice:
        """Return the choice and the judgements behind it."""
        if self.shortlist is not None:
            return await self._choose_from_shortlist(ask, self.shortlist)
        if self.share is None:
            questions = [
                Rate(candidate, self.critiques, view=self.view, vote=self.vote)
                for candidate in self.candidates
            ]
            judgements = tuple(await rate_all(questions, ask))
            selection, comparisons = await self._select(
                range(len(judgements)), judgements, lambda question: question.answer(ask)
            )
            return Choice(selection, judgements, comparisons)
        finals = self.compares and tuple(self.rules[:1]) == ("pairwise",)
        race = Race(self.candidates, ask, self.share, self.critiques, self.view, finals, self.vote)
        await race.run()
        judgements, judged_places = (
            tuple(race.judgements()),
            [i for i in race.entrants if i in race.samples],
        )
        selection, comparisons = await self._select(judged_places, judgements, race.compare)
        return Choice(selection, judgements, comparisons, tuple(race.standings()), race.spending())

    async def _choose_from_shortlist(self, ask: Ask, size: int) -> Choice:
        """Rate every candidate right after the prompt, and write critiques for the best of them.

        Candidates with the same judge input count as one. If none of the best `size` gets a
        rating, the next `size` get critiques, until one has a rating or no candidate is left.
        """
        readings = await rate_all([Rate(c, direct=True) for c in self.candidates], ask)
        readings = [reading.with_number("expected") for reading in readings]
        inputs = [Rate(candidate).inputs()[0] for candidate in self.candidates]
        ratings = {
            item: reading.view("expected") for item, reading in zip(inputs, readings, strict=True)
        }
        readable = {item: rating for item, rating in ratings.items() if rating is not None}
        # The sort is stable: equal ratings stay in the order of the candidates.
        waiting_inputs = sorted(readable, key=lambda item: -readable[item])
        judged: dict[int, Judgement] = {}
        while waiting_inputs and all(not judgement.ok for judgement in judged.values()):
            listed_inputs = set(waiting_inputs[:size])
            waiting_inputs = waiting_inputs[size:]
            places = [place for place, item in enumerate(inputs) if item in listed_inputs]
            judgements = await self._rate_in_full([self.candidates[n] for n in places], ask)
            for place, judgement in zip(places, judgements, strict=True):
                judged[place] = _add_reading(judgement, readings[place])
        all_judgements = tuple(
            judged[place] if place in judged else _pass_over(reading, self.view)
            for place, reading in enumerate(readings)
        )
        selection, comparisons = await self._select(
            sorted(judged) or range(len(readings)),
            all_judgements,
            lambda question: question.answer(ask),
        )
        if selection.rule == "only" and len(self.candidates) > 1:
            selection = replace(selection, rule=SHORTLIST_RULE)
        direct = tuple(reading.view("expected") for reading in readings)
        return Choice(selection, all_judgements, comparisons, direct=direct)

    async def _rate_in_full(self, candidates: Sequence[Candidate], ask: Ask) -> list[Judgement]:
        # The rating right after the prompt is known, so a critique need not come with it again.
        view = "rating" if self.view == "direct" else self.view
        questions = [Rate(c, self.critiques, view=view, vote=self.vote) for c in candidates]
        return await rate_all(questions, ask)

    async def _select(
        self,
        places: Sequence[int],
        judgements: Sequence[Judgement],
        compare: Callable[[Compare], Awaitable[Comparison]],
    ) -> tuple[Selection, tuple[Comparison, ...]]:
        """Return the selection among the candidates at these indices, and its comparisons."""
        comparisons = list[Comparison]()

        async def meet(i: int, j: int) -> Verdict:
            pair = Pair.of(self.candidates[places[i]], self.candidates[places[j]])
            comparisons.append(await compare(Compare(pair, tie=self.tie)))
            return comparisons[-1].verdict

        local_selection = await choose(
            [self.candidates[i] for i in places],
            [judgements[i] for i in places],
            view=self.view,
            rules=self.rules,
            meet=meet if self.compares else None,
            matches=self.matches,
        )
        selection = Selection(
            places[local_selection.index],
            local_selection.rule,
            tuple(places[i] for i in local_selection.tied),
            tuple((places[i], places[j], verdict) for i, j, verdict in local_selection.comparisons),
        )
        return selection, tuple(comparisons)


def _add_reading(judgement: Judgement, reading: Judgement) -> Judgement:
    """Return a judgement with the rating right after the prompt, and with the cost of both."""
    if judgement.ok:
        return judgement.with_direct(reading)
    return replace(judgement, usage=judgement.usage + reading.usage)


def _pass_over(reading: Judgement, view: View) -> Judgement:
    """Return the judgement of a candidate that got no critique.

    reading: its rating right after the prompt. This is all that the view `direct` ranks by.
    """
    rating = reading.reading(RATING)
    if rating is None:
        reason = f"right after the prompt: {reading.reason or reading.outcome}"
        return replace(reading, reason=reason)
    if view == "direct":
        return replace(reading, readings=(replace(rating, slot=DIRECT),))
    return Judgement(
        Outcome.ABANDONED,
        reason=f"not on the shortlist: {rating.expected:.2f} right after the prompt",
        usage=reading.usage,
        judge=reading.judge,
        flags=reading.flags,
    )
