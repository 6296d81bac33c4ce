"""Agreement of verdicts with human labels, and across orders and repetitions.

Also position bias, bias towards longer or more formatted responses, and calibration. All functions
are pure. A metric that is undefined, such as a share of no rows, is None.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from autoj_reward.data.labelled import LABELS
from autoj_reward.evaluate.statistics import (
    cohen_kappa,
    percentage,
    rounded,
)
from autoj_reward.types import Judgement, Verdict

OrderVerdict = Verdict | None
"""Verdict of one order of a comparison; None if it failed. FIRST is the response shown first."""
TIE_THRESHOLDS = tuple(step / 100 for step in range(201))
"""Tie thresholds that `search_tie_threshold` tries, in rating points: 0, 0.01 .. 2.0."""
MARKUP = re.compile(r"^\s*(?:#{1,6} |[-*+] |\d+[.)] |> |\|)|\*\*[^*\n]+\*\*|```", re.MULTILINE)
"""Pattern of Markdown headings, list items, quotes, table rows, bold text and code fences."""
CONFIDENCE_BINS = 10
"""Number of equal-width bins over 0..1 that `calibration` sorts confidences into."""
DECIDED = (Verdict.FIRST, Verdict.SECOND)
"""Verdicts that name a winner."""


@dataclass(frozen=True, slots=True)
class PositionBias:
    """Preference of a judge for a place in the prompt.

    Only pairs with a verdict in both orders count. `always_first`, `always_second` and `half_tie`
    are all the ways in which the two orders can be inconsistent.
    """

    first_share: float | None
    """Share (0..1) of decided verdicts that name the response shown first; None without a decided
    verdict. Every pair is shown both ways, so 0.5 is no preference."""
    always_first: int
    """Pairs for which both orders name the response shown first."""
    always_second: int
    """Pairs for which both orders name the response shown second."""
    half_tie: int
    """Pairs for which exactly one order is a tie."""


@dataclass(frozen=True, slots=True)
class VerdictProbabilities:
    """Verdict of one order, with its probabilities and the human label.

    FIRST is the response that this order shows first, in all three fields.
    """

    shares: dict[str, float]
    """Probability by verdict name; they sum to 1."""
    verdict: Verdict
    label: Verdict


def agrees(verdicts: Sequence[Verdict], labels: Sequence[Verdict]) -> NDArray[np.bool_]:
    """Return for each row whether the joint verdict equals the human label (paper, section 6.1).

    Rows whose two orders disagree, or of which one failed, count as disagreement. Raises ValueError
    for a label other than FIRST, SECOND and TIE, or for sequences of different lengths.
    """
    if strange := set(labels) - set(LABELS):
        raise ValueError(f"no human label: {sorted(strange)}")
    pairs = zip(verdicts, labels, strict=True)
    return np.array([verdict is label for verdict, label in pairs], dtype=bool)


def consistent(verdicts: Sequence[Verdict]) -> NDArray[np.bool_]:
    """Return for each row whether both orders gave the same verdict (paper, Figure 4).

    Takes joint verdicts: an inconsistent or a failed one is False.
    """
    return np.array([verdict in LABELS for verdict in verdicts], dtype=bool)


def position_bias(orders: Sequence[tuple[OrderVerdict, OrderVerdict]]) -> PositionBias:
    """Measure the position bias over (first order, second order) verdicts of pairs.

    FIRST names the response that the order in question showed first.
    """
    complete_pairs = [pair for pair in orders if None not in pair]
    decided = [verdict for pair in complete_pairs for verdict in pair if verdict is not Verdict.TIE]
    return PositionBias(
        decided.count(Verdict.FIRST) / len(decided) if decided else None,
        complete_pairs.count((Verdict.FIRST, Verdict.FIRST)),
        complete_pairs.count((Verdict.SECOND, Verdict.SECOND)),
        sum((a is Verdict.TIE) != (b is Verdict.TIE) for a, b in complete_pairs),
    )


def pointwise_verdicts(differences: Sequence[float | None], threshold: float) -> list[Verdict]:
    """Return the verdict of each pair whose responses were rated alone.

    differences: the first response's rating minus the second's; None, for a missing rating, gives
    FAILED. A difference of at most `threshold` is a tie. Such a verdict does not depend on the
    order of the responses, so it counts for both orders.
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
    """Return the tie threshold with the highest agreement, the lowest of several.

    This is the paper's rule for scalar reward models; it tries `TIE_THRESHOLDS`. Use validation
    rows, not the rows to be measured. Raises ValueError without rows.
    """
    if not labels:
        raise ValueError("no rows to search a threshold on")
    hits = {t: agrees(pointwise_verdicts(differences, t), labels).sum() for t in TIE_THRESHOLDS}
    return max(TIE_THRESHOLDS, key=lambda t: (hits[t], -t))


