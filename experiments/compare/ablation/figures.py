"""The figures of the ablation, from the candidates, answers and pairs that a run has gathered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from autoj_reward.evaluate.intervals import Draws
from autoj_reward.trainer.parts import Parts
from autoj_reward.types import JudgeInput
from experiments.compare.ablation.bias import (
    confident_disagreement,
    over_optimization,
    position,
    slopes,
)
from experiments.compare.ablation.config import RewardAblationConfig
from experiments.compare.ablation.measures import (
    KNOCKOUT,
    Scored,
    common_sizes,
    measure_reward,
    oracle,
)
from experiments.compare.ablation.pairs import measure_pairs, pair_values, some
from experiments.compare.ablation.policies import PolicySample
from experiments.compare.ablation.rewards import (
    FREE,
    KNOWN,
    PANEL,
    PANELS,
    POINTWISE,
    Group,
    Reward,
    cost,
    matches,
    rated,
    scored,
    singles,
)
from experiments.compare.material import Material
from experiments.compare.panel import Answers

PROXIES = (*PANEL, *PANELS)
"""The rewards whose over-optimization is measured: they score every candidate."""


@dataclass(slots=True)
class Run:
    """What a run has gathered before it measures.

    groups: graded candidates. ungraded: those without gold, which are left out. policies: graded
    responses of trained ones, with their divergences. answers: by judge. seconds: spent on new
    judgements of this run, with their number, by judge.
    """

    config: RewardAblationConfig
    parts: tuple[str, ...]
    material: Material
    groups: list[Group] = field(default_factory=list)
    ungraded: int = 0
    policies: dict[str, list[tuple[PolicySample, tuple[float | None, ...]]]] = field(
        default_factory=dict
    )
    answers: dict[str, Answers] = field(default_factory=dict)
    seconds: dict[str, tuple[float, int]] = field(default_factory=dict)

    @property
    def costly(self) -> list[Group]:
        """The candidates that every reward scores."""
        limits = self.config.costly
        return [group.head(limits.candidates) for group in self.groups[: limits.queries]]

    def inputs(self, reward: Reward) -> list[JudgeInput]:
        """What a reward asks of the candidates."""
        groups = self.costly if reward.costly else self.groups
        if reward.part == KNOCKOUT:
            return matches(groups)
        return singles(groups, self.config.samples.get(reward.judge, 1))

    @property
    def costly_material(self) -> Material:
        return some(self.material, self.config.costly.pairs, self.config.seed)


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
        if KNOCKOUT in asked:
            found["position"] = position(part, draws)
    if "eval_p" in run.parts:
        found["eval_p"] = _pairs(run)
    if run.policies:
        found["policies"] = {name: _policy(run, name, found, draws) for name in run.policies}
    return found


def _scored(run: Run, groups: Sequence[Group], names: Sequence[str]) -> list[Scored]:
    config = run.config
    panels = {name: Parts(own) for name, own in config.panels.items()}
    return scored(groups, run.answers, names, config.samples, config.seed, panels)


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
    """Eval-P on all pairs by the cheap rewards, and on the costly part of them by every one."""
    judges, config = run.answers.keys(), run.config
    names = [name for name, own in POINTWISE.items() if own.judge in judges]
    cheap = [*(name for name in names if not POINTWISE[name].costly), "length", "random"]
    found = {"all": _agreement(run, run.material, cheap)}
    if config.costly.pairs:
        part = some(run.material, config.costly.pairs, config.seed)
        found["costly"] = _agreement(run, part, [*names, "length", "random"])
    return found


def _agreement(run: Run, material: Material, names: Sequence[str]) -> dict[str, Any]:
    config = run.config
    values = {}
    for name in names:
        k = config.samples.get(POINTWISE[name].judge, 1) if name in POINTWISE else 1
        values[name] = pair_values(material, name, run.answers, k, config.seed)
    return measure_pairs(material, values, _reference(names))


def _policy(run: Run, name: str, found: Mapping[str, Any], draws: Draws) -> dict[str, Any]:
    """A trained policy beside best-of-N: measured divergence, and gains over the first policy.

    Units and queries are those of `over_optimization`; a gain is the mean of a query's responses
    less that of its candidates.
    """
    start = {group.query: group for group in run.groups}
    own = [(sample, gold) for sample, gold in run.policies[name] if sample.query in start]
    base = [start[sample.query] for sample, _ in own]
    gold = [
        _mean(values) - float(np.mean(group.gold))
        for (_, values), group in zip(own, base, strict=True)
    ]
    shown: dict[str, Any] = {
        "queries": len(own),
        "responses": sum(len(sample.responses) for sample, _ in own),
        "kl": draws.mean(np.array([np.mean(sample.divergences) for sample, _ in own])),
        "gold": draws.mean(np.array(gold)),
        "proxies": {},
    }
    for proxy, curve in found["over_optimization"].items():
        if not curve.get("proxy_sd") or proxy in PANELS:
            continue
        answers = run.answers[POINTWISE[proxy].judge]
        gains = []
        for (sample, _), group in zip(own, base, strict=True):
            after, before = (
                _mean([rated(POINTWISE[proxy], sample.query, text, answers, 1) for text in texts])
                for texts in (sample.responses, group.responses)
            )
            gains.append((after - before) / curve["proxy_sd"])
        shown["proxies"][proxy] = draws.mean(np.array(gains))
    return shown


def _mean(values: Sequence[float | None]) -> float:
    """Mean of the known values; nan without any."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else float("nan")
