"""What the prefix cache spares: the same work with and without it, by the query's length."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from experiments.speed.throughput.bare import BareEngine
from experiments.speed.throughput.config import ThroughputConfig
from experiments.speed.throughput.tables import against, told
from experiments.speed.throughput.work import Side, alternate, candidates


async def measure(
    config: ThroughputConfig, bare: BareEngine, done: Callable[[], object]
) -> dict[str, Any]:
    """A row for each length of the query, with and without a critique."""
    rows = []
    for words in (config.short_words, config.long_words):
        for critique in (True, False):
            sides: dict[str, Side] = {
                name: partial(bare.judge, critique=critique, cached=name == "on")
                for name in ("on", "off")
            }
            piece = partial(candidates, queries=1, count=config.candidates, words=words)
            found = await alternate(sides, config.rounds, piece, done)
            query = bare.tokens.continuation(piece("1a")[0].query)
            rows.append(
                {
                    "query_tokens": len(query),
                    "critique": critique,
                    **told(found["on"]),
                    "off_s": told(found["off"])["seconds"],
                    "ratio": against(found["on"], found["off"]),
                }
            )
    return {"rows": rows}
