"""Ways to choose one of a query's candidates: by a view, beside each other, or by a rubric.

A job builds its choice once, from the config. Workers of Ray Data get it pickled.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autoj_reward.config import RelativeConfig, RubricConfig, Scoring, View
from autoj_reward.conversation import Response
from autoj_reward.io.rows import QueryRow
from autoj_reward.models.facts import Asks, JudgeFacts
from autoj_reward.models.views import resolve_view
from autoj_reward.questions.ask import Ask
from autoj_reward.questions.choose import choice_question, require_direct
from autoj_reward.questions.relative import rank_question
from autoj_reward.questions.rubric import rubric_question
from autoj_reward.questions.tie_break import choose
from autoj_reward.types import Candidate, Judgement, Outcome, Selection
from rollouts.best_of_n.results import GroupResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice(ABC):
    """A way to choose one of a query's candidates."""

    facts: JudgeFacts
    asks: Asks
    rules: Sequence[str]
    """Tie-break rules in order."""
    view: View = "rating"
    """The number of the candidates' judgements that ranks them. A score stands as a rating."""
    scoring: Scoring | None = None
    """What scores the candidates in place of the judge's view; None if nothing does."""

    def require(self, views: frozenset[View]) -> None:  # noqa: B027, scores need no view
        """Raise ConfigError unless these views of the judge are enough."""

    @abstractmethod
    def count_inputs(self, row: QueryRow, responses: Sequence[Response]) -> int:
        """Return the largest number of judge inputs of a row, without tie-breaks and copies."""

    @abstractmethod
    async def choose(
        self, ask: Ask, row: QueryRow, candidates: tuple[Candidate, ...]
    ) -> GroupResult:
        """Judge the candidates and choose one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ByView(Choice):
    """Choice of the candidate with the highest number of a view, each judged alone."""

    shortlist: int | None
    """Number of distinct responses that get critiques; None if all do."""

    def require(self, views: frozenset[View]) -> None:
        if self.shortlist is not None:
            require_direct(views)
        resolve_view(self.view, "choose", None, views)

    def count_inputs(self, row: QueryRow, responses: Sequence[Response]) -> int:
        total = len(set(responses))
        if self.shortlist is None:
            return total * self.asks.critiques
        # Every candidate is rated right after the prompt first.
        return total + min(self.shortlist, total) * self.asks.critiques

    async def choose(
        self, ask: Ask, row: QueryRow, candidates: tuple[Candidate, ...]
    ) -> GroupResult:
        question = choice_question(
            candidates,
            self.facts,
            self.asks,
            view=self.view,
            rules=self.rules,
            shortlist=self.shortlist,
        )
        choice = await question.answer(ask)
        return GroupResult(
            row, candidates, choice.judgements, choice.selection, shortlist=choice.shortlist
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ByRanking(Choice):
    """Choice of the candidate with the highest score, all judged beside each other."""

    scoring: RelativeConfig

    def count_inputs(self, row: QueryRow, responses: Sequence[Response]) -> int:
        if len(responses) < 2:
            return 0
        candidates = make_candidates(row, responses)
        return rank_question(candidates, self.facts, self.asks, self.scoring).most_inputs

    async def choose(
        self, ask: Ask, row: QueryRow, candidates: tuple[Candidate, ...]
    ) -> GroupResult:
        if len(candidates) == 1:
            reason = "a lone response: there is nothing to judge it beside"
            judgement = Judgement(Outcome.INPUT_REJECTED, reason=reason)
            return GroupResult(row, candidates, (judgement,), Selection(0, "only"))
        ranking = await rank_question(candidates, self.facts, self.asks, self.scoring).answer(ask)
        judgements = tuple(ranking.as_judgements())
        selection = await _choose_by_score(candidates, judgements, self.rules, "relative")
        return GroupResult(row, candidates, judgements, selection, ranking=ranking)


@dataclass(frozen=True, slots=True, kw_only=True)
class ByRubric(Choice):
    """Choice of the candidate with the highest score by its row's rubric."""

    scoring: RubricConfig

    def count_inputs(self, row: QueryRow, responses: Sequence[Response]) -> int:
        total = 0
        for candidate in make_candidates(row, responses):
            total += rubric_question(candidate, self.facts, self.asks, self.scoring).most_inputs
        return total

    async def choose(
        self, ask: Ask, row: QueryRow, candidates: tuple[Candidate, ...]
    ) -> GroupResult:
        questions = [
            rubric_question(candidate, self.facts, self.asks, self.scoring)
            for candidate in candidates
        ]
        scores = tuple(await asyncio.gather(*(question.answer(ask) for question in questions)))
        judgements = tuple(score.as_judgement() for score in scores)
        selection = await _choose_by_score(candidates, judgements, self.rules, "rubric")
        return GroupResult(row, candidates, judgements, selection, rubrics=scores)


async def _choose_by_score(
    candidates: Sequence[Candidate],
    judgements: Sequence[Judgement],
    rules: Sequence[str],
    rule: str,
) -> Selection:
    """Return the selection by scores that stand as ratings. rule: name of the rule that a score
    decides by."""
    selection = await choose(candidates, judgements, view="rating", rules=rules)
    return replace(selection, rule=rule) if selection.rule == "rating" else selection


def make_candidates(
    row: QueryRow,
    responses: Sequence[Response],
    logprobs: Sequence[float | None] | None = None,
) -> tuple[Candidate, ...]:
    """Return the candidates of a row."""
    return tuple(
        Candidate(row.prompt, response, logprob, str(row.line), row.context, rubric=row.rubric)
        for response, logprob in zip(responses, logprobs or [None] * len(responses), strict=True)
    )
