"""Client process of the comparison: one peer asks the endpoint, and its costs are printed.

    python -m experiments.speed.asker PEER WORK

WORK is a `PeerWork` as JSON. A peer is an async context manager that is opened with the work. It
yields `rate(candidates)`, which returns one (rating, expected rating) per candidate, in order.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any

from openai import AsyncOpenAI

from autoj_reward.client.session import open_judge
from autoj_reward.config import JudgeConfig
from autoj_reward.errors import EngineError
from autoj_reward.formats.schema import load_format
from autoj_reward.types import Candidate
from experiments.speed.endpoint import EXPECTED, RATING
from experiments.speed.work import WARM_UP, made_candidates

GROUP = 32
"""Number of responses to one query."""
TIMEOUT_S = 600.0
"""Timeout of a request of the plain loop."""
Read = tuple[float, float | None]
"""Rating, and the expected rating if log-probabilities were requested."""
Rate = Callable[[Sequence[Candidate]], Awaitable[list[Read]]]
"""Function that rates candidates, in order."""
_RATING = re.compile(r"Rating: \[\[(\d+)\]\]")


@dataclass(frozen=True, slots=True)
class PeerWork:
    """Work of a peer."""

    address: str
    """Base URL of the endpoint."""
    judgements: int
    """Number of candidates to rate."""
    in_flight: int
    """Maximum number of requests in flight."""
    top: int
    """Alternatives requested for each token; 0 for no log-probabilities."""


@asynccontextmanager
async def our_client(work: PeerWork) -> AsyncIterator[Rate]:
    """Ask with this package as a script does: one judge, and one call for all candidates."""
    judge = {
        "kind": "openai",
        "base_url": work.address,
        "model": "judge",
        "format": "autoj-en",
        "distribution": work.top > 0,
        "serve": {"max_ongoing": work.in_flight},
    }
    async with open_judge(JudgeConfig.model_validate(judge)) as client:

        async def rate(rows: Sequence[Candidate]) -> list[Read]:
            found = await client.rate(rows, view="expected" if work.top else "rating")
            return [(own.rating, own.expected) for own in found if own.rating]

        yield rate


@asynccontextmanager
async def plain_loop(work: PeerWork) -> AsyncIterator[Rate]:
    """Ask with OpenAI's client in the shortest script: prompt, request and regular expression.

    A semaphore limits it to `in_flight` requests.
    """
    fmt = load_format("autoj-en")
    template = fmt.texts[fmt.protocol("single").template]
    options: dict[str, Any] = {"logprobs": True, "top_logprobs": work.top} if work.top else {}
    free = asyncio.Semaphore(work.in_flight)
    # The default connect timeout of 5 s can pass while the busy loop reads earlier answers.
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
            return float(rating), _expected(choice, rating) if work.top else None

        async def rate(rows: Sequence[Candidate]) -> list[Read]:
            return await asyncio.gather(*map(one, rows))

        yield rate


def _expected(choice: Any, rating: str) -> float:
    """Return the mean of the numbers among the alternatives at the rating's token.

    The rating is the last such token.
    """
    token = next(one for one in reversed(choice.logprobs.content) if one.token == rating)
    told = [(int(t.token), math.exp(t.logprob)) for t in token.top_logprobs if t.token.isdecimal()]
    return sum(n * p for n, p in told) / sum(p for _, p in told)


PEERS: dict[str, Callable[[PeerWork], AbstractAsyncContextManager[Rate]]] = {
    "autoj-reward": our_client,
    "AsyncOpenAI": plain_loop,
}
"""Peers by name."""


async def measure_peer(name: str, work: PeerWork) -> dict[str, float]:
    """Let a peer do the work. Return its processor and wall time in seconds.

    `cpu_s` is user and system time of this whole process for all judgements, `start_cpu_s` that
    before them, and `wall_s` is wall time. Raises EngineError for an answer that differs from the
    endpoint's.
    """
    rows = made_candidates("0", -(-work.judgements // GROUP), GROUP)[: work.judgements]
    async with PEERS[name](work) as rate:
        await rate(made_candidates("1", 1, WARM_UP))
        start_cpu_s, started = time.process_time(), time.perf_counter()
        found = await rate(rows)
        cpu_s, wall_s = time.process_time() - start_cpu_s, time.perf_counter() - started
    if len(found) != work.judgements:
        raise EngineError(f"{len(found)} answers to {work.judgements} judgements")
    for rating, expected in found:
        right = expected is None if not work.top else abs((expected or 0) - EXPECTED) < 1e-6
        if rating != RATING or not right:
            raise EngineError(f"rating {rating}, expected {expected}: not the endpoint's")
    return {"cpu_s": cpu_s, "wall_s": wall_s, "start_cpu_s": start_cpu_s}


def ask_in_process(name: str, work: PeerWork) -> dict[str, Any]:
    """Run `measure_peer` in a separate process.

    Raises EngineError with its last output if it fails.
    """
    command = [sys.executable, "-m", "experiments.speed.asker", name, json.dumps(asdict(work))]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    if told.returncode:
        raise EngineError(f"{name} failed: {told.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(told.stdout)
    return found


if __name__ == "__main__":
    asked = PeerWork(**json.loads(sys.argv[2]))
    print(json.dumps(asyncio.run(measure_peer(sys.argv[1], asked))))
