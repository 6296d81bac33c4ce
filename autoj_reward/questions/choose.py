"""Best-of-N: rate all candidates of a query and choose one, within a token budget if there
is one."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from autoj_reward.config import View, Vote
from autoj_reward.questions.ask import Ask
from autoj_reward.questions.budget import Race, Spending, Standing
from autoj_reward.questions.compare import Compare, find_spoilers
from autoj_reward.questions.rate import Rate, rate_all
from autoj_reward.questions.tie_break import RULES, choose
from autoj_reward.types import Candidate, Comparison, Judgement, Pair, Selection, Verdict


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
    share: float | None = None
    """Budget as a share of full judging's tokens, over 0 and at most 1 (see `budget`). None judges
    all candidates."""

    async def answer(self, ask: Ask) -> Choice:
        """Return the choice and the judgements behind it."""
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
            comparison = await compare(Compare(pair, tie=self.tie))
            comparisons.append(comparison)
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
