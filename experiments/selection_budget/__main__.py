"""What best-of-N keeps of its gain when the judge is asked for less.

    python -m experiments.selection_budget --config configs/selection_budget.yaml

Full judging, the rating slot alone, the halving of `autoj best-of-n` on several budgets, adaptive
k, scalar-first routing and a knock-out choose among the same candidates: graded ones of the
ablation, whose judgements are asked for once and then replayed, and simulated ones, whose judges
have stated noise. Parts: `recorded` (rating slot and critique), `scalar`, `sampled` (k critiques),
`knockout` (comparisons) and `simulated`, which needs no model: `--parts simulated`. Everything
asked is in the ablation's journal first, so the same command goes on where it stopped. Results:
selection_budget.json, a table in selection_budget.md and a curve a judge, NAME.svg.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from typing import Any

from autoj_reward.config import load_config
from experiments.ablation.config import RewardAblationConfig
from experiments.ablation.figures import Run
from experiments.ablation.gather import gather, journal_of
from experiments.ablation.measures import Draws
from experiments.command import run_command
from experiments.machine import describe_machine, installed_versions
from experiments.selection_budget.config import PARTS, SelectionBudgetConfig
from experiments.selection_budget.figures import choose, measure
from experiments.selection_budget.report import render_curve, render_text
from experiments.selection_budget.scenes import final_matches, recorded, simulated
from experiments.selection_budget.strategies import Scene, strategies
from rollouts.files import plain, write_json, write_text
from rollouts.judging import asking

RECORDED = "recorded"


async def run(
    config: SelectionBudgetConfig, parts: tuple[str, ...], command: str
) -> dict[str, Any]:
    """Ask, replay and measure; returns what is in `selection_budget.json`. Raises AutojError."""
    judges: dict[str, Any] = {}
    left_out: list[Any] = []
    if RECORDED in parts:
        base = load_config(RewardAblationConfig, config.base, config.common)
        gathered, bad = await _gathered(config, base, parts)
        judges[RECORDED] = await _measured(
            config, parts, recorded(gathered), base.critiques, RECORDED
        )
        left_out = [plain(row) for row in bad]
    if "simulated" in parts:
        everything = tuple(part for part in PARTS if part != "simulated")
        for name, judge in config.simulation.judges.items():
            scenes = simulated(config.simulation, judge, config.k, config.seed)
            found = await _measured(config, everything, scenes, config.k, name)
            judges[name] = found | {"noise": f"Simulated: {judge!r}."}
    result: dict[str, Any] = plain(
        {
            "command": command,
            "at": time.strftime("%Y-%m-%d"),
            "machine": describe_machine(),
            "versions": installed_versions(),
            "parts": parts,
            "view": config.view,
            "bootstrap": config.bootstrap,
            "config": config.model_dump(mode="json"),
            "left_out": left_out,
            "judges": judges,
        }
    )
    write_json(config.output / "selection_budget.json", result)
    write_text(config.output / "selection_budget.md", render_text(result))
    for name, own in result["judges"].items():
        write_text(config.output / f"{name}.svg", render_curve(own))
    return result


async def _gathered(
    config: SelectionBudgetConfig, base: RewardAblationConfig, parts: Sequence[str]
) -> tuple[Run, list[Any]]:
    """The ablation's run of these parts, and the matches of the knock-outs."""
    asked = ("direct", "critique", *(part for part in ("scalar", "sampled") if part in parts))
    base.parts(",".join(asked))
    gathered, bad = await gather(base, asked)
    if "knockout" in parts:
        base.parts("knockout")
        inputs = final_matches(gathered, max(config.finalists))
        journal = journal_of(base)
        try:
            async with asking(base.judges["greedy"], journal, inputs) as ask:
                found = dict(zip(inputs, await ask(inputs), strict=True))
        finally:
            journal.close()
        gathered.answers["greedy"] = {**gathered.answers["greedy"], **found}
    return gathered, bad


async def _measured(
    config: SelectionBudgetConfig,
    parts: Sequence[str],
    scenes: Sequence[Scene],
    k: int,
    label: str,
) -> dict[str, Any]:
    tried = strategies(parts, config.shares, config.finalists, k, config.view)
    chosen = await choose(scenes, tried, f"choosing: {label}")
    return measure(scenes, chosen, config.target, Draws(config.bootstrap, config.seed))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print the tables."""

    def work(config: SelectionBudgetConfig, flags: argparse.Namespace, command: str) -> str:
        return render_text(asyncio.run(run(config, config.wanted(flags.parts), command)))

    extra = {"--parts": {"metavar": "A,B", "help": f"some of: {', '.join(PARTS)}"}}
    return run_command(
        "experiments.selection_budget", __doc__, SelectionBudgetConfig, work, arguments, extra
    )


if __name__ == "__main__":
    sys.exit(main())
