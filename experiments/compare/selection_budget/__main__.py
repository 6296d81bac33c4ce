"""What best-of-N keeps of its gain when the judge is asked for less.

    python -m experiments.compare.selection_budget --config configs/selection_budget.yaml

Full judging, the rating slot alone, the halving of `autoj best-of-n` on several budgets, adaptive
k, scalar-first routing and a knock-out choose among the same candidates: graded ones of the
ablation and outputs of ranked systems, whose judgements are asked for once and then replayed, and
simulated ones, whose judges have stated noise. Parts: `recorded` and `systems` (rating slot and
critique), to them `scalar`, `sampled` (k critiques) and `knockout` (comparisons), and `simulated`,
which needs no model: `--parts simulated`. Everything asked is in the ablation's journal first, so
the same command goes on where it stopped. Results: selection_budget.json, a table in
selection_budget.md and a curve of each kind of candidates, selection_budget-KIND.svg.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from autoj_reward.config import load_config
from experiments.compare.ablation.config import RewardAblationConfig
from experiments.compare.ablation.gather import gather, journal_of
from experiments.compare.ablation.measures import KNOCKOUT
from experiments.compare.ablation.rewards import POINTWISE, Group, singles
from experiments.compare.panel import Answers, ask
from experiments.compare.selection_budget.config import ASKED, PARTS, SelectionBudgetConfig
from experiments.compare.selection_budget.figures import choose, measure
from experiments.compare.selection_budget.report import plots, render
from experiments.compare.selection_budget.scenes import (
    final_matches,
    read_systems,
    recorded,
    simulated,
)
from experiments.compare.selection_budget.strategies import Scene, strategies
from experiments.study import Study, command

RECORDED, SYSTEMS = "recorded", "systems"


async def study(run: Study[SelectionBudgetConfig]) -> str:
    """Ask, replay and measure. Raises AutojError."""
    config, parts = run.config, run.parts
    judges: dict[str, Any] = {}
    left_out: list[Any] = []
    if ASKED.intersection(parts):
        base = load_config(RewardAblationConfig, config.base, config.common)
        base.wanted(",".join((*_pointwise(parts), *(p for p in parts if p == KNOCKOUT))))
        if RECORDED in parts:
            gathered, left_out = await gather(base, _pointwise(parts))
            scenes = await _scenes(config, base, parts, gathered.costly, gathered.answers)
            judges[RECORDED] = await _measured(config, parts, scenes, base.critiques, RECORDED)
        if SYSTEMS in parts and config.systems:
            groups = read_systems(config.systems, base.data, config.seed)
            scenes = await _scenes(config, base, parts, groups, await _answers(base, parts, groups))
            found = await _measured(config, parts, scenes, base.critiques, SYSTEMS)
            judges[SYSTEMS] = found | {"about": "Gold: the system's figure on the leaderboard."}
    if "simulated" in parts:
        everything = tuple(part for part in PARTS if part != "simulated")
        for name, judge in config.simulation.judges.items():
            scenes = simulated(config.simulation, judge, config.k, config.seed)
            found = await _measured(config, everything, scenes, config.k, name)
            judges[name] = found | {"about": f"Simulated: {judge!r}."}
    result = {"left_out": left_out, "judges": judges}
    return run.write("selection_budget", result, render, plots)


def _pointwise(parts: Sequence[str]) -> tuple[str, ...]:
    """The ablation's parts that rate what these parts need."""
    return ("direct", "critique", *(part for part in ("scalar", "sampled") if part in parts))


async def _answers(
    base: RewardAblationConfig, parts: Sequence[str], groups: Sequence[Group]
) -> dict[str, Answers]:
    """Every judgement of single candidates, by judge of the ablation."""
    judges = {own.judge for own in POINTWISE.values() if own.part in _pointwise(parts)}
    with closing(journal_of(base)) as journal:
        return {
            name: await ask(judge, journal, singles(groups, base.samples.get(name, 1)))
            for name, judge in base.judges.items()
            if name in judges
        }


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
        with closing(journal_of(base)) as journal:
            met = await ask(base.judges["greedy"], journal, inputs)
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
    return measure(scenes, chosen, config.target, config.draws)


main = command(SelectionBudgetConfig, study, PARTS)

if __name__ == "__main__":
    sys.exit(main())
