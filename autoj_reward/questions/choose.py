"""Best-of-N: all candidates of a query are rated, and one is chosen; within a budget for less."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from autoj_reward.config import View
from autoj_reward.questions.ask import Ask
from autoj_reward.questions.budget import Race, Spending, Standing
from autoj_reward.questions.compare import Compare
from autoj_reward.questions.rate import Rate, rate_all
from autoj_reward.questions.tie_break import RULES, choose
from autoj_reward.types import Candidate, Comparison, Judgement, Pair, Selection, Verdict


@dataclass(frozen=True, slots=True)
class Choice:
    """The choice among candidates, and of every candidate its judgement, in order.

    comparisons: those that were held to break ties. standings, spending: what became of each
    candidate on a budget, and what was spent; without a budget none. There an abandoned candidate's
    judgement has the outcome ABANDONED, or that of its cheap reading if this failed; a copy's is
    its original's, at no cost and flagged `copied_judgement`.
    """

    selection: Selection
    judgements: tuple[Judgement, ...]
    comparisons: tuple[Comparison, ...] = ()
    standings: tuple[Standing, ...] = ()
    spending: Spending | None = None


@dataclass(frozen=True, slots=True)
class Choose:
    """Which of the candidates of one query is best?

    view: the number that ranks. rules: what decides among equals; see `tie_break.choose`.
    critiques: of each response. compares: whether the judge can compare; tie: as for `Compare`.
    matches: most comparisons that may be held. share: of full judging's tokens, over 0 and at most
    1, for a choice on a budget (see `budget`); None: all are judged.
    """

    candidates: tuple[Candidate, ...]
    view: View = "rating"
    rules: Sequence[str] = RULES
    critiques: int = 1
    compares: bool = True
    tie: float | None = None
    matches: float = math.inf
    share: float | None = None

    async def answer(self, ask: Ask) -> Choice:
        """Return the choice and the judgements behind it."""
        if self.share is None:
            rated = [Rate(one, self.critiques, view=self.view) for one in self.candidates]
            found = tuple(await rate_all(rated, ask))
            selection, held = await self._select(
                range(len(found)), found, lambda question: question.answer(ask)
            )
            return Choice(selection, found, held)
        finals = self.compares and tuple(self.rules[:1]) == ("pairwise",)
        race = Race(self.candidates, ask, self.share, self.critiques, self.view, finals)
        await race.run()
        found, judged = tuple(race.judgements()), [i for i in race.entrants if i in race.samples]
        selection, held = await self._select(judged, found, race.compare)
        return Choice(selection, found, held, tuple(race.standings()), race.spending())

    async def _select(
        self,
        places: Sequence[int],
        judgements: Sequence[Judgement],
        compare: Callable[[Compare], Awaitable[Comparison]],
    ) -> tuple[Selection, tuple[Comparison, ...]]:
        """Return the choice among the candidates at these places, and its comparisons."""
        held = list[Comparison]()

        async def meet(i: int, j: int) -> Verdict:
            pair = Pair.of(self.candidates[places[i]], self.candidates[places[j]])
            held.append(await compare(Compare(pair, tie=self.tie)))
            return held[-1].verdict

        chosen = await choose(
            [self.candidates[i] for i in places],
            [judgements[i] for i in places],
            view=self.view,
            rules=self.rules,
            meet=meet if self.compares else None,
            matches=self.matches,
        )
        selection = Selection(
            places[chosen.index],
            chosen.rule,
            tuple(places[i] for i in chosen.tied),
            tuple((places[i], places[j], verdict) for i, j, verdict in chosen.comparisons),
        )
        return selection, tuple(held)
