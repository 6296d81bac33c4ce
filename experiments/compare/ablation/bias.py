"""What moves a reward beside quality: length; and over-optimization.

Rewards are in units of their standard deviation over all candidates, so that they compare. Slopes
are within queries: every query's own means are taken off first (query fixed effects). Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from autoj_reward.evaluate.intervals import Array, Draws, Estimate, Indices, Statistic, ratio
from autoj_reward.evaluate.within_query import best_drawn
from autoj_reward.watch.statistics import best_of_n_curve
from experiments.compare.ablation.measures import Scored

CONFIDENT = 1.0
"""Standard deviations apart at which a reward tells two candidates apart with confidence."""
SAME_GOLD = 1e-9


def log_length(response: str) -> float:
    """Natural logarithm of the characters and one."""
    return math.log1p(len(response))


def standard(groups: Sequence[Scored], reward: str) -> tuple[float, float]:
    """Return mean and standard deviation of a reward over all candidates; (nan, nan) if none."""
    values = np.concatenate([group.scores[reward] for group in groups])
    values = values[~np.isnan(values)]
    return (float(values.mean()), float(values.std())) if values.size else (math.nan, math.nan)


def slopes(groups: Sequence[Scored], reward: str, draws: Draws) -> dict[str, Estimate]:
    """Regress the standardised reward on log length within queries, with and without gold.

    A slope of 1 is a standard deviation of reward for a factor of e in length. `alone`: ordinary
    least squares on length. `gold_fixed`: on length and gold together. An estimate is None where
    length does not vary, or does not vary once gold is held fixed.
    """
    _, sd = standard(groups, reward)
    grams = np.array([_gram(group, reward, sd) for group in groups])
    return {
        "alone": draws.over(_slope(grams, [0]), len(groups)),
        "gold_fixed": draws.over(_slope(grams, [0, 1]), len(groups)),
    }


def _gram(group: Scored, reward: str, sd: float) -> Array:
    """Sums of products of (log length, gold, reward in sd), each less its mean over the query."""
    known = ~np.isnan(group.scores[reward])
    columns = np.array(
        [
            [log_length(text) for text, kept in zip(group.responses, known, strict=True) if kept],
            group.gold[known],
            group.scores[reward][known] / sd if sd > 0 else np.zeros(known.sum()),
        ]
    )
    if not columns.size:
        return np.zeros((3, 3))
    columns = columns - columns.mean(axis=1, keepdims=True)
    return np.asarray(columns @ columns.T)


def _slope(grams: Array, regressors: list[int]) -> Statistic:
    """The coefficient of log length in the regression of reward on the named columns."""

    def fitted(rows: Indices) -> float | None:
        gram = grams[rows].sum(axis=0)
        inner = gram[np.ix_(regressors, regressors)]
        scale = np.prod(np.diag(inner))
        if scale <= 0 or np.linalg.det(inner) <= 1e-12 * scale:
            return None
        return float(np.linalg.solve(inner, gram[regressors, 2])[0])

    return fitted


def confident_disagreement(
    groups: Sequence[Scored], reward: str, draws: Draws
) -> dict[str, object]:
    """Of the pairs of one query with equal gold, the share that the reward sets more than
    CONFIDENT standard deviations apart; `pairs` counts them."""
    _, sd = standard(groups, reward)
    counts = []
    for group in groups:
        known = ~np.isnan(group.scores[reward])
        gold, score = group.gold[known], group.scores[reward][known]
        i, j = np.triu_indices(len(gold), 1)
        same = np.abs(gold[i] - gold[j]) <= SAME_GOLD
        apart = np.abs(score[i] - score[j]) > CONFIDENT * sd
        counts.append([float((same & apart).sum()), float(same.sum())])
    table = np.array(counts)
    return {"rate": draws.over(ratio(*table.T), len(groups)), "pairs": int(table[:, 1].sum())}


def best_of_n_kl(size: int) -> float:
    """Divergence of best-of-N from its policy, in nats: log N - (N - 1) / N (Gao et al. 2022)."""
    return math.log(size) - (size - 1) / size


def over_optimization(groups: Sequence[Scored], reward: str, draws: Draws) -> dict[str, object]:
    """Gold and proxy of best-of-N by a reward against the divergence, N = 1 .. the fewest.

    Both are gains over a random candidate; `proxy` and `gold_sd` in standard deviations over all
    candidates, `gold` as graded. Left out: queries with a candidate that the reward abstained on.
    """
    whole = [group for group in groups if not np.isnan(group.scores[reward]).any()]
    if not whole:
        return {"queries": 0, "left_out": len(groups), "points": []}
    mean, sd = standard(whole, reward)
    gold = np.concatenate([group.gold for group in whole])
    sizes = range(1, min(len(group.gold) for group in whole) + 1)
    curves = [dict(best_of_n_curve(map(float, g.scores[reward]), sizes)) for g in whole]
    points = []
    for size in sizes:
        chosen = np.array([best_drawn(g.scores[reward], g.gold, size) for g in whole])
        gain = chosen - np.array([g.gold.mean() for g in whole])
        risen = np.array([c[size] - c[1] for c in curves])
        points.append(
            {
                "n": size,
                "kl": best_of_n_kl(size),
                "gold": draws.mean(gain),
                "gold_sd": draws.mean(gain / gold.std()) if gold.std() > 0 else None,
                "proxy": draws.mean(risen / sd) if sd > 0 else None,
            }
        )
    return {
        "queries": len(whole),
        "left_out": len(groups) - len(whole),
        "proxy_mean": mean,
        "proxy_sd": sd,
        "gold_mean": float(gold.mean()),
        "gold_sd": float(gold.std()),
        "points": points,
    }
