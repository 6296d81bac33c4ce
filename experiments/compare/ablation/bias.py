"""What moves a reward beside quality: length, formatting, position; and over-optimization.

Rewards are in units of their standard deviation over all candidates, so that they compare. Slopes
are within queries: every query's own means are taken off first (query fixed effects). Pure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

import numpy as np

from autoj_reward.evaluate.intervals import Array, Draws, Estimate, Indices, Statistic, ratio
from autoj_reward.evaluate.metrics import Shown
from autoj_reward.evaluate.within_query import best_drawn
from experiments.compare.ablation.measures import Scored
from rollouts.best_of_n.curve import best_of_n_curve

CONFIDENT = 1.0
"""Standard deviations apart at which a reward tells two candidates apart with confidence."""
SAME_GOLD = 1e-9
_MARKDOWN = re.compile(r"^\s*(?:[-*•+]\s|\d+[.)]\s|#{1,6}\s)|\*\*[^*\n]+\*\*|```", re.MULTILINE)


def log_length(response: str) -> float:
    """Natural logarithm of the characters and one."""
    return math.log1p(len(response))


def log_markdown(response: str) -> float:
    """Natural logarithm of the bullets, numbered items, headings, bold texts, fences, and one."""
    return math.log1p(len(_MARKDOWN.findall(response)))


FEATURES: dict[str, Callable[[str], float]] = {"length": log_length, "formatting": log_markdown}


def standard(groups: Sequence[Scored], reward: str) -> tuple[float, float]:
    """Mean and standard deviation of a reward over all candidates; (nan, nan) without any."""
    values = np.concatenate([group.scores[reward] for group in groups])
    values = values[~np.isnan(values)]
    return (float(values.mean()), float(values.std())) if values.size else (math.nan, math.nan)


def slopes(groups: Sequence[Scored], reward: str, draws: Draws) -> dict[str, dict[str, Estimate]]:
    """Slope of the standardised reward on each feature within queries, alone and beside gold.

    A slope of 1 is a standard deviation of reward for a unit of the feature, which for logarithms
    is a factor of e. `alone`: ordinary least squares on the feature. `gold_fixed`: on the feature
    and gold together. None where the feature, or what gold leaves of it, does not vary.
    """
    _, sd = standard(groups, reward)
    found = {}
    for name, feature in FEATURES.items():
        grams = np.array([_gram(group, reward, feature, sd) for group in groups])
        found[name] = {
            "alone": draws.over(_slope(grams, [0]), len(groups)),
            "gold_fixed": draws.over(_slope(grams, [0, 1]), len(groups)),
        }
    return found


def _gram(group: Scored, reward: str, feature: Callable[[str], float], sd: float) -> Array:
    """Sums of products of (feature, gold, reward in sd), each less its mean over the query."""
    known = ~np.isnan(group.scores[reward])
    columns = np.array(
        [
            [feature(text) for text, kept in zip(group.responses, known, strict=True) if kept],
            group.gold[known],
            group.scores[reward][known] / sd if sd > 0 else np.zeros(known.sum()),
        ]
    )
    if not columns.size:
        return np.zeros((3, 3))
    columns = columns - columns.mean(axis=1, keepdims=True)
    return np.asarray(columns @ columns.T)


def _slope(grams: Array, regressors: list[int]) -> Statistic:
    """The coefficient of the feature in the regression of reward on the named columns."""

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


def position(groups: Sequence[Scored], draws: Draws) -> dict[str, object]:
    """How often comparisons name the response shown first, of all that name one.

    Every pair is shown in both orders, so 0.5 is no preference, whatever its quality.
    `equal_gold`: on pairs of equal gold alone. `consistency`: pairs whose orders agree, of those
    with two verdicts.
    """
    found: dict[str, object] = {}
    for name, equal in (("first_share", False), ("equal_gold", True)):
        counts = [_shown_first(_pairs(group, equal)) for group in groups]
        table = np.array(counts, dtype=float)
        found[name] = draws.over(ratio(*table.T), len(groups))
        found[f"{name}_verdicts"] = int(table[:, 1].sum())
    agreed = np.array([_agreed(_pairs(group, False)) for group in groups], dtype=float)
    return found | {
        "consistency": draws.over(ratio(*agreed.T), len(groups)),
        "pairs": int(agreed[:, 1].sum()),
        "failed": sum(None in shown for group in groups for shown in group.matches.values()),
    }


def _pairs(group: Scored, equal: bool) -> list[tuple[Shown, Shown]]:
    return [
        shown
        for (i, j), shown in group.matches.items()
        if None not in shown and (not equal or abs(group.gold[i] - group.gold[j]) <= SAME_GOLD)
    ]


def _shown_first(pairs: Sequence[tuple[Shown, Shown]]) -> tuple[int, int]:
    verdicts = [verdict.value for pair in pairs for verdict in pair if verdict is not None]
    return verdicts.count("first"), verdicts.count("first") + verdicts.count("second")


def _agreed(pairs: Sequence[tuple[Shown, Shown]]) -> tuple[int, int]:
    same = [a is b.swapped() for a, b in pairs if a is not None and b is not None]
    return sum(same), len(pairs)


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
