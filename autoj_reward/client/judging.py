"""A judge with a progress bar, as every job without stages of its own wants it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from tqdm import tqdm

from autoj_reward.client.client import RewardClient
from autoj_reward.client.session import open_judge
from autoj_reward.config import JudgeConfig
from autoj_reward.journal import Journal
from autoj_reward.judge.make import judge_name
from autoj_reward.select.race import Ask
from autoj_reward.types import JudgeInput, Judgement


@asynccontextmanager
async def judging(
    config: JudgeConfig, journal: Journal, total: int, label: str = "judging"
) -> AsyncIterator[RewardClient]:
    """`open_judge` with a bar over `total` judgements, those from the journal included."""
    with tqdm(total=total, desc=label, unit="judgement") as bar:

        def progress(_judgement: Judgement, _reused: bool) -> None:
            bar.update()

        async with open_judge(config, journal=journal, progress=progress) as reward:
            yield reward


@asynccontextmanager
async def asking(
    config: JudgeConfig, journal: Journal, inputs: Sequence[JudgeInput], label: str | None = None
) -> AsyncIterator[Ask]:
    """How to ask a judge these inputs; it is started only if the journal lacks one of them."""
    on_record = journal.get(judge_name(config), inputs)
    if on_record.keys() >= set(inputs):

        async def recall(items: Sequence[JudgeInput]) -> list[Judgement]:
            return [on_record[item] for item in items]

        yield recall
        return
    said = label or f"judging: {config.model}"
    async with judging(config, journal, len(set(inputs)), said) as reward:
        yield reward.judge
