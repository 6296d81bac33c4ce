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
from autoj_reward.questions.rubric import ScoreRubric, rubric_question
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
        return self._how or judge_spec(self._judge).facts.default_rubric

    @cached_property
    def columns(self) -> tuple[ContextColumn, ...]:
        """Columns of the context that the judge sees. A rubric that the row has is not read."""
        context_fields = self.spec.format.context()
        column_names = {
            name: column for name, column in self._columns.items() if name in context_fields
        }
        columns = self.spec.context_columns(column_names, self.how.protocol, self.how)
        return tuple(column for column in columns if column.field != RUBRIC)

    def questions(
        self, row: RubricRow, items: tuple[RubricItem, ...]
    ) -> tuple[ScoreRubric, ScoreRubric]:
        """Return the questions for the scores of the better and the worse response."""
        _, *responses = (row.texts[name] for name in SOURCES["pair"])
        candidates = [
            Candidate(row.prompt, text, context=row.context, rubric=items) for text in responses
        ]
        better, worse = (
            rubric_question(candidate, self.spec.facts, self.spec.asks, self.how)
            for candidate in candidates
        )
        return better, worse

    def count_inputs(self, rubric: WrittenRubric) -> int:
        """Return the number of judge inputs of a pair's rubric."""
        return sum(question.most_inputs for question in self.questions(rubric.row, rubric.items))

    async def answer(
        self, ask: Ask, rubric: WrittenRubric
    ) -> tuple[WrittenRubric, Sequence[Judgement]]:
        """Return the rubric, dropped if it does not prefer the better response."""
        async with asyncio.TaskGroup() as tasks:
            better, worse = (
                tasks.create_task(question.answer(ask))
                for question in self.questions(rubric.row, rubric.items)
            )
        scores = better.result(), worse.result()
        judgements = [judgement for score in scores for judgement in score.judgements]
        high, low = (score.score for score in scores)
        if high is None or low is None:
            reason = "; ".join(score.reason for score in scores if score.score is None)
            return rubric.drop(DropReason.ABSTAINED, reason), judgements
        if high <= low:
            detail = f"better {high:.3g}, worse {low:.3g}"
            return rubric.drop(DropReason.NOT_PREFERRED, detail), judgements
        return rubric, judgements

    def run(
        self, rubrics: Sequence[WrittenRubric], journal: Path
    ) -> tuple[JudgementCost | None, list[WrittenRubric]]:
        """Return the cost of judging, None if no pair has a rubric, and all rubrics in order."""
        pairs = [
            rubric for rubric in rubrics if rubric.row.source == "pair" and rubric.dropped is None
        ]
        if not pairs:
            return None, list(rubrics)
        judged_rubrics: dict[int, WrittenRubric] = {}
        cost = ask_each(
            self.spec,
            journal,
            pairs,
            self.answer,
            lambda rubric, judged_rubric: judged_rubrics.update({rubric.row.line: judged_rubric}),
            "judging",
            self.count_inputs,
            scoring=self.how,
        )
        return cost, [judged_rubrics.get(rubric.row.line, rubric) for rubric in rubrics]