def size_bias(
    sizes: Sequence[tuple[float, float]],
    verdicts: Sequence[Verdict],
    labels: Sequence[Verdict],
) -> dict[str, Any]:
    """Measure how often the larger response wins, for the judge and for the humans.

    sizes: sizes of both responses of each pair, such as characters. Pairs of equal size are left
    out. Returns:
    - `pairs`: pairs of unequal size.
    - `judge_share`, `human_share`: percentage of decided verdicts or labels for the larger one.
    - `agreement_more`, `agreement_less`: percentage of agreement where humans prefer the larger or
      the smaller response. Their difference is the bias that costs accuracy.
    """
    larger_sides = [_find_larger(first, second) for first, second in sizes]
    judge = [
        verdict is larger_side
        for verdict, larger_side in zip(verdicts, larger_sides, strict=True)
        if larger_side and verdict in DECIDED
    ]
    rows = [
        (label is larger_side, verdict is label)
        for verdict, label, larger_side in zip(verdicts, labels, larger_sides, strict=True)
        if larger_side and label in DECIDED
    ]
    return {
        "pairs": sum(larger_side is not None for larger_side in larger_sides),
        "judge_share": _compute_percentage(judge),
        "human_share": _compute_percentage([preferred for preferred, _ in rows]),
        "agreement_more": _compute_percentage([hit for preferred, hit in rows if preferred]),
        "agreement_less": _compute_percentage([hit for preferred, hit in rows if not preferred]),
    }


def count_markup(text: str) -> int:
    """Count the matches of `MARKUP` in a response."""
    return len(MARKUP.findall(text))


def verdict_probabilities(judgement: Judgement, label: Verdict) -> VerdictProbabilities | None:
    """Return the probabilities that the verdict of one order was read from, normalized to sum to 1.

    label: the human label as this order shows the pair. Returns None if the judgement has no
    verdict or no probabilities.
    """
    probabilities = dict(judgement.confidence or ())
    mass = sum(probabilities.values())
    if not judgement.verdict or mass <= 0:
        return None
    shares = {name: p / mass for name, p in probabilities.items()}
    return VerdictProbabilities(shares, judgement.verdict, label)


@dataclass(frozen=True, slots=True)
class CalibrationBin:
    """Predictions of about the same size, and what came of them."""

    start: float
    """Lower end of the bin."""
    n: int
    """Number of predictions."""
    predicted: float
    """Mean prediction."""
    observed: float
    """Mean outcome."""


def calibration_bins(
    predicted: ArrayLike, observed: ArrayLike, low: float = 0.0, high: float = 1.0
) -> list[CalibrationBin]:
    """Sort predictions into `CONFIDENCE_BINS` bins of equal width; return those with predictions.

    predicted: numbers within low..high, shape [n]. observed: outcomes on the same scale, shape [n].
    """
    p, y = np.asarray(predicted, dtype=float), np.asarray(observed, dtype=float)
    width = (high - low) / CONFIDENCE_BINS
    places = np.clip(((p - low) / width).astype(int), 0, CONFIDENCE_BINS - 1)
    return [
        CalibrationBin(
            low + k * width, int(members.sum()), float(p[members].mean()), float(y[members].mean())
        )
        for k in np.unique(places)
        if (members := places == k).any()
    ]


def calibration_error(bins: Sequence[CalibrationBin]) -> float | None:
    """Return the mean gap between prediction and outcome over bins, weighted by their size.

    This is the expected calibration error. None without predictions.
    """
    total = sum(bin_.n for bin_ in bins)
    gaps = sum(bin_.n * abs(bin_.predicted - bin_.observed) for bin_ in bins)
    return gaps / total if total else None


def calibration(orders: Sequence[VerdictProbabilities]) -> dict[str, Any]:
    """Measure the calibration of verdict probabilities against the human labels.

    Returns:
    - `ece`: expected calibration error, 0..1; see `calibration_error`.
    - `brier`: mean squared error of the three probabilities against the label, summed, 0..2.
    - `bins`: lower end, number of verdicts, mean confidence and accuracy of each bin with verdicts.
    """
    rows = [(order.shares[str(order.verdict)], order.verdict is order.label) for order in orders]
    if not rows:
        return {"n": 0, "ece": None, "brier": None, "bins": []}
    bins = calibration_bins([confidence for confidence, _ in rows], [hit for _, hit in rows])
    brier = np.mean(
        [
            sum((order.shares.get(str(v), 0.0) - (v is order.label)) ** 2 for v in LABELS)
            for order in orders
        ]
    )
    return {
        "n": len(rows),
        "ece": rounded(calibration_error(bins), 4),
        "brier": round(float(brier), 4),
        "bins": [
            {
                "from": round(bin_.start, 1),
                "n": bin_.n,
                "confidence": round(bin_.predicted, 4),
                "accuracy": round(bin_.observed, 4),
            }
            for bin_ in bins
        ],
    }


def stability(repeats: Sequence[Sequence[Verdict]]) -> dict[str, Any]:
    """Measure how stable joint verdicts are when every pair is judged several times.

    repeats: for each repetition, the joint verdicts of all pairs. Returns the number of `repeats`,
    the percentage of pairs whose verdicts are all the `same`, and the mean `kappa` over every two
    repetitions.
    """
    kappas = [cohen_kappa(first, second) for first, second in combinations(repeats, 2)]
    defined = [kappa for kappa in kappas if kappa is not None]
    return {
        "repeats": len(repeats),
        "same": _compute_percentage([len(set(row)) == 1 for row in zip(*repeats, strict=True)]),
        "kappa": round(float(np.mean(defined)), 4) if defined else None,
    }


def _find_larger(first: float, second: float) -> Verdict | None:
    if first == second:
        return None
    return Verdict.FIRST if first > second else Verdict.SECOND


def _compute_percentage(hits: Sequence[bool]) -> float | None:
    return percentage(sum(hits) / len(hits)) if hits else None
