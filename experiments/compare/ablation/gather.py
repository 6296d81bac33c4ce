"""Everything that is measured, gathered through the journal: candidates, grades and judgements."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing

from autoj_reward.journal import Journal
from autoj_reward.judge.make import judge_name
from autoj_reward.types import BadRow, JudgeInput
from experiments.compare.ablation.candidates import put_graded, read_rows, sampled_responses
from experiments.compare.ablation.config import RewardAblationConfig
from experiments.compare.ablation.figures import Run
from experiments.compare.ablation.pairs import alone_inputs
from experiments.compare.ablation.rewards import KNOWN
from experiments.compare.material import Material, read_material
from experiments.compare.panel import ask


async def gather(
    config: RewardAblationConfig, parts: tuple[str, ...], limit: int | None = None
) -> tuple[Run, list[BadRow]]:
    """Sample, grade and ask what the parts need; also the rows that were left out.

    limit: queries, and rows of labelled pairs. Raises AutojError.
    """
    rows = read_rows(config)
    bad = list(rows.bad)
    material, bad_pairs = _material(config, parts, limit)
    gathered = Run(config, parts, material)
    with closing(Journal(config.journal or config.output / "journal.sqlite")) as journal:
        asked = rows.rows[:limit]
        queries = [row.query for row in asked]
        responses = await sampled_responses(config.policy, queries, journal)
        await put_graded(gathered, asked, responses, bad, journal)
        for name, inputs in _inputs(gathered).items():
            own = config.judges[name]
            new = len(set(inputs) - journal.get(judge_name(own), inputs).keys())
            started = time.monotonic()
            gathered.answers[name] = await ask(own, journal, inputs)
            gathered.seconds[name] = (time.monotonic() - started, new)
    return gathered, [*bad, *bad_pairs]


def _material(
    config: RewardAblationConfig, parts: Sequence[str], limit: int | None
) -> tuple[Material, list[BadRow]]:
    """Test and validation pairs."""
    if "eval_p" not in parts:
        return Material(draws=config.draws), []
    own = config.model_copy(update={"data": config.data.model_copy(update={"rated": ()})})
    return read_material(own, config.format, limit)


def _inputs(run: Run) -> dict[str, list[JudgeInput]]:
    """All that each judge is asked, in the order of the config's judges."""
    config = run.config
    found: dict[str, list[JudgeInput]] = {name: [] for name in config.judges}
    for own in {(own.judge, own.part): own for own in KNOWN.values()}.values():
        asked = found.get(own.judge, [])
        if own.part in run.parts:
            asked += run.inputs(own)
        if "eval_p" in run.parts and not own.costly:
            asked += alone_inputs(run.material)
    return {name: list(dict.fromkeys(inputs)) for name, inputs in found.items() if inputs}
