"""A judge with a progress bar, as every job without stages of its own wants it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from tqdm import tqdm

from autoj_reward.client.client import Require, RewardClient, no_requirement
from autoj_reward.client.session import open_judge
from autoj_reward.config import JudgeConfig
from autoj_reward.journal import Journal
from autoj_reward.judge.make import judge_name
from autoj_reward.select.race import Ask
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
    require: Require = no_requirement,
) -> AsyncIterator[Ask]:
    """How to ask a judge; it is started with the first input that the journal lacks.

    require: as for `RewardClient`.
    """
    said, name = label or f"judging: {config.model}", judge_name(config)
    starting, opened = asyncio.Lock(), list[RewardClient]()
    async with AsyncExitStack() as stack:

        async def ask(items: Sequence[JudgeInput]) -> list[Judgement]:
            async with starting:
                if not opened:
                    on_record = journal.get(name, items)
                    if on_record.keys() >= set(items):
                        return [on_record[item] for item in items]
                    judge = judging(config, journal, total, said, require)
                    opened.append(await stack.enter_async_context(judge))
            return await opened[0].judge(items)

        yield ask
