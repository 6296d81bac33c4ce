"""Figures of measured rounds, and their tables in Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from autoj_reward.types import Usage
from experiments.speed.throughput.work import Spent
from experiments.tables import report, tabled


def median_s(rounds: Sequence[Spent]) -> float:
    """Seconds of a round, by the median."""
    return statistics.median(spent.seconds for spent in rounds)


def against(rounds: Sequence[Spent], others: Sequence[Spent]) -> float:
    """Seconds a judgement over those of others in the same round; the median over the rounds."""
    return statistics.median(
        (one.seconds / one.judgements) / (other.seconds / other.judgements)
        for one, other in zip(rounds, others, strict=True)
    )


def told(rounds: Sequence[Spent]) -> dict[str, Any]:
    """What the rounds of one side show: each one's seconds, and tokens a judgement over all."""
    usage = sum((spent.usage for spent in rounds), Usage())
    count = sum(spent.judgements for spent in rounds)
    return {
        "seconds": median_s(rounds),
        "rounds_s": [spent.seconds for spent in rounds],
        "judgements": rounds[0].judgements,
        "per_second": statistics.median(spent.judgements / spent.seconds for spent in rounds),
        "rated": sum(spent.rated for spent in rounds) / count,
        "tokens_in": usage.tokens_in / count,
        "hit_rate": usage.tokens_cached / usage.tokens_in,
        "tokens_out": usage.tokens_out / count,
    }


SECONDS = "{seconds:.2f} s ({rounds})"
TOKENS = {
    "tokens in": "{tokens_in:.0f}",
    "hit rate": "{hit_rate:.2f}",
    "tokens out": "{tokens_out:.0f}",
}
TABLES = {
    "paths": (
        "Paths to the same judgements",
        {
            "path": "{path}",
            "judgements": "{judgements}",
            "seconds": SECONDS,
            "judgements/s": "{per_second:.2f}",
            "ratio": "{ratio:.3f}",
            **TOKENS,
            "rated": "{rated:.2f}",
        },
        "Ratio: seconds a judgement over those of the first path in the same round, median over "
        "the rounds. Tokens are a judgement's.",
    ),
    "prefix": (
        "Prefix cache",
        {
            "query": "{query_tokens} tokens",
            "judging": "{judging}",
            "cache on": SECONDS,
            "off": "{off_s:.2f} s",
            "ratio": "{ratio:.3f}",
            **TOKENS,
        },
        "Candidates of one query. Ratio: seconds with the cache over seconds without. Hit rate: "
        "share of the tokens in that were read from it, at the rating slots too.",
    ),
    "replicas": (
        "Replicas",
        {
            "replicas": "{replicas}",
            "devices": "{devices}",
            "judgements": "{judgements}",
            "seconds": SECONDS,
            "ratio": "{ratio:.3f}",
            "expected": "{expected:g}",
            "hit rate": "{hit_rate:.2f}",
        },
        "Ratio: seconds over those of one replica with its share of the work. Expected: 1 where "
        "every replica has devices of its own, and the number of replicas where they share them.",
    ),
}


def render(found: dict[str, Any]) -> str:
    """Every part that was measured."""
    sections = [
        (title, tabled(map(_shown, found[part]["rows"]), columns), note)
        for part, (title, columns, note) in TABLES.items()
        if part in found
    ]
    return report("Throughput", found, sections)


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"rounds": ", ".join(f"{seconds:.2f}" for seconds in row["rounds_s"])}
