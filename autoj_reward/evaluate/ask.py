"""Judgements for an evaluation: asked through the journal, so that a killed run goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from autoj_reward.client.judging import asking
from autoj_reward.config import JudgeConfig
from autoj_reward.journal import Journal
from autoj_reward.models import critiques_of, format_of
from autoj_reward.prompts.format import JudgeFormat
from autoj_reward.select.aggregate import mean_of_critiques, swap_consistent
from autoj_reward.types import Candidate, Comparison, Contest, JudgeInput, Judgement


def require_protocol(config: JudgeConfig, kind: str) -> None:
    """FormatError unless the judge can do `single` or `pairwise`; starts nothing. A scalar reward
    model can do both."""
    fmt = format_of(config)
    if isinstance(fmt, JudgeFormat):
        fmt.slot(kind)


def judge_all(
    config: JudgeConfig, journal: Path, inputs: Sequence[JudgeInput], label: str
) -> list[Judgement]:
    """One judgement an input, in order. The judge is started only for what is not on record."""

    async def work() -> list[Judgement]:
        async with asking(config, record, inputs, label) as ask:
            return await ask(inputs)

    record = Journal(journal)
    try:
        return asyncio.run(work())
    finally:
        record.close()


def rate_all(
    config: JudgeConfig, journal: Path, candidates: Sequence[Candidate], label: str
) -> list[Judgement]:
    """One rating a candidate, in order: the mean over the judge's critiques."""
    k = critiques_of(config)
    inputs = [
        JudgeInput(c.query, (c.response,), s, context=c.context)
        for c in candidates
        for s in range(k)
    ]
    found = judge_all(config, journal, inputs, label)
    return [mean_of_critiques(found[n : n + k]) for n in range(0, len(found), k)]


def compare_all(
    config: JudgeConfig,
    journal: Path,
    pairs: Sequence[Contest],
    label: str,
    *,
    swap: bool = True,
    rounds: int = 1,
) -> list[Comparison]:
    """One comparison a pair, in order, by both orders unless swap is False.

    rounds: how often all are compared, the first round's comparisons first.
    """
    inputs = [item for k in range(rounds) for pair in pairs for item in pair.inputs(swap, k)]
    found = judge_all(config, journal, inputs, label)
    if not swap:
        return [swap_consistent(judgement, None) for judgement in found]
    return [swap_consistent(*both) for both in zip(found[::2], found[1::2], strict=True)]
