"""Who judges the same work: paths to the engine, its cache on and off, several replicas."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import uvicorn

from autoj_reward.client.client import RewardClient
from autoj_reward.client.remote import HttpBackend
from autoj_reward.client.session import open_judge
from autoj_reward.service.api import make_app
from autoj_reward.service.serve import listen
from experiments.speed.throughput.bare import BareEngine
from experiments.speed.throughput.config import ThroughputConfig
from experiments.speed.throughput.tables import against, median_s, told
from experiments.speed.throughput.work import Side, Spent, alternate, by_client, candidates

CEILING = "vllm.LLM.generate, all at once"


async def measure_paths(
    config: ThroughputConfig, bare: BareEngine, done: Callable[[], object]
) -> dict[str, Any]:
    """The engine's limit, and the service by handle and by HTTP."""
    async with open_judge(config.judge_on(1)) as handle, over_http(handle) as http:
        sides: dict[str, Side] = {
            CEILING: bare.judge,
            "service, by handle": by_client(handle),
            "service, by HTTP": by_client(http),
        }
        piece = partial(candidates, queries=config.queries, count=config.candidates)
        return paths(await alternate(sides, config.rounds, piece, done))


def paths(found: dict[str, list[Spent]]) -> dict[str, Any]:
    """Each path's rounds, and its median ratios to the ceiling of the same round."""
    return {
        "rows": [
            {"path": name, **told(rounds), "ratio": against(rounds, found[CEILING])}
            for name, rounds in found.items()
        ]
    }


async def measure_prefix(
    config: ThroughputConfig, bare: BareEngine, done: Callable[[], object]
) -> dict[str, Any]:
    """What the prefix cache spares: a row for each length of the query, with and without a
    critique."""
    rows = []
    for words in (config.short_words, config.long_words):
        for judging, critique in (("critique and rating", True), ("rating alone", False)):
            sides: dict[str, Side] = {
                name: partial(bare.judge, critique=critique, cached=name == "on")
                for name in ("on", "off")
            }
            piece = partial(candidates, queries=1, count=config.candidates, words=words)
            found = await alternate(sides, config.rounds, piece, done)
            rows.append(
                {
                    "query_tokens": len(bare.tokens.continuation(piece("1a")[0].query)),
                    "judging": judging,
                    **told(found["on"]),
                    "off_s": median_s(found["off"]),
                    "ratio": against(found["on"], found["off"]),
                }
            )
    return {"rows": rows}


async def measure_replicas(config: ThroughputConfig, done: Callable[[], object]) -> dict[str, Any]:
    """A row for one replica, and one for several on several times the work, one after the other."""
    import torch

    found: dict[int, list[Spent]] = {}
    for count in (1, config.replicas):
        piece = partial(candidates, queries=config.queries * count, count=config.candidates)
        async with open_judge(config.judge_on(count)) as client:
            measured = await alternate({"service": by_client(client)}, config.rounds, piece, done)
        found[count] = measured["service"]
    return {"rows": replicas(found, int(torch.cuda.device_count()))}


def replicas(found: dict[int, list[Spent]], gpus: int) -> list[dict[str, Any]]:
    """What each number of replicas took, over what the least took. gpus: of this machine; a
    cluster may have more."""
    one = median_s(found[min(found)])
    return [
        {
            "replicas": count,
            "devices": f"{min(count, gpus)} GPUs" if gpus else "all cores, shared",
            "expected": max(1.0, count / max(1, gpus)),
            **told(rounds),
            "ratio": median_s(rounds) / one,
        }
        for count, rounds in found.items()
    ]


class _Server(uvicorn.Server):
    """Leaves Ctrl-C to the measurement."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def over_http(client: RewardClient) -> AsyncIterator[RewardClient]:
    """A client that asks over HTTP, with a token, what `client` answers. The HTTP side
    shares this process and its event loop; `autoj serve` has a process for it."""
    token = secrets.token_urlsafe()
    with listen("127.0.0.1", 0) as listening:
        options = uvicorn.Config(
            make_app(client, token).guard, log_config=None, access_log=False, lifespan="off"
        )
        server = _Server(options)
        serving = asyncio.create_task(server.serve([listening]))
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        try:
            backend = await HttpBackend.connect(address, token, start_s=30)
            try:
                yield RewardClient(backend)
            finally:
                await backend.close()
        finally:
            server.should_exit = True
            await serving
