"""The same judging on five paths: the engine's limit, the service twice, and two plain loops."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from autoj_reward.client.session import open_judge
from experiments.speed.throughput.bare import BareEngine
from experiments.speed.throughput.config import ThroughputConfig
from experiments.speed.throughput.edge import over_http
from experiments.speed.throughput.naive import NaiveReward
from experiments.speed.throughput.tables import against, median_s, told
from experiments.speed.throughput.work import Side, Spent, alternate, by_client, candidates

CEILING = "vllm.LLM.generate, all at once"


async def measure(
    config: ThroughputConfig, bare: BareEngine, done: Callable[[], object]
) -> dict[str, Any]:
    """The rows of the five paths, and the ceiling's seconds for critiques alone."""
    naive = NaiveReward(config.judge, config.naive_batch, config.naive_candidates)
    async with open_judge(config.judge_on(1)) as handle, over_http(handle) as http:
        sides: dict[str, Side] = {
            CEILING: bare.judge,
            "service, by handle": by_client(handle),
            "service, by HTTP": by_client(http),
            f"loop, {config.loop_batch} a call": partial(bare.loop, batch=config.loop_batch),
            f"transformers generate, {config.naive_batch} a call": naive.judge,
        }
        found = await alternate(
            sides,
            config.rounds,
            partial(candidates, queries=config.queries, count=config.candidates),
            done,
        )
    return summary(found)


def summary(found: dict[str, list[Spent]]) -> dict[str, Any]:
    """Each path's rounds, and its median ratios to the ceiling of the same round."""
    ceiling = found[CEILING]
    critiques = [
        Spent(s.critiques_s, s.judgements, 0, s.usage) for s in ceiling if s.critiques_s is not None
    ]
    return {
        "critiques_s": median_s(critiques),
        "rows": [
            {
                "path": name,
                **told(rounds),
                "ratio": against(rounds, ceiling),
                "to_critiques": against(rounds, critiques),
            }
            for name, rounds in found.items()
        ],
    }
