"""Judging of an evaluation's rows, through a journal, so that a killed run resumes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from autoj_reward.client.client import ViewsCheck
from autoj_reward.client.in_flight import run_in_order
from autoj_reward.client.judging import open_ask
from autoj_reward.config import Scoring, View
from autoj_reward.errors import FormatError
from autoj_reward.formats.schema import JudgeFormat
from autoj_reward.journal import Journal
from autoj_reward.models.spec import JudgeSpec
from autoj_reward.questions.ask import Ask
from autoj_reward.questions.rate import Rate, rate_all, rating_question
from autoj_reward.types import Candidate, JudgeInput, Judgement, Usage

if TYPE_CHECKING:  # statistics need numpy, which the client does without
    from autoj_reward.client.panel import Panel
    from autoj_reward.evaluate.statistics import ResultFields, Scores

T = TypeVar("T")
R = TypeVar("R")


class JudgementCost:
    """Counter of judgements, their outcomes and their usage. Keeps no judgement."""

    def __init__(self) -> None:
        self._outcomes: Counter[str] = Counter()
        self._forced = 0
        self.usage = Usage()
        """Usage of all judgements."""

    def add(self, judgements: Iterable[Judgement]) -> None:
        """Add judgements to the counts."""
        for judgement in judgements:
            self._outcomes[judgement.outcome.value] += 1
            self._forced += judgement.forced
            self.usage += judgement.usage

    def fields(self) -> ResultFields:
        """Return the `cost` fields of a result file.

        They are the counts and, under `mean`, the usage of one judgement: tokens, and seconds in
        the replica.
        """
        n, total = self._outcomes.total(), asdict(self.usage)
        return {
            "judgements": n,
            "outcomes": dict(self._outcomes),
            "forced": self._forced,
            "mean": {name: round(value / n, 3) if n else None for name, value in total.items()},
        }


def resampled(item: JudgeInput, samples: int) -> JudgeInput:
    """Return the same input with the seed of another sample, `samples` further on."""
    return replace(item, sample=item.sample + samples)


def require_protocol(spec: JudgeSpec, kind: str, remedies: Mapping[str, str] = {}) -> None:
    """Raise FormatError if the judge's format lacks the protocol `kind`, such as `pairwise`.

    A scalar reward model has every protocol. Starts no engine. remedies: what to set to use
    another protocol, by its name.
    """
    if not isinstance(spec.format, JudgeFormat):
        return
    try:
        spec.format.protocol(kind)
    except FormatError as error:
        ways = [way for name, way in remedies.items() if name in spec.format.protocols]
        raise FormatError(", or ".join([str(error), *ways])) from None


def ask_each(
    spec: JudgeSpec,
    journal: Path,
    rows: Iterable[T],
    question: Callable[[Ask, T], Awaitable[tuple[R, Sequence[Judgement]]]],
    on_answer: Callable[[T, R], object],
    label: str,
    size: Callable[[T], int],
    total: int | None = None,
    view: View | None = None,
    require: ViewsCheck | None = None,
    scoring: Scoring | None = None,
    panel: Panel | None = None,
) -> JudgementCost:
    """Ask a judge about every row and return the cost of the answers.

    Rows are drawn lazily, and `on_answer` gets each row with its answer in input order. The judge
    is started only if the journal lacks a judgement.

    question: returns the answer and the judgements to count. size: judge inputs of a row. total:
    judge inputs of all rows, for the progress bar; None reads the rows once more to count them.
    view: the number of a rating that is used. A judge that does not give it raises ConfigError
    before anything is judged. require: a check in place of that one, as in `JudgeClient`. scoring:
    as for `open_ask`. panel: judges that rate beside this one; None if it rates alone.
    """
    cost, total = JudgementCost(), sum(map(size, rows)) if total is None else total

    async def answer_row(ask: Ask, row: T) -> tuple[T, R, Sequence[Judgement]]:
        return row, *await question(ask, row)

    def pass_on(answered: tuple[T, R, Sequence[Judgement]]) -> None:
        row, answer, judgements = answered
        cost.add(judgements)
        on_answer(row, answer)

    async def answer_all(record: Journal) -> None:
        opened = open_ask(spec, record, total, label, view, require, scoring=scoring)
        if panel:
            opened = panel.open(opened, record, view)
        async with opened as ask:
            await run_in_order(rows, lambda row: answer_row(ask, row), pass_on, size=size)

    with closing(Journal(journal)) as record:
        asyncio.run(answer_all(record))
    return cost


def rate_each(
    spec: JudgeSpec,
    journal: Path,
    rows: Iterable[T],
    candidates: Callable[[T], Sequence[Candidate]],
    on_answer: Callable[[T, Scores], object],
    label: str,
    view: View,
) -> JudgementCost:
    """Rate the candidates of every row and return the cost of the ratings.

    `on_answer` gets each row, in input order, with the view's number for each candidate; None where
    the judge abstained. The other parameters are those of `ask_each`.
    """

    async def rate_row(ask: Ask, row: T) -> tuple[Scores, list[Judgement]]:
        judgements = await rate_candidates(ask, candidates(row), spec, view)
        return tuple(judgement.view(view) for judgement in judgements), judgements

    def count_inputs(row: T) -> int:
        return spec.asks.critiques * len(candidates(row))

    return ask_each(spec, journal, rows, rate_row, on_answer, label, count_inputs, view=view)


async def rate_candidates(
    ask: Ask, candidates: Sequence[Candidate], spec: JudgeSpec, view: View | None
) -> list[Judgement]:
    """Rate each candidate by the vote of the judge's critiques; return the ratings in order.

    A rating without the view's number abstains, with the outcome `no_number`. view: None if any
    number will do.
    """
    return await rate_all(rating_questions(candidates, spec, view), ask)


def rating_questions(
    candidates: Iterable[Candidate], spec: JudgeSpec, view: View | None
) -> list[Rate]:
    """Return the question about each candidate, shown and voted on as the judge's config says."""
    return [rating_question(candidate, spec.asks, view=view) for candidate in candidates]
