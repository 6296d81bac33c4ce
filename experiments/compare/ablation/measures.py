"""What the ablation measures of each reward: best-of-N, correlation with gold, ties, differences.

Pure functions over scored candidates; every interval is bootstrapped over queries. A reward that
abstained on a candidate is nan there: the candidate then never wins unless all do, and it is left
out of correlations and pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autoj_reward.evaluate.intervals import Array, Draws, Estimate, Statistic, difference, ratio
from autoj_reward.evaluate.metrics import Correlation, correlation, pearson, spearman
from autoj_reward.evaluate.within_query import best_drawn, orders, tie_counts
from autoj_reward.watch.statistics import default_sizes

MEASURES: Mapping[str, Correlation] = {"pearson": pearson, "spearman": spearman}


@dataclass(frozen=True, slots=True)
class Scored:
    """One query's candidates: gold and rewards, arrays of one number a candidate.

    scores: by name of the reward, nan where it abstained.
    """

    query: str
    responses: tuple[str, ...]
    gold: Array
    scores: Mapping[str, Array]


def common_sizes(groups: Sequence[Scored]) -> tuple[int, ...]:
    """2, 4, 8 ... up to the fewest candidates of a query, and that number itself."""
    return tuple(n for n in default_sizes(min(len(g.gold) for g in groups)) if n > 1)


def best_of(groups: Sequence[Scored], reward: str, sizes: Sequence[int]) -> Array:
    """Expected gold of each query's chosen candidate: [queries, sizes]."""
    return np.array(
        [[best_drawn(g.scores[reward], g.gold, size) for size in sizes] for g in groups]
    )


def oracle(groups: Sequence[Scored], sizes: Sequence[int]) -> Array:
    """The same for a choice by gold itself."""
    return np.array([[best_drawn(g.gold, g.gold, size) for size in sizes] for g in groups])


def within(groups: Sequence[Scored], reward: str, measure: Correlation) -> Array:
    """The correlation of reward and gold inside each query; nan where it is undefined."""
    return orders((g.scores[reward] for g in groups), (g.gold for g in groups), measure)


def overall(
    groups: Sequence[Scored], reward: str, measure: Correlation
) -> tuple[Statistic, list[int]]:
    """The correlation of reward and gold over all candidates with both, and the query of each."""
    score = np.concatenate([g.scores[reward] for g in groups])
    gold = np.concatenate([g.gold for g in groups])
    query = np.repeat(np.arange(len(groups)), [len(g.gold) for g in groups])
    known = ~np.isnan(score)
    return correlation(measure, score[known], gold[known]), [int(q) for q in query[known]]


def measure_reward(
    groups: Sequence[Scored], reward: str, reference: str | None, draws: Draws
) -> dict[str, object]:
    """All figures of one reward, and its differences to the reference where it is another."""
    sizes = common_sizes(groups)
    chosen, best = best_of(groups, reward, sizes), oracle(groups, sizes)
    mean = np.array([g.gold.mean() for g in groups])
    ties = tie_counts(group.scores[reward] for group in groups)
    figures: dict[str, object] = {
        "abstained": int(sum(np.isnan(g.scores[reward]).sum() for g in groups)),
        "best_of": {n: draws.mean(chosen[:, k]) for k, n in enumerate(sizes)},
        "recovered": {
            n: draws.over(ratio(chosen[:, k] - mean, best[:, k] - mean), len(groups))
            for k, n in enumerate(sizes)
        },
        "tie_rate": draws.over(ratio(*ties.T), len(groups)),
    }
    for name, how in MEASURES.items():
        statistic, query = overall(groups, reward, how)
        figures[name] = draws.over(statistic, len(query), query)
        figures[f"within_{name}"] = draws.mean(within(groups, reward, how))
    if reference is not None and reference != reward:
        figures["less_reference"] = _differences(groups, (reward, reference), sizes[-1], draws)
    return figures


def _differences(
    groups: Sequence[Scored], names: tuple[str, str], size: int, draws: Draws
) -> dict[str, Estimate]:
    """First less second on the same queries, and for correlations on the same candidates."""
    first, second = names
    common = [_both_known(group, names) for group in groups]
    chosen = [best_of(groups, name, [size])[:, 0] for name in names]
    found = {"best_of": draws.mean(chosen[0] - chosen[1])}
    for name, how in MEASURES.items():
        one, query = overall(common, first, how)
        other, _ = overall(common, second, how)
        found[name] = draws.over(difference(one, other), len(query), query)
        inside = within(common, first, how) - within(common, second, how)
        found[f"within_{name}"] = draws.mean(inside)
    return found


def _both_known(group: Scored, names: tuple[str, str]) -> Scored:
    """The group with both scores nan wherever one of them is."""
    known = ~(np.isnan(group.scores[names[0]]) | np.isnan(group.scores[names[1]]))
    scores = {name: np.where(known, group.scores[name], np.nan) for name in names}
    return Scored(group.query, group.responses, group.gold, scores)
