"""Judgements for rows: asked through a journal, so that a killed run goes on."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from autoj_reward.client.client import ViewsCheck
from autoj_reward.client.in_flight import run_in_order
from autoj_reward.client.judging import open_ask
from autoj_reward.config import View
from autoj_reward.formats.schema import JudgeFormat
from autoj_reward.journal import Journal
from autoj_reward.models.spec import JudgeSpec
from autoj_reward.questions.ask import Ask
from autoj_reward.questions.rate import Rate, rate_all
from autoj_reward.types import Candidate, Judgement, Usage

if TYPE_CHECKING:  # it needs numpy, which the client does without
    from autoj_reward.evaluate.statistics import ResultFields, Scores

T = TypeVar("T")
R = TypeVar("R")


class JudgementCost:
    """Counts judgements, none of which it keeps: their number, outcomes and usage."""

    def __init__(self) -> None:
        self._outcomes: Counter[str] = Counter()
        self._forced, self._usage = 0, Usage()

    def add(self, judgements: Iterable[Judgement]) -> None:
        """Count judgements."""
        for judgement in judgements:
            self._outcomes[judgement.outcome.value] += 1
            self._forced += judgement.forced
            self._usage += judgement.usage

    def fields(self) -> ResultFields:
        """Return the counts, and the mean usage of a judgement: tokens, and seconds in the
        replica."""
        n, total = self._outcomes.total(), asdict(self._usage)
        return {
            "judgements": n,
            "outcomes": dict(self._outcomes),
            "forced": self._forced,
            "mean": {name: round(value / n, 3) if n else None for name, value in total.items()},
        }


def require_protocol(spec: JudgeSpec, kind: str) -> None:
    """Raise FormatError unless the judge can do `single` or `pairwise`; starts nothing. A scalar
    reward model can do both."""
    if isinstance(spec.format, JudgeFormat):
        spec.format.protocol(kind)


def ask_each(
    spec: JudgeSpec,
    journal: Path,
    rows: Iterable[T],
    question: Callable[[Ask, T], Awaitable[tuple[R, Sequence[Judgement]]]],
    done: Callable[[T, R], object],
    label: str,
    size: Callable[[T], int],
    total: int | None = None,
    view: View | None = None,
    require: ViewsCheck | None = None,
) -> JudgementCost:
    """Ask a judge a question about every row, pass each row on with its answer, in order, and
    return what the answers cost.

    Rows are read as they are needed. The judge is started only for what the journal lacks.

    question: returns its answer and the judgements that the cost counts. size: judge inputs of a
    row; total: those of all rows, for the progress bar; None reads the rows once more to count
    them. view: the number that counts of ratings; ConfigError before anything is judged if the
    judge does not give it. require: in place of that check, as for `RewardClient`.
    """
    cost, total = JudgementCost(), sum(map(size, rows)) if total is None else total

    async def answer(ask: Ask, row: T) -> tuple[T, R, Sequence[Judgement]]:
        return row, *await question(ask, row)

    def pass_on(answered: tuple[T, R, Sequence[Judgement]]) -> None:
        row, found, judgements = answered
        cost.add(judgements)
        done(row, found)

    async def answer_all(record: Journal) -> None:
        async with open_ask(spec, record, total, label, view, require) as ask:
            await run_in_order(rows, lambda row: answer(ask, row), pass_on, size=size)

    with closing(Journal(journal)) as record:
        asyncio.run(answer_all(record))
    return cost


def rate_each(
    spec: JudgeSpec,
    journal: Path,
    rows: Iterable[T],
    candidates: Callable[[T], Sequence[Candidate]],
    done: Callable[[T, Scores], object],
    label: str,
    view: View,
) -> JudgementCost:
    """Rate the candidates of every row, and pass each row on with their ratings: the view's
    numbers, None where the judge abstained. Else as `ask_each`."""
    k = spec.critiques

    async def question(ask: Ask, row: T) -> tuple[Scores, list[Judgement]]:
        found = await rate_candidates(ask, candidates(row), k, view)
        return tuple(judgement.view(view) for judgement in found), found

    def size(row: T) -> int:
        return k * len(candidates(row))

    return ask_each(spec, journal, rows, question, done, label, size, view=view)


async def rate_candidates(
    ask: Ask, candidates: Sequence[Candidate], critiques: int, view: View
) -> list[Judgement]:
    """Return one judgement a candidate, in order, with the mean rating of `k` critiques.

    A judgement without the view's number abstains as `no_number`."""
    return await rate_all([Rate(one, critiques, view=view) for one in candidates], ask)
