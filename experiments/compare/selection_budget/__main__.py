"""What best-of-N keeps of its gain when the judge is asked for less.

    python -m experiments.compare.selection_budget --config configs/selection_budget.yaml

Full judging, the rating slot alone, the halving of `autoj best-of-n` on several budgets, adaptive
k, scalar-first routing and a knock-out choose among the same candidates: graded ones of the
ablation and outputs of ranked systems, whose judgements are asked for once and then replayed, and
simulated ones, whose judges have stated noise. Parts: `recorded` and `systems` (rating slot and
critique), to them `scalar`, `sampled` (k critiques) and `knockout` (comparisons), and `simulated`,
which needs no model: `--parts simulated`. Everything asked is in the ablation's journal first, so
the same command goes on where it stopped. Results: selection_budget.json, a table in
selection_budget.md and a curve of each kind of candidates, NAME.svg.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from autoj_reward.client.judging import asking
from autoj_reward.config import load_config
from autoj_reward.io.files import plain, write_json, write_text
from autoj_reward.io.provenance import describe_machine, installed_versions
from autoj_reward.types import JudgeInput
from experiments.compare.ablation.config import RewardAblationConfig
from experiments.compare.ablation.gather import gather, journal_of
from experiments.compare.ablation.measures import KNOCKOUT, Draws
from experiments.compare.ablation.rewards import POINTWISE, Answers, Group, singles
from experiments.compare.selection_budget.config import ASKED, PARTS, SelectionBudgetConfig
from experiments.compare.selection_budget.figures import choose, measure
from experiments.compare.selection_budget.report import render_curve, render_text
from experiments.compare.selection_budget.scenes import final_matches, recorded, simulated
from experiments.compare.selection_budget.strategies import Scene, strategies
from experiments.compare.selection_budget.systems import read_systems
from experiments.study import parts_flag, run_command

RECORDED, SYSTEMS = "recorded", "systems"


async def run(
    config: SelectionBudgetConfig, parts: tuple[str, ...], command: str
) -> dict[str, Any]:
    """Ask, replay and measure; returns what is in `selection_budget.json`. Raises AutojError."""
    judges: dict[str, Any] = {}
    left_out: list[Any] = []
    if ASKED.intersection(parts):
        base = load_config(RewardAblationConfig, config.base, config.common)
        base.parts(",".join((*_pointwise(parts), *(p for p in parts if p == KNOCKOUT))))
        if RECORDED in parts:
            gathered, bad = await gather(base, _pointwise(parts))
            scenes = await _scenes(config, base, parts, gathered.costly, gathered.answers)
            judges[RECORDED] = await _measured(config, parts, scenes, base.critiques, RECORDED)
            left_out = [plain(row) for row in bad]
        if SYSTEMS in parts and config.systems:
            groups = read_systems(config.systems, base.data, config.seed)
            answers = await _answers(base, parts, groups)
            scenes = await _scenes(config, base, parts, groups, answers)
            found = await _measured(config, parts, scenes, base.critiques, SYSTEMS)
            judges[SYSTEMS] = found | {"about": "Gold: the system's figure on the leaderboard."}
    if "simulated" in parts:
        everything = tuple(part for part in PARTS if part != "simulated")
        for name, judge in config.simulation.judges.items():
            scenes = simulated(config.simulation, judge, config.k, config.seed)
            found = await _measured(config, everything, scenes, config.k, name)
            judges[name] = found | {"about": f"Simulated: {judge!r}."}
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


def _pointwise(parts: Sequence[str]) -> tuple[str, ...]:
    """The ablation's parts that rate what these parts need."""
    return ("direct", "critique", *(part for part in ("scalar", "sampled") if part in parts))


async def _answers(
    base: RewardAblationConfig, parts: Sequence[str], groups: Sequence[Group]
) -> dict[str, Answers]:
    """Every judgement of single candidates, by judge of the ablation."""
    judges = {own.judge for own in POINTWISE.values() if own.part in _pointwise(parts)}
    return {
        name: await _asked(base, name, singles(groups, base.samples.get(name, 1)))
        for name in base.judges
        if name in judges
    }


async def _asked(base: RewardAblationConfig, judge: str, inputs: Sequence[JudgeInput]) -> Answers:
    journal = journal_of(base)
    try:
        async with asking(base.judges[judge], journal, inputs) as ask:
            return dict(zip(inputs, await ask(inputs), strict=True))
    finally:
        journal.close()


async def _scenes(
    config: SelectionBudgetConfig,
    base: RewardAblationConfig,
    parts: Sequence[str],
    groups: Sequence[Group],
    answers: Mapping[str, Answers],
) -> list[Scene]:
    """The candidates with what is known of them; the matches of knock-outs are asked for here."""
    if KNOCKOUT in parts:
        inputs = final_matches(recorded(groups, answers), max(config.finalists))
        met = await _asked(base, "greedy", inputs)
        answers = {**answers, "greedy": {**answers["greedy"], **met}}
    return recorded(groups, answers)


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

    return run_command(
        "experiments.compare.selection_budget",
        __doc__,
        SelectionBudgetConfig,
        work,
        arguments,
        parts_flag(PARTS),
    )


if __name__ == "__main__":
    sys.exit(main())
