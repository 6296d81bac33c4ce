"""What a judge is measured by: correlation, agreement by the strict rule, and their intervals.

Pure functions over sequences of one value a row, so that each also answers for a group of rows.
Where a figure is undefined (a correlation with a constant, a share of nothing) it is None.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from autoj_reward.data.labelled import LABELS
from autoj_reward.evaluate.intervals import Statistic
from autoj_reward.types import Verdict

Correlation = Callable[[ArrayLike, ArrayLike], float | None]
Shown = Verdict | None
"""What one order said, FIRST being the response that it showed first; None if it failed."""

THRESHOLDS = tuple(step / 100 for step in range(201))


@dataclass(frozen=True, slots=True)
class Position:
    """Which place in the prompt a judge prefers, over rows whose both orders gave a verdict.

    first_share: of the verdicts of both orders that are no tie, the share that names the response
        shown first. Every pair is shown both ways, so 0.5 is no preference; None without any.
    always_first, always_second: rows whose two orders both name the response shown first, or
        second. half_tie: rows where one order says tie and the other does not. These three are
        all the ways to be inconsistent.
    """

    first_share: float | None
    always_first: int
    always_second: int
    half_tie: int


def pearson(x: ArrayLike, y: ArrayLike) -> float | None:
    """Pearson's correlation, -1..1; None with fewer than two rows or where a side is constant.

    Raises ValueError for sides of different length or with a number that is not finite.
    """
    a, b = _numbers(x), _numbers(y)
    if a.shape != b.shape:
        raise ValueError(f"{a.size} numbers against {b.size}")
    if a.size < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    a, b = a - a.mean(), b - b.mean()
    r = float(a @ b / math.sqrt(float(a @ a) * float(b @ b)))
    return min(1.0, max(-1.0, r))


def spearman(x: ArrayLike, y: ArrayLike) -> float | None:
    """Spearman's rank correlation, ties at their mean rank; None and errors as for `pearson`."""
    from scipy.stats import rankdata  # half a second, which most evaluations need not wait

    return pearson(rankdata(_numbers(x)), rankdata(_numbers(y)))


def kendall(x: ArrayLike, y: ArrayLike) -> float | None:
    """Kendall's tau-b, -1..1, which takes ties into account; None and errors as for `pearson`."""
    a, b = _numbers(x), _numbers(y)
    if pearson(a, b) is None:
        return None
    from scipy.stats import kendalltau

    return float(kendalltau(a, b).statistic)


def cohen_kappa(first: Sequence[Hashable], second: Sequence[Hashable]) -> float | None:
    """Agreement of two raters beyond chance, at most 1 (Cohen, 1960).

    None of no rows, or where chance alone agrees on every row. ValueError for different lengths.
    """
    n = len(first)
    if n != len(second):
        raise ValueError(f"{n} ratings against {len(second)}")
    if n == 0:
        return None
    observed = sum(a == b for a, b in zip(first, second, strict=True)) / n
    a, b = Counter(first), Counter(second)
    chance = sum(count * b[name] for name, count in a.items()) / n**2
    return None if chance == 1 else (observed - chance) / (1 - chance)


def correlation(measure: Correlation, x: ArrayLike, y: ArrayLike) -> Statistic:
    """The statistic that is `pearson` or `spearman` of the rows' x and y."""
    a, b = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    return lambda rows: measure(a[rows], b[rows])


def joint(forward: Shown, backward: Shown) -> Verdict:
    """What two orders say together, in terms of the first order: INCONSISTENT if they disagree,
    FAILED if either has no verdict. `backward` names the responses as the second order shows them.
    """
    if forward is None or backward is None:
        return Verdict.FAILED
    return forward if forward is backward.swapped() else Verdict.INCONSISTENT


def agrees(verdicts: Sequence[Verdict], labels: Sequence[Verdict]) -> NDArray[np.bool_]:
    """Row by row, whether the joint verdict is the human label (paper, section 6.1).

    The strict rule: rows whose orders disagree, or where one failed, do not agree.
    """
    if strange := set(labels) - set(LABELS):
        raise ValueError(f"no human label: {sorted(strange)}")
    pairs = zip(verdicts, labels, strict=True)
    return np.array([verdict is label for verdict, label in pairs], dtype=bool)


def consistent(verdicts: Sequence[Verdict]) -> NDArray[np.bool_]:
    """Row by row, whether both orders gave the same verdict (paper, Figure 4)."""
    return np.array([verdict in LABELS for verdict in verdicts], dtype=bool)


def position(orders: Sequence[tuple[Shown, Shown]]) -> Position:
    """Position preference of (first order, second order) verdicts, each as its order showed it."""
    both = [pair for pair in orders if None not in pair]
    decided = [verdict for pair in both for verdict in pair if verdict is not Verdict.TIE]
    return Position(
        decided.count(Verdict.FIRST) / len(decided) if decided else None,
        both.count((Verdict.FIRST, Verdict.FIRST)),
        both.count((Verdict.SECOND, Verdict.SECOND)),
        sum((a is Verdict.TIE) != (b is Verdict.TIE) for a, b in both),
    )


def pointwise_verdicts(differences: Sequence[float | None], threshold: float) -> list[Verdict]:
    """Verdicts of responses rated alone: the value of the first less that of the second.

    A tie if they are at most the threshold apart; FAILED where a value is missing. The order of
    the responses plays no role, so such a verdict counts as that of both orders.
    """
    verdicts = []
    for gap in differences:
        if gap is None:
            verdicts.append(Verdict.FAILED)
        elif abs(gap) <= threshold:
            verdicts.append(Verdict.TIE)
        else:
            verdicts.append(Verdict.FIRST if gap > 0 else Verdict.SECOND)
    return verdicts


def search_tie_threshold(differences: Sequence[float | None], labels: Sequence[Verdict]) -> float:
    """The lowest of 0, 0.01 .. 2.0 with the highest agreement, the authors' rule for reward models.

    For validation rows, never the rows to be measured. ValueError without any row.
    """
    if not labels:
        raise ValueError("no rows to search a threshold on")
    hits = {t: agrees(pointwise_verdicts(differences, t), labels).sum() for t in THRESHOLDS}
    return max(THRESHOLDS, key=lambda t: (hits[t], -t))


def _numbers(values: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if not np.isfinite(array).all():
        raise ValueError("a number is not finite")
    return array
