"""Test of the rubrics of pairs: a rubric must score the better response higher."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from autoj_reward.config import JudgeConfig, RubricConfig
from autoj_reward.conversation import ContextColumn
from autoj_reward.evaluate.ask import JudgementCost, ask_each
from autoj_reward.models.spec import JudgeSpec, judge_spec
from autoj_reward.questions.ask import Ask
from autoj_reward.questions.rubric import ScoreRubric, default_rubric, rubric_question
from autoj_reward.rubric_items import RUBRIC, RubricItem
from autoj_reward.rubrics.writing import (
    SOURCES,
    DropReason,
    RubricRow,
    WrittenRubric,
)
from autoj_reward.types import Candidate, Judgement


class PreferenceTest:
    """Test of the rubrics of pairs by a judge.

    The judge is resolved for the first pair, so a run without pairs needs none that can score
    rubrics.
    """

    def __init__(
        self, judge: JudgeConfig, how: RubricConfig | None, columns: Mapping[str, str]
    ) -> None:
        """how: how a response is scored; None takes what the judge's format can. columns: input
        column of a field where it has another name."""
        self._judge, self._how, self._columns = judge, how, columns

    @cached_property
    def spec(self) -> JudgeSpec:
        """The judge. Raises ConfigError if it cannot score rubrics."""
        return judge_spec(self._judge).that_scores(self.how)

    @cached_property
    def how(self) -> RubricConfig:
        """How it scores a response."""
        return self._how or default_rubric(judge_spec(self._judge).max_items)

    @cached_property
    def columns(self) -> tuple[ContextColumn, ...]:
        """Columns of the context that the judge sees. A rubric that the row has is not read."""
        shown = self.spec.format.context()
        own = {name: column for name, column in self._columns.items() if name in shown}
        found = self.spec.context_columns(own, self.how.protocol, self.how)
        return tuple(column for column in found if column.field != RUBRIC)

    def questions(
        self, row: RubricRow, items: tuple[RubricItem, ...]
    ) -> tuple[ScoreRubric, ScoreRubric]:
        """Return the questions for the scores of the better and the worse response."""
        shown = row.context.showing(row.context, items)
        query, *responses = (row.texts[name] for name in SOURCES["pair"])
        better, worse = (
            rubric_question(Candidate(query, text, context=shown), self.how, self.spec)
            for text in responses
        )
        return better, worse

    def size(self, written: WrittenRubric) -> int:
        """Return the number of judge inputs of a pair's rubric."""
        return sum(own.most_inputs for own in self.questions(written.row, written.items))

    async def answer(
        self, ask: Ask, written: WrittenRubric
    ) -> tuple[WrittenRubric, Sequence[Judgement]]:
        """Return the rubric, dropped if it does not prefer the better response."""
        async with asyncio.TaskGroup() as tasks:
            better, worse = (
                tasks.create_task(own.answer(ask))
                for own in self.questions(written.row, written.items)
            )
        scores = better.result(), worse.result()
        judgements = [judgement for score in scores for judgement in score.judgements]
        high, low = (score.score for score in scores)
        if high is None or low is None:
            reason = "; ".join(score.reason for score in scores if score.score is None)
            return written.drop(DropReason.ABSTAINED, reason), judgements
        if high <= low:
            detail = f"better {high:.3g}, worse {low:.3g}"
            return written.drop(DropReason.NOT_PREFERRED, detail), judgements
        return written, judgements

    def run(
        self, written: Sequence[WrittenRubric], journal: Path
    ) -> tuple[JudgementCost | None, list[WrittenRubric]]:
        """Return the cost of judging, None if no pair has a rubric, and all rubrics in order."""
        pairs = [own for own in written if own.row.source == "pair" and own.dropped is None]
        if not pairs:
            return None, list(written)
        judged: dict[int, WrittenRubric] = {}
        cost = ask_each(
            self.spec,
            journal,
            pairs,
            self.answer,
            lambda own, found: judged.update({own.row.line: found}),
            "judging",
            self.size,
            scoring=self.how,
        )
        return cost, [judged.get(own.row.line, own) for own in written]
