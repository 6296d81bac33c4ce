"""This package, as a script uses it: a client of the judge, and one call for all candidates."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from autoj_reward.client.session import open_judge
from autoj_reward.config import JudgeConfig
from autoj_reward.types import Candidate
from experiments.speed.peers.asker import Rate, Read, Work


def judge(work: Work) -> JudgeConfig:
    """The endpoint as a judge with Auto-J's prompts."""
    return JudgeConfig.model_validate(
        {
            "kind": "openai",
            "base_url": work.address,
            "model": "judge",
            "format": "autoj-en",
            "distribution": work.top > 0,
            "serve": {"max_ongoing": work.in_flight},
        }
    )


@asynccontextmanager
async def opened(work: Work) -> AsyncIterator[Rate]:
    """Rate candidates through the client."""
    async with open_judge(judge(work)) as client:

        async def rate(rows: Sequence[Candidate]) -> list[Read]:
            found = await client.rate(rows, view="expected" if work.top else "rating")
            return [(own.rating, own.expected) for own in found if own.rating]

        yield rate
