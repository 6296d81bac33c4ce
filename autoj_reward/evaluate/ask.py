"""Judgements for an evaluation: asked through the journal, so that a killed run goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from autoj_reward.client.in_order import in_order
from autoj_reward.client.judging import asking
from autoj_reward.config import JudgeConfig
from autoj_reward.journal import Journal
from autoj_reward.models import critiques_of, format_of
from autoj_reward.prompts.format import JudgeFormat
from autoj_reward.select.aggregate import mean_of_critiques, swap_consistent
from autoj_reward.types import Candidate, Comparison, JudgeInput, Judgement

T = TypeVar("T")


def require_protocol(config: JudgeConfig, kind: str) -> None:
    """FormatError unless the judge can do `single` or `pairwise`; starts nothing. A scalar reward
    model can do both."""
    fmt = format_of(config)
    if isinstance(fmt, JudgeFormat):
        fmt.slot(kind)


def judge_each(
    config: JudgeConfig,
    journal: Path,
    asked: Iterable[tuple[T, Sequence[JudgeInput]]],
    done: Callable[[T, list[Judgement]], None],
    label: str,
    total: int | None = None,
) -> None:
    """Have inputs judged and give each item its judgements, items in order and read as they are
    needed. The judge is started only for what is not on record.

    total: judge inputs to come, for the bar.
    """

    async def work() -> None:
        async with asking(config, record, total, label) as ask:

            async def one(item: tuple[T, Sequence[JudgeInput]]) -> tuple[T, list[Judgement]]:
                return item[0], await ask(item[1])

            await in_order(asked, one, lambda told: done(*told), size=lambda item: len(item[1]))

    record = Journal(journal)
    try:
        asyncio.run(work())
    finally:
        record.close()


def judge_all(
    config: JudgeConfig, journal: Path, inputs: Sequence[JudgeInput], label: str
) -> list[Judgement]:
    """One judgement an input, in order. The judge is started only for what is not on record."""
    found: dict[JudgeInput, Judgement] = {}
    alike: dict[str, dict[JudgeInput, None]] = {}
    for item in inputs:  # what shares a query goes to one replica
        alike.setdefault(item.query, {})[item] = None

    def keep(items: tuple[JudgeInput, ...], judgements: list[Judgement]) -> None:
        found.update(zip(items, judgements, strict=True))

    asked = ((tuple(items), tuple(items)) for items in alike.values())
    judge_each(config, journal, asked, keep, label, sum(map(len, alike.values())))
    return [found[item] for item in inputs]


def rate_all(
    config: JudgeConfig, journal: Path, candidates: Sequence[Candidate], label: str
) -> list[Judgement]:
    """One rating a candidate, in order: the mean over the judge's critiques."""
    k = critiques_of(config)
    inputs = [item for candidate in candidates for item in rating_inputs(candidate, k)]
    found = judge_all(config, journal, inputs, label)
    return [mean_of_critiques(found[n : n + k]) for n in range(0, len(found), k)]


def rate_each(
    config: JudgeConfig,
    journal: Path,
    asked: Iterable[tuple[T, Sequence[Candidate]]],
    done: Callable[[T, list[Judgement]], None],
    label: str,
    total: int,
) -> None:
    """As `judge_each`, with one rating a candidate: the mean over the judge's critiques.

    total: candidates to come.
    """
    k = critiques_of(config)

    def told(item: T, found: list[Judgement]) -> None:
        done(item, [mean_of_critiques(found[n : n + k]) for n in range(0, len(found), k)])

    inputs = ((item, [i for one in own for i in rating_inputs(one, k)]) for item, own in asked)
    judge_each(config, journal, inputs, told, label, k * total)


def rating_inputs(candidate: Candidate, critiques: int) -> list[JudgeInput]:
    """What a judge is asked for one rating, the mean over so many critiques."""
    c = candidate
    return [JudgeInput(c.query, (c.response,), s, context=c.context) for s in range(critiques)]


def joint(orders: Sequence[Judgement]) -> Comparison:
    """The comparison of a pair that was judged in one order, or in both."""
    return swap_consistent(orders[0], orders[1] if len(orders) > 1 else None)
