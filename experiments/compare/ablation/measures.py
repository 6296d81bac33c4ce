"""What the ablation measures of each reward: best-of-N, correlation with gold, ties, differences.

Pure functions over scored candidates; every interval is bootstrapped over queries. A reward that
abstained on a candidate is nan there: the candidate then never wins unless all do, and it is left
out of correlations and pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from autoj_reward.evaluate.intervals import Array, Draws, Estimate, Statistic, difference, ratio
from autoj_reward.evaluate.metrics import Correlation, Shown, correlation, joint, pearson, spearman
from autoj_reward.evaluate.within_query import best_drawn, orders, tie_counts
from autoj_reward.types import Verdict
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
        else [best_drawn(group.scores[reward], group.gold, size) for size in sizes]
        for row, group in enumerate(groups)
    ]
    return np.array(rows)


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
