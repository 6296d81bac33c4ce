"""The least that a script can do with OpenAI's own client: a prompt, a request, a regex."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from openai import AsyncOpenAI

from autoj_reward.formats.schema import load_format
from autoj_reward.types import Candidate
from experiments.speed.peers.asker import Rate, Read, Work

TIMEOUT_S = 600.0
_RATING = re.compile(r"Rating: \[\[(\d+)\]\]")


@asynccontextmanager
async def opened(work: Work) -> AsyncIterator[Rate]:
    """Rate candidates one request each, `in_flight` at a time."""
    fmt = load_format("autoj-en")
    template = fmt.texts[fmt.protocol("single").template]
    options: dict[str, Any] = {"logprobs": True, "top_logprobs": work.top} if work.top else {}
    free = asyncio.Semaphore(work.in_flight)
    # By default 5 s to connect, which pass while a busy loop reads the answers before.
    opening = AsyncOpenAI(base_url=work.address, api_key="none", timeout=TIMEOUT_S)
    async with opening as client:

        async def one(row: Candidate) -> Read:
            prompt = template.replace("{query}", row.query).replace("{response}", row.response)
            async with free:
                answer = await client.chat.completions.create(
                    model="judge",
                    messages=[{"role": "user", "content": prompt}],
                    temperature=0.0,
                    max_tokens=1024,
                    **options,
                )
            [choice] = answer.choices
            [rating] = _RATING.findall(choice.message.content)
            return float(rating), expected(choice, rating) if work.top else None

        async def rate(rows: Sequence[Candidate]) -> list[Read]:
            return await asyncio.gather(*map(one, rows))

        yield rate


def expected(choice: Any, rating: str) -> float:
    """The mean of the numbers among the alternatives of the last token that is the rating."""
    token = next(one for one in reversed(choice.logprobs.content) if one.token == rating)
    told = [(int(t.token), math.exp(t.logprob)) for t in token.top_logprobs if t.token.isdecimal()]
    return sum(n * p for n, p in told) / sum(p for _, p in told)
