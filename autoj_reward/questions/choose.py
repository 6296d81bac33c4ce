"""Best-of-N: rate the candidates of a query and choose one, from a shortlist if there is one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autoj_reward.config import View, Vote
from autoj_reward.errors import ConfigError
from autoj_reward.models.facts import Asks, JudgeFacts
from autoj_reward.questions.ask import Ask
from autoj_reward.questions.compare import Compare, find_spoilers
from autoj_reward.questions.rate import Rate, rate_all
from autoj_reward.questions.tie_break import RULES, choose
from autoj_reward.types import (
    DIRECT,
    RATING,
    Candidate,
    Comparison,
    JudgeInput,
    Judgement,
    Outcome,
    Pair,
    Selection,
    Verdict,
)

SHORTLIST_RULE = "shortlist"
"""Rule of a selection whose shortlist left one candidate."""


def require_direct(views: frozenset[View]) -> None:
    """Raise ConfigError unless the judge gives the rating distribution right after the prompt."""
    if "direct" not in views:
        raise ConfigError(
            "shortlist needs the rating distribution right after the prompt, and this judge's "
            "endpoint does not tell it (vLLM and SGLang do): leave shortlist out, or name "
            "judge.tokenizer"
        )


def critique_view(view: View, shortlist: int | None) -> View:
    """Return the view that critiques are asked for, if candidates are ranked by `view`.

    A shortlist is made from the number of `direct`, so a critique need not bring it again.
    """
    return "rating" if shortlist is not None and view == "direct" else view


@dataclass(frozen=True, slots=True)
class Shortlist:
    """The candidates of one query that got critiques, and the ratings that they were chosen by."""

    places: tuple[int, ...]
    """Indices of the candidates that got critiques, copies included, in order."""
    direct: tuple[float | None, ...]
    """Expected rating of every candidate right after the prompt. None where it was not readable."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Result of best-of-N: the selection and the judgements behind it."""

    selection: Selection
    judgements: tuple[Judgement, ...]
    """Judgement of every candidate, in order.

    With a shortlist, candidates without a critique have the outcome ABANDONED. If the view is
    `direct` they are OK, with this number alone. If they could not be read right after the prompt,
    they have the outcome of that failure.
    """
    comparisons: tuple[tuple[Pair, Comparison], ...] = ()
    """Pairs that were compared to break ties. Equal responses are tied without a comparison."""
    shortlist: Shortlist | None = None
    """The candidates that got critiques; None if all did."""


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

    async def answer(self, ask: Ask) -> Choice:
        """Return the choice and the judgements behind it."""
        if self.shortlist is not None:
            return await self._choose_from_shortlist(ask, self.shortlist)
        judgements = tuple(await self._rate(self.candidates, self.view, ask))
        selection, comparisons = await self._select(range(len(judgements)), judgements, ask)
        return Choice(selection, judgements, comparisons)

    async def _rate(self, candidates: Sequence[Candidate], view: View, ask: Ask) -> list[Judgement]:
        """Return the vote of each candidate's critiques."""
        questions = [Rate(c, self.critiques, view=view, vote=self.vote) for c in candidates]
        return await rate_all(questions, ask)

    async def _choose_from_shortlist(self, ask: Ask, size: int) -> Choice:
        """Rate every candidate right after the prompt, and write critiques for the best of them.

        Candidates with the same judge input count as one. If none of the best `size` gets a
        rating, the next `size` get critiques, until one has a rating or no candidate is left.
        """
        readings = await rate_all([Rate(c, direct=True) for c in self.candidates], ask)
        readings = [reading.with_number("expected") for reading in readings]
        direct = tuple(reading.view("expected") for reading in readings)
        inputs = [Rate(candidate).inputs()[0] for candidate in self.candidates]
        waiting_inputs = _rank_inputs(inputs, direct)
        view = critique_view(self.view, size)
        judged: dict[int, Judgement] = {}
        while waiting_inputs and not any(judgement.ok for judgement in judged.values()):
            listed_inputs = set(waiting_inputs[:size])
            waiting_inputs = waiting_inputs[size:]
            places = [place for place, item in enumerate(inputs) if item in listed_inputs]
            listed_candidates = [self.candidates[place] for place in places]
            judgements = await self._rate(listed_candidates, view, ask)
            for place, judgement in zip(places, judgements, strict=True):
                judged[place] = _add_reading(judgement, readings[place])
        all_judgements = []
        for place, reading in enumerate(readings):
            judgement = judged[place] if place in judged else _pass_over(reading, self.view)
            all_judgements.append(judgement)
        # Without any readable rating, all judgements are failures, and the choice says so.
        places = sorted(judged) or list(range(len(readings)))
        selection, comparisons = await self._select(places, all_judgements, ask)
        if selection.rule == "only" and len(self.candidates) > 1:
            selection = replace(selection, rule=SHORTLIST_RULE)
        shortlist = Shortlist(tuple(sorted(judged)), direct)
        return Choice(selection, tuple(all_judgements), comparisons, shortlist)

    async def _select(
        self,
        places: Sequence[int],
        judgements: Sequence[Judgement],
        ask: Ask,
    ) -> tuple[Selection, tuple[tuple[Pair, Comparison], ...]]:
        """Return the selection among the candidates at these indices, and its comparisons."""
        comparisons = list[tuple[Pair, Comparison]]()

        async def meet(i: int, j: int) -> Verdict:
            pair = Pair.of(self.candidates[places[i]], self.candidates[places[j]])
            if pair.first == pair.second:
                return Verdict.TIE  # a judge need not compare a text with itself
            comparison = await Compare(pair, tie=self.tie).answer(ask)
            comparisons.append((pair, comparison))
            spoilers = find_spoilers(comparison)
            if len(spoilers) == 1:  # no gain from a match that a planted verdict made fail
                return Verdict.SECOND if spoilers == {1} else Verdict.FIRST
            return comparison.verdict

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


def choice_question(
    candidates: Sequence[Candidate],
    facts: JudgeFacts,
    asks: Asks,
    *,
    view: View,
    rules: Sequence[str] = RULES,
    matches: float = math.inf,
    shortlist: int | None = None,
) -> Choose:
    """Return the question which candidate is best. view to shortlist: as in `Choose`."""
    return Choose(
        tuple(candidate.for_judge(asks) for candidate in candidates),
        view,
        rules,
        critiques=asks.critiques,
        vote=asks.vote,
        compares=facts.compares,
        tie=facts.tie,
        matches=matches,
        shortlist=shortlist,
    )


def _rank_inputs(inputs: Sequence[JudgeInput], direct: Sequence[float | None]) -> list[JudgeInput]:
    """Return the distinct inputs with a rating right after the prompt, the highest first.

    Equal ratings stay in order.
    """
    ratings = {
        item: rating for item, rating in zip(inputs, direct, strict=True) if rating is not None
    }
    return sorted(ratings, key=lambda item: -ratings[item])


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
