"""Judgements for an evaluation: asked through the journal, so that a killed run goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TypeVar

from autoj_reward.client.client import Require
from autoj_reward.client.in_flight import in_order
from autoj_reward.client.judging import asking
from autoj_reward.config import JudgeConfig, View
from autoj_reward.formats.schema import JudgeFormat
from autoj_reward.journal import Journal
from autoj_reward.models import critiques_of, format_of
from autoj_reward.questions.aggregate import mean_of_critiques, swap_consistent
from autoj_reward.questions.race import Ask
from autoj_reward.types import Candidate, Comparison, JudgeInput, Judgement

T = TypeVar("T")
R = TypeVar("R")


def require_protocol(config: JudgeConfig, kind: str) -> None:
    """FormatError unless the judge can do `single` or `pairwise`; starts nothing. A scalar reward
    model can do both."""
    fmt = format_of(config)
    if isinstance(fmt, JudgeFormat):
        fmt.protocol(kind)


def ask_each(
    config: JudgeConfig,
    journal: Path,
    items: Iterable[T],
    work: Callable[[Ask, T], Awaitable[R]],
    done: Callable[[R], object],
    label: str,
    total: int | None,
    size: Callable[[T], int],
    view: View | None = None,
    require: Require | None = None,
) -> None:
    """Work on items with a judge, and tell what it came to, items in order and read as they are
    needed. The judge is started only for what is not on record.

    total: judge inputs to come, for the bar. size: those of an item. view: the number that counts
    of ratings; ConfigError before anything is judged if the judge does not give it. require: in
    place of that check, as for `RewardClient`.
    """

    async def every() -> None:
        async with asking(config, record, total, label, view, require) as ask:
            await in_order(items, partial(work, ask), done, size=size)

    with closing(Journal(journal)) as record:
        asyncio.run(every())


def judge_each(
    config: JudgeConfig,
    journal: Path,
    asked: Iterable[tuple[T, Sequence[JudgeInput]]],
    done: Callable[[T, list[Judgement]], object],
    label: str,
    total: int | None = None,
    view: View | None = None,
) -> None:
    """As `ask_each`: the judgements of the inputs beside each item."""

    async def one(ask: Ask, item: tuple[T, Sequence[JudgeInput]]) -> tuple[T, list[Judgement]]:
        return item[0], await ask(item[1])

    def told(found: tuple[T, list[Judgement]]) -> None:
        done(*found)

    ask_each(config, journal, asked, one, told, label, total, lambda item: len(item[1]), view)


def rate_each(
    config: JudgeConfig,
    journal: Path,
    asked: Iterable[tuple[T, Sequence[Candidate]]],
    done: Callable[[T, list[Judgement]], object],
    label: str,
    total: int,
    view: View,
) -> None:
    """As `judge_each`: the rating of each candidate beside an item. total: candidates to come. A
    rating without the view's number abstains as `no_number`."""
    k = critiques_of(config)

    def told(item: T, found: list[Judgement]) -> None:
        done(item, _means(found, k, view))

    inputs = ((item, _inputs(candidates, k)) for item, candidates in asked)
    judge_each(config, journal, inputs, told, label, k * total, view)


async def rated(
    ask: Ask, candidates: Sequence[Candidate], critiques: int, view: View
) -> list[Judgement]:
    """One rating a candidate, in order: the mean over so many critiques. One without the view's
    number abstains as `no_number`."""
    return _means(await ask(_inputs(candidates, critiques)), critiques, view)


def _inputs(candidates: Sequence[Candidate], critiques: int) -> list[JudgeInput]:
    return [item for one in candidates for item in rating_inputs(one, critiques)]


def _means(found: Sequence[Judgement], critiques: int, view: View) -> list[Judgement]:
    starts = range(0, len(found), critiques)
    return [mean_of_critiques(found[n : n + critiques]).with_number(view) for n in starts]


def rating_inputs(candidate: Candidate, critiques: int) -> list[JudgeInput]:
    """What a judge is asked for one rating, the mean over so many critiques."""
    c = candidate
    return [
        JudgeInput("single", c.query, (c.response,), s, context=c.context) for s in range(critiques)
    ]


def joint(orders: Sequence[Judgement]) -> Comparison:
    """The comparison of a pair that was judged in one order, or in both."""
    return swap_consistent(orders[0], orders[1] if len(orders) > 1 else None)
