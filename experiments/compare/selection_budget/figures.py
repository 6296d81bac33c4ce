"""What every strategy recovers of the oracle's gain, and for which share of the tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tqdm import tqdm

from autoj_reward.evaluate.intervals import Draws, Statistic, difference, ratio
from autoj_reward.types import Usage
from experiments.compare.selection_budget.strategies import FULL, Choice, Scene, Strategy, halving

Chosen = Mapping[str, Sequence[Choice]]


async def choose(
    scenes: Sequence[Scene], strategies: Mapping[str, Strategy], label: str
) -> dict[str, list[Choice]]:
    """What each strategy chooses in every scene."""
    found: dict[str, list[Choice]] = {name: [] for name in strategies}
    for scene in tqdm(scenes, desc=label, unit="query"):
        for name, strategy in strategies.items():
            found[name].append(await strategy(scene))
    return found


def measure(scenes: Sequence[Scene], chosen: Chosen, target: float, draws: Draws) -> dict[str, Any]:
    """By strategy: shares of full judging's tokens, and of the oracle's gain, with differences to
    full judging on the same queries.

    written: tokens that the judge wrote. computed: written, and read outside the cache. Both are
    sums over all queries. The oracle takes the best by gold; gain is over a random candidate.
    """
    gold = [scene.gold for scene in scenes]
    best, mean = (np.array([f(g) for g in gold]) for f in (np.max, np.mean))
    full = _total(chosen[FULL])

    def gain(name: str) -> Statistic:
        own = np.array([g[c.index] for g, c in zip(gold, chosen[name], strict=True)])
        return ratio(own - mean, best - mean)

    rows = {}
    for name, choices in chosen.items():
        spent = _total(choices)
        rows[name] = {
            "written": _written(spent) / _written(full),
            "computed": _computed(spent) / _computed(full),
            "recovered": draws.over(gain(name), len(scenes)),
            "less_full": draws.over(difference(gain(name), gain(FULL)), len(scenes)),
        }
    return {
        "queries": len(scenes),
        "candidates": sum(map(len, gold)),
        "oracle_gain": draws.mean(best - mean),
        "full_usage": full,
        "strategies": rows,
        "target": _tested(rows, target),
    }


def _tested(rows: Mapping[str, Any], target: float) -> dict[str, Any]:
    """Whether halving at the target's share keeps to it, and is not worse than full judging.

    not_below_full: the interval of the paired difference is not below 0; it may be above.
    at_least_full_low: the weaker claim that its gain is at least the lower end of full judging's
    own interval. None without an interval.
    """
    name = halving(target)
    own, full = rows[name], rows[FULL]["recovered"]
    value, high = own["recovered"].value, own["less_full"].high
    return {
        "strategy": name,
        "within_written": own["written"] <= target,
        "within_computed": own["computed"] <= target,
        "not_below_full": None if high is None else high >= 0,
        "at_least_full_low": None if None in (value, full.low) else full.low <= value,
    }


def _total(choices: Sequence[Choice]) -> Usage:
    return sum((choice.usage for choice in choices), Usage())


def _written(usage: Usage) -> int:
    return usage.tokens_out


def _computed(usage: Usage) -> int:
    return usage.tokens_in - usage.tokens_cached + usage.tokens_out
