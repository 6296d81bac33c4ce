"""A judge with a progress bar, as every job without stages of its own wants it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from tqdm import tqdm

from autoj_reward.client.client import Require, RewardClient, no_requirement
from autoj_reward.client.session import open_judge
from autoj_reward.client.used import FirstJudgements
from autoj_reward.config import JudgeConfig, View
from autoj_reward.journal import Journal
from autoj_reward.judge.make import judge_name
from autoj_reward.models.views import resolve_view
from autoj_reward.questions.race import Ask
from autoj_reward.types import JudgeInput, Judgement


@asynccontextmanager
async def judging(
    config: JudgeConfig,
    journal: Journal,
    total: int | None,
    label: str = "judging",
    require: Require = no_requirement,
) -> AsyncIterator[RewardClient]:
    """`open_judge` with a bar over `total` judgements, those from the journal included."""
    with tqdm(total=total, desc=label, unit="judgement") as bar:

        def progress(_judgement: Judgement, _reused: bool) -> None:
            bar.update()

        opened = open_judge(config, journal=journal, progress=progress, require=require)
        async with opened as reward:
            yield reward


@asynccontextmanager
async def asking(
    config: JudgeConfig,
    journal: Journal,
    total: int | None = None,
    label: str | None = None,
    view: View | None = None,
    require: Require | None = None,
) -> AsyncIterator[Ask]:
    """How to ask a judge; it is started with the first input that the journal lacks. After its
    first judgements a line says what is used.

    view: the number that counts of ratings; it is a ConfigError, before anything is judged, if the
    judge does not give it. require: in place of that check, as for `RewardClient`.
    """
    said, name = label or f"judging: {config.model}", judge_name(config)
    given = partial(resolve_view, view, "choose", None) if view else no_requirement
    starting = asyncio.Lock()
    opened = list[tuple[RewardClient, FirstJudgements]]()

    async with AsyncExitStack() as stack:

        async def ask(items: Sequence[JudgeInput]) -> list[Judgement]:
            async with starting:
                if not opened:
                    on_record = journal.get(name, items)
                    kept = {i for i, own in on_record.items() if not (view and own.lacks(view))}
                    if kept >= set(items):
                        return [on_record[item] for item in items]
                    judge = judging(config, journal, total, said, require or given)
                    reward = await stack.enter_async_context(judge)
                    opened.append((reward, FirstJudgements(reward, view)))
            reward, first = opened[0]
            found = await reward.judge(items, view)
            first.add(own.with_number(view) if view and own.rating else own for own in found)
            return found

        yield ask
        for _, first in opened:
            first.end()
