"""The figures of the ablation, from the candidates, answers and pairs that a run has gathered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from autoj_reward.evaluate.statistics import Draws
from autoj_reward.trainer.parts import Parts
from autoj_reward.types import JudgeInput
from experiments.compare.ablation.bias import (
    confident_disagreement,
    over_optimization,
    slopes,
)
from experiments.compare.ablation.config import RewardAblationConfig
from experiments.compare.ablation.measures import (
    Scored,
    common_sizes,
    measure_reward,
    oracle,
)
from experiments.compare.ablation.pairs import measure_pairs, pair_values
from experiments.compare.ablation.rewards import (
    FREE,
    KNOWN,
    PANEL,
    PANELS,
    Group,
    Reward,
    cost,
    scored,
    singles,
)
from experiments.compare.panel import Answers, Material

PROXIES = (*PANEL, *PANELS)
"""The rewards whose over-optimization is measured: they score every candidate."""


@dataclass(slots=True)
class Run:
    """What a run has gathered before it measures.

    groups: graded candidates. ungraded: those without gold, which are left out. answers: by judge.
    seconds: spent on new judgements of this run, with their number, by judge.
    """

    config: RewardAblationConfig
    parts: tuple[str, ...]
    material: Material
    groups: list[Group] = field(default_factory=list)
    ungraded: int = 0
    answers: dict[str, Answers] = field(default_factory=dict)
    seconds: dict[str, tuple[float, int]] = field(default_factory=dict)

    @property
    def costly(self) -> list[Group]:
        """The candidates that every reward scores."""
        limits = self.config.costly
        return [group.head(limits.candidates) for group in self.groups[: limits.queries]]

    def inputs(self, reward: Reward) -> list[JudgeInput]:
        """What a reward asks of the candidates."""
        return singles(self.costly if reward.costly else self.groups)


def figures(run: Run) -> dict[str, Any]:
    """Everything that is measured. `sets`: on all candidates the cheap rewards, and on the costly
    part of them every reward."""
    config, asked = run.config, run.config.rewards(run.parts)
    draws = config.draws
    panels = [*PANELS] if asked.keys() >= set(PANEL) else []
    cheap = [*(name for name, costly in asked.items() if not costly), *panels, *FREE]
    everything = _scored(run, run.groups, cheap)
    gold = np.concatenate([group.gold for group in everything])
    found: dict[str, Any] = {
        "gold_figures": {
            "mean": float(gold.mean()),
            "sd": float(gold.std()),
            "queries_that_vary": sum(bool(np.ptp(group.gold) > 0) for group in everything),
            "ungraded": run.ungraded,
        },
        "sets": {"all": _set(everything, cheap, _reference(cheap), draws)},
        "over_optimization": {
            name: over_optimization(everything, name, draws) for name in PROXIES if name in cheap
        },
        "cost": _costs(run),
        "asked": {
            name: {"new": new, "seconds": seconds} for name, (seconds, new) in run.seconds.items()
        },
    }
    if any(asked.values()):
        names = [*asked, *panels, *FREE]
        part = _scored(run, run.costly, names)
        found["sets"]["costly"] = _set(part, names, _reference(names), draws)
    if "eval_p" in run.parts:
        found["eval_p"] = _pairs(run)
    return found


def _scored(run: Run, groups: Sequence[Group], names: Sequence[str]) -> list[Scored]:
    config = run.config
    panels = {name: Parts(own) for name, own in config.panels.items()}
    return scored(groups, run.answers, names, config.seed, panels)


def _reference(names: Sequence[str]) -> str | None:
    """The judge's expected rating, after its critique where that was measured."""
    return next((name for name in ("expected", "direct") if name in names), None)


def _set(
    groups: Sequence[Scored], names: Sequence[str], reference: str | None, draws: Draws
) -> dict[str, Any]:
    sizes = common_sizes(groups)
    best = oracle(groups, sizes)
    return {
        "queries": len(groups),
        "candidates": sum(len(group.gold) for group in groups),
        "sizes": sizes,
        "reference": reference,
        "mean": draws.mean(np.array([group.gold.mean() for group in groups])),
        "oracle": {n: draws.mean(best[:, k]) for k, n in enumerate(sizes)},
        "rewards": {
            name: measure_reward(groups, name, reference, draws)
            | {
                "slopes": slopes(groups, name, draws),
                "confident_disagreement": confident_disagreement(groups, name, draws),
            }
            for name in names
        },
    }


def _costs(run: Run) -> dict[str, Any]:
    """By part: what a judgement of its candidates cost, be it of this run or from the journal."""
    return {
        own.part: cost([run.answers[own.judge][item] for item in dict.fromkeys(run.inputs(own))])
        for own in {own.part: own for own in KNOWN.values()}.values()
        if own.part in run.parts
    }


def _pairs(run: Run) -> dict[str, Any]:
    """Eval-P by the cheap rewards."""
    names = [name for name, own in KNOWN.items() if own.judge in run.answers and not own.costly]
    values = {
        name: pair_values(run.material, name, run.answers, run.config.seed)
        for name in (*names, "length", "random")
    }
    return measure_pairs(run.material, values, _reference(names))
