"""Critiques in the judge's own words, to go on training with: rejection sampling by the reference.

A judge that learned its rating slot behind another's critiques reads more out of them than its own
contain. This samples the judge on its training rows, keeps of each row the critique that ended well
and came nearest to the reference rating, and writes it with the reference as its rating: training
rows in the published form. Rows held out, and queries of `data.exclude`, are never asked. The
journal beside the output makes the same command go on after a kill.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

from pydantic import Field

from autoj_reward.client.judging import judging
from autoj_reward.config import Block, JudgeConfig
from autoj_reward.data.labelled import (
    JudgeData,
    Rated,
    data_path,
    excluded_queries,
    is_held_out,
    read_rated,
)
from autoj_reward.formats.read import Written
from autoj_reward.formats.render import render
from autoj_reward.formats.schema import JudgeFormat, load_format, parse_rating
from autoj_reward.io.files import write_jsonl
from autoj_reward.journal import Journal
from autoj_reward.models import format_and_wrapper
from autoj_reward.types import JudgeInput, Judgement
from experiments.compare.critique_health import examine


class OwnCritiquesConfig(Block):
    """samples: critiques a row. tolerance: how far a critique's own rating may be from the
    reference, in ratings. output: the file of them."""

    output: Path
    judge: JudgeConfig
    samples: int = Field(2, ge=1, le=64)
    tolerance: float = Field(2.0, ge=0)


async def write_critiques(config: OwnCritiquesConfig, data: JudgeData) -> str:
    """Ask the judge, choose, and write a row of the published form for each that had a usable one.
    Return what was written in words."""
    fmt = load_format(format_and_wrapper(config.judge)[0])
    rows = training_rows(data, fmt)
    items = [
        JudgeInput("single", row.query, (row.response,), n)
        for row in rows
        for n in range(config.samples)
    ]
    with closing(Journal(config.output.with_name(config.output.name + ".journal.sqlite"))) as kept:
        async with judging(config.judge, kept, len(set(items)), "critiques") as reward:
            judgements = await reward.judge(items)
    k = config.samples
    groups = (judgements[n * k : n * k + k] for n in range(len(rows)))
    found = (choose(*pair, fmt, config.tolerance) for pair in zip(rows, groups, strict=True))
    usable = [row for row in found if row]
    write_jsonl(config.output, usable)
    return f"{len(usable)} of {len(rows)} rows with a usable critique: {config.output}"


def training_rows(data: JudgeData, fmt: JudgeFormat) -> list[Rated]:
    """The rated rows that may be trained on."""
    measured = excluded_queries(data, fmt)
    return [
        row
        for name in data.rated
        for row in read_rated(data_path(data, name), fmt).rows
        if not is_held_out(row.query, data.held_out) and row.query not in measured
    ]


def choose(
    row: Rated, judgements: Iterable[Judgement], fmt: JudgeFormat, tolerance: float
) -> dict[str, Any] | None:
    """The training row of the critique nearest to the reference; None if none is usable."""
    prompt = render(JudgeInput("single", row.query, (row.response,)), fmt)[-1].text
    usable = []
    for judgement in judgements:
        parsed = parse_rating(judgement.critique, fmt)
        if not isinstance(parsed, Written) or judgement.rating is None or judgement.forced:
            continue
        health = examine(judgement.critique, prompt)
        if health.loops or health.copies or abs(parsed.value - row.rating) > tolerance:
            continue
        expected = judgement.view("expected")
        near = abs((parsed.value if expected is None else expected) - row.rating)
        usable.append((near, parsed.start, judgement.critique))
    if not usable:
        return None
    _, start, text = min(usable)
    target = text[:start] + f"{row.rating:g}" + text[start:].lstrip("0123456789.")
    return {"usrmsg": prompt, "target_output": target.rstrip(), "pred_score": f"{row.rating:g}"}
