"""`autoj score` and `autoj compare`: judge every row of a file, same order out.

The journal stands beside the output file, so the same command after a crash goes on where it
stopped.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from autoj_reward.client.client import RewardClient
from autoj_reward.client.judging import judging
from autoj_reward.config import ScoreConfig, load_config
from autoj_reward.io.files import to_json, write_json, write_jsonl
from autoj_reward.io.rows import (
    PairRow,
    Rows,
    SingleRow,
    read_pairs,
    read_singles,
    require_clean,
    require_usable,
)
from autoj_reward.journal import Journal
from autoj_reward.types import Candidate, Comparison, Judgement, Verdict

Row = TypeVar("Row", SingleRow, PairRow)


def score(source: str, output: str, config: str | None, sets: Sequence[str], strict: bool) -> int:
    """Rate query and response of every row."""
    checked = load_config(ScoreConfig, config, sets)
    rows = read_singles(source)

    async def work(reward: RewardClient) -> list[dict[str, Any]]:
        found = await reward.rate([Candidate(r.query, r.response) for r in rows.rows])
        return [rating_fields(judgement) for judgement in found]

    per_row = checked.judge.critiques
    return _run(rows, source, output, checked, strict, work, per_row)


def compare(source: str, output: str, config: str | None, sets: Sequence[str], strict: bool) -> int:
    """Compare response_1 and response_2 of every row."""
    checked = load_config(ScoreConfig, config, sets)
    rows = read_pairs(source)

    async def work(reward: RewardClient) -> list[dict[str, Any]]:
        pairs = [(r.query, r.response_1, r.response_2) for r in rows.rows]
        found = await reward.compare(pairs, swap=checked.swap)
        return [verdict_fields(comparison) for comparison in found]

    return _run(rows, source, output, checked, strict, work, 2 if checked.swap else 1)


def rating_fields(judgement: Judgement) -> dict[str, Any]:
    """What `autoj score` adds to a row."""
    return {
        "outcome": judgement.outcome.value,
        "reason": judgement.reason,
        "rating": judgement.view("rating"),
        "expected": judgement.view("expected"),
        "direct": judgement.view("direct"),
        "forced": judgement.forced,
        "critique": judgement.critique,
        "flags": list(judgement.flags),
        "judge": judgement.judge,
    }


def verdict_fields(comparison: Comparison) -> dict[str, Any]:
    """What `autoj compare` adds to a row: the joint verdict and what each order said."""
    failed = comparison.verdict is Verdict.FAILED
    first = next((o for o in comparison.orders if not o.ok), comparison.orders[0])
    return {
        "outcome": first.outcome.value if failed else "ok",
        "reason": comparison.reason,
        "verdict": comparison.verdict.value,
        "orders": [
            {
                "verdict": o.verdict.value if o.verdict else None,
                "forced": o.forced,
                "critique": o.critique,
            }
            for o in comparison.orders
        ],
        "judge": comparison.orders[0].judge,
    }


def joined(fields: dict[str, Any], added: dict[str, Any]) -> dict[str, Any]:
    """A row of the output: the input's own fields in their order, then what the judge adds.

    A name that both have belongs to the judge; the row's own value is kept under `overwritten`,
    a key that only such rows have.
    """
    clash = {k: v for k, v in fields.items() if k in added}
    if clash and "overwritten" in fields:
        clash["overwritten"] = fields["overwritten"]
    own = {k: v for k, v in fields.items() if k not in clash}
    return own | ({"overwritten": clash} if clash else {}) | added


def _run(
    rows: Rows[Row],
    source: str,
    output: str,
    config: ScoreConfig,
    strict: bool,
    work: Callable[[RewardClient], Awaitable[list[dict[str, Any]]]],
    per_row: int,
) -> int:
    if strict:
        require_clean(rows)
    require_usable(rows, source)
    target = Path(output)
    journal = Journal(target.with_name(target.name + ".journal.sqlite"))
    try:
        added = asyncio.run(_judge(config, journal, work, len(rows.rows) * per_row))
    finally:
        journal.close()
    write_jsonl(target, (joined(r.fields, a) for r, a in zip(rows.rows, added, strict=True)))
    outcomes = Counter(fields["outcome"] for fields in added)
    summary = {
        "rows": len(added),
        "outcomes": dict(outcomes),
        "left_out": [to_json(b) for b in rows.bad],
    }
    write_json(target.with_name(target.name + ".summary.json"), summary)
    said = ", ".join(f"{n} {name}" for name, n in outcomes.most_common())
    print(f"{len(added)} rows: {said}; {len(rows.bad)} left out; results: {target}")
    return 0


async def _judge(
    config: ScoreConfig,
    journal: Journal,
    work: Callable[[RewardClient], Awaitable[list[dict[str, Any]]]],
    total: int,
) -> list[dict[str, Any]]:
    async with judging(config.judge, journal, total) as reward:
        return await work(reward)
