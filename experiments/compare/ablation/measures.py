"""What the ablation measures of each reward: best-of-N, correlation with gold, ties, differences.

Pure functions over scored candidates; every interval is bootstrapped over queries. A reward that
abstained on a candidate is nan there: the candidate then never wins unless all do, and it is left
out of correlations and pairs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from autoj_reward.evaluate.metrics import (
    Correlation,
    Estimate,
    Indices,
    Shown,
    Statistic,
    correlation,
    difference,
    joint,
    pearson,
    spearman,
)
from autoj_reward.types import Verdict
from experiments.draws import Array, Draws
from rollouts.best_of_n.curve import default_sizes

KNOCKOUT = "knockout"
MEASURES: Mapping[str, Correlation] = {"pearson": pearson, "spearman": spearman}
ORDERS = 500
"""Random orders in which the candidates of a query meet in knock-outs, from all their matches."""


@dataclass(frozen=True, slots=True)
class Scored:
    """One query's candidates: gold and rewards, arrays of one number a candidate.

    scores: by name of the reward, nan where it abstained. matches: of candidates i < j, what the
    judge said of (i, j) and of (j, i), FIRST being the one shown first; empty if not compared.
    """

    query: str
    responses: tuple[str, ...]
    gold: Array
    scores: Mapping[str, Array]
    matches: Mapping[tuple[int, int], tuple[Shown, Shown]] = field(default_factory=dict)


@lru_cache(maxsize=4096)
def _share(below: int, upto: int, n: int, size: int) -> float:
    """Probability that the best of a random subset stands at ranks below+1 .. upto of n."""
    return (math.comb(upto, size) - math.comb(below, size)) / math.comb(n, size)


def gold_of_best(gold: Array, score: Array, size: int) -> float:
    """Expected gold of the candidate with the highest score among `size` drawn without replacement.

    The mean over all subsets; equal scores are decided by a fair draw. With the candidates in
    blocks of equal score, of which block b covers ranks l_b+1 .. u_b of n:
        sum_b mean gold of b * (C(u_b, size) - C(l_b, size)) / C(n, size).
    Scores that are nan count as equal and lowest. ValueError for a size outside 1..n.
    """
    n = len(gold)
    if not 1 <= size <= n:
        raise ValueError(f"size {size} is outside 1..{n}, the number of candidates")
    ranked = np.where(np.isnan(score), -np.inf, score)
    _, block, counts = np.unique(ranked, return_inverse=True, return_counts=True)
    means = np.bincount(block, weights=gold) / counts
    upto = np.cumsum(counts)
    weights = [_share(int(u - c), int(u), n, size) for u, c in zip(upto, counts, strict=True)]
    return float(means @ np.array(weights))


def knockout_gold(group: Scored, sizes: Sequence[int], seed: int = 0) -> list[float]:
    """Expected gold of the winner of a knock-out among `size` drawn candidates, for each size.

    Challengers meet the champion in random order and take its place if both orders of the match
    name them, as the tie-break `pairwise` of best-of-N does. The mean over ORDERS random orders.
    """
    n = len(group.gold)
    beats = np.zeros((n, n), dtype=bool)
    for (i, j), shown in group.matches.items():
        verdict = joint(*shown)
        beats[i, j], beats[j, i] = verdict is Verdict.FIRST, verdict is Verdict.SECOND
    rng = np.random.default_rng(seed)
    orders = np.array([rng.permutation(n) for _ in range(ORDERS)])
    champion = orders[:, 0]
    found = [float(group.gold[champion].mean())]
    for place in range(1, n):
        challenger = orders[:, place]
        champion = np.where(beats[challenger, champion], challenger, champion)
        found.append(float(group.gold[champion].mean()))
    return [found[size - 1] for size in sizes]


def win_shares(group_size: int, matches: Mapping[tuple[int, int], tuple[Shown, Shown]]) -> Array:
    """Share of its matches that each candidate wins, 0..1; a match that both orders do not give to
    one side counts half for each. nan for a candidate without a match."""
    points, played = np.zeros(group_size), np.zeros(group_size)
    for (i, j), shown in matches.items():
        verdict = joint(*shown)
        first = {Verdict.FIRST: 1.0, Verdict.SECOND: 0.0}.get(verdict, 0.5)
        points[i] += first
        points[j] += 1 - first
        played[[i, j]] += 1
    return np.divide(points, played, out=np.full(group_size, np.nan), where=played > 0)


def common_sizes(groups: Sequence[Scored]) -> tuple[int, ...]:
    """2, 4, 8 ... up to the fewest candidates of a query, and that number itself."""
    return tuple(n for n in default_sizes(min(len(g.gold) for g in groups)) if n > 1)


def best_of(groups: Sequence[Scored], reward: str, sizes: Sequence[int]) -> Array:
    """Expected gold of each query's chosen candidate: [queries, sizes]."""
    rows = [
        knockout_gold(group, sizes, seed=row)
        if reward == KNOCKOUT
        else [gold_of_best(group.gold, group.scores[reward], size) for size in sizes]
        for row, group in enumerate(groups)
    ]
    return np.array(rows)


def oracle(groups: Sequence[Scored], sizes: Sequence[int]) -> Array:
    """The same for a choice by gold itself."""
    return np.array([[gold_of_best(g.gold, g.gold, size) for size in sizes] for g in groups])


def recovered(chosen: Array, best: Array, mean: Array) -> Statistic:
    """Share of the oracle's gain over a random candidate: (chosen - mean) / (best - mean), each
    averaged over the queries first. None where the oracle gains nothing."""

    def ratio(rows: Indices) -> float | None:
        gain = float((best[rows] - mean[rows]).mean())
        return float((chosen[rows] - mean[rows]).mean()) / gain if gain > 1e-12 else None

    return ratio


def within(groups: Sequence[Scored], reward: str, measure: Correlation) -> Array:
    """The correlation of reward and gold inside each query; nan where it is undefined."""
    found = []
    for group in groups:
        known = ~np.isnan(group.scores[reward])
        r = measure(group.scores[reward][known], group.gold[known])
        found.append(math.nan if r is None else r)
    return np.array(found)


def tie_counts(groups: Sequence[Scored], reward: str) -> Array:
    """(pairs of equal reward, pairs) of each query: [queries, 2]."""
    found = []
    for group in groups:
        values = group.scores[reward]
        values = values[~np.isnan(values)]
        _, counts = np.unique(values, return_counts=True)
        found.append([sum(math.comb(int(c), 2) for c in counts), math.comb(len(values), 2)])
    return np.array(found, dtype=float)


def ratio(counts: Array) -> Statistic:
    """The first column's sum over the second's; None where that is 0."""

    def share(rows: Indices) -> float | None:
        hits, total = counts[rows].sum(axis=0)
        return float(hits / total) if total else None

    return share


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
    ties = tie_counts(groups, reward)
    figures: dict[str, object] = {
        "abstained": int(sum(np.isnan(g.scores[reward]).sum() for g in groups)),
        "best_of": {n: draws.mean(chosen[:, k]) for k, n in enumerate(sizes)},
        "recovered": {
            n: draws.over(recovered(chosen[:, k], best[:, k], mean), len(groups))
            for k, n in enumerate(sizes)
        },
        "tie_rate": draws.over(ratio(ties), len(groups)),
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
