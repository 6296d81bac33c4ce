"""Figures of measured rounds, and their tables in Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from autoj_reward.io.markdown import Table, section
from autoj_reward.types import Usage
from experiments.speed.throughput.work import Spent


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


def render(found: dict[str, Any]) -> str:
    """Every part that was measured; the head says by what and where."""
    machine = found["machine"]
    where = ", ".join(machine["gpus"]) or f"{machine['processor']}, {machine['cores']} cores"
    lines = ["# Throughput", "", f"`{found['command']}` on {where}; {found['at']}", ""]
    for part, (title, table, note) in TABLES.items():
        if part in found:
            lines += section(title, table(found[part]), note)
    return "\n".join(lines).rstrip() + "\n"


def _paths(part: dict[str, Any]) -> Table:
    head = (
        "path", "judgements", "seconds", "judgements/s", "ratio", "to critiques alone",
        "tokens in", "hit rate", "tokens out", "rated",
    )  # fmt: skip
    return [
        head,
        *(
            (
                row["path"],
                str(row["judgements"]),
                _seconds(row),
                f"{row['per_second']:.2f}",
                f"{row['ratio']:.3f}",
                f"{row['to_critiques']:.3f}",
                *_tokens(row),
                f"{row['rated']:.2f}",
            )
            for row in part["rows"]
        ),
    ]


def _prefix(part: dict[str, Any]) -> Table:
    head = ("query", "judging", "cache on", "off", "ratio", "tokens in", "hit rate", "tokens out")
    return [
        head,
        *(
            (
                f"{row['query_tokens']} tokens",
                "critique and rating" if row["critique"] else "rating alone",
                _seconds(row),
                f"{row['off_s']:.2f} s",
                f"{row['ratio']:.3f}",
                *_tokens(row),
            )
            for row in part["rows"]
        ),
    ]


def _slots(part: dict[str, Any]) -> Table:
    head = ("reading", "seconds", "to critiques alone", "slots read", "largest difference")
    return [
        head,
        *(
            (
                row["reading"],
                _seconds(row),
                f"{row['ratio']:.3f}",
                f"{row['slots']} of {row['judgements']}",
                "" if row["difference"] is None else f"{row['difference']:.2g}",
            )
            for row in part["rows"]
        ),
    ]


def _replicas(part: dict[str, Any]) -> Table:
    head = ("replicas", "devices", "judgements", "seconds", "ratio", "expected", "hit rate")
    return [
        head,
        *(
            (
                str(row["replicas"]),
                row["devices"],
                str(row["judgements"]),
                _seconds(row),
                f"{row['ratio']:.3f}",
                f"{row['expected']:g}",
                f"{row['hit_rate']:.2f}",
            )
            for row in part["rows"]
        ),
    ]


def _seconds(row: dict[str, Any]) -> str:
    rounds = ", ".join(f"{seconds:.2f}" for seconds in row["rounds_s"])
    return f"{row['seconds']:.2f} s ({rounds})"


def _tokens(row: dict[str, Any]) -> tuple[str, str, str]:
    return f"{row['tokens_in']:.0f}", f"{row['hit_rate']:.2f}", f"{row['tokens_out']:.0f}"


TABLES = {
    "paths": (
        "Paths to the same judgements",
        _paths,
        "Ratio: seconds a judgement over those of the first path in the same round, median over "
        "the rounds. To critiques alone: over the first path's seconds without its slot readings, "
        "which the plain loop and transformers do not do. Tokens are a judgement's.",
    ),
    "prefix": (
        "Prefix cache",
        _prefix,
        "Candidates of one query. Ratio: seconds with the cache over seconds without. Hit rate: "
        "share of the tokens in that were read from it, at the rating slots too.",
    ),
    "slots": (
        "Log-probabilities at the rating slot",
        _slots,
        "To critiques alone: seconds over those of critiques alone in the same round, median over "
        "the rounds. Slots read: by one pass only where the judge wrote its rating itself. Largest "
        "difference: of a first label token's probability to the two-pass reading.",
    ),
    "replicas": (
        "Replicas",
        _replicas,
        "Ratio: seconds over those of one replica with its share of the work. Expected: 1 where "
        "every replica has devices of its own, and the number of replicas where they share them.",
    ),
}
