"""One peer in a process of its own: asks the endpoint, and prints what that took.

    python -m experiments.speed.peers.asker PEER WORK

WORK is a `Work` as JSON. A peer is a module with `opened(work)`, an async context manager that
gives `rate(candidates)`: one (rating, expected rating) a candidate, in order.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any

from autoj_reward.errors import EngineError
from autoj_reward.types import Candidate
from experiments.speed.peers.endpoint import EXPECTED, RATING
from experiments.speed.throughput.work import WARM_UP, candidates

PEERS = {
    "autoj-reward": "experiments.speed.peers.ours",
    "AsyncOpenAI": "experiments.speed.peers.plain",
}
"""Modules of the peers by name."""
GROUP = 32
"""Responses to one query."""
Read = tuple[float, float | None]
"""A rating, and the expected rating where log-probabilities were asked for."""
Rate = Callable[[Sequence[Candidate]], Awaitable[list[Read]]]


@dataclass(frozen=True, slots=True)
class Work:
    """What a peer is to ask.

    address: base URL of the endpoint. top: alternatives of each token, 0 for no log-probabilities.
    """

    address: str
    judgements: int
    in_flight: int
    top: int


async def measure(name: str, work: Work) -> dict[str, float]:
    """Ask, and return the seconds: of the processor (user and system, of this whole process) for
    all judgements, until they began, and of the clock. EngineError for an answer that is not the
    endpoint's."""
    peer = import_module(PEERS[name])
    rows = candidates("0", -(-work.judgements // GROUP), GROUP)[: work.judgements]
    async with peer.opened(work) as rate:
        await rate(candidates("1", 1, WARM_UP))
        start_cpu_s, started = time.process_time(), time.perf_counter()
        found = await rate(rows)
        cpu_s, wall_s = time.process_time() - start_cpu_s, time.perf_counter() - started
    _require_right(found, work)
    return {"cpu_s": cpu_s, "wall_s": wall_s, "start_cpu_s": start_cpu_s}


def _require_right(found: Sequence[Read], work: Work) -> None:
    if len(found) != work.judgements:
        raise EngineError(f"{len(found)} answers to {work.judgements} judgements")
    for rating, expected in found:
        right = expected is None if not work.top else abs((expected or 0) - EXPECTED) < 1e-6
        if rating != RATING or not right:
            raise EngineError(f"rating {rating}, expected {expected}: not the endpoint's")


def run(name: str, work: Work) -> dict[str, Any]:
    """`measure` in a process of its own. EngineError with its last words if it fails."""
    command = [sys.executable, "-m", "experiments.speed.peers.asker", name]
    told = subprocess.run(
        [*command, json.dumps(asdict(work))], capture_output=True, text=True, check=False
    )
    if told.returncode:
        raise EngineError(f"{name} failed: {told.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(told.stdout)
    return found


if __name__ == "__main__":
    asked = Work(**json.loads(sys.argv[2]))
    print(json.dumps(asyncio.run(measure(sys.argv[1], asked))))
