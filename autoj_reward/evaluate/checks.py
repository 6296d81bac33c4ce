"""What a judge's verdicts lean on besides quality, and whether it means what it says. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autoj_reward.data.labelled import LABELS
from autoj_reward.evaluate.intervals import percent
from autoj_reward.evaluate.metrics import cohen_kappa
from autoj_reward.types import Judgement, Verdict

MARKUP = re.compile(r"^\s*(?:#{1,6} |[-*+] |\d+[.)] |> |\|)|\*\*[^*\n]+\*\*|```", re.MULTILINE)
"""Headings, list items, quotes, table rows, bold text and code fences of Markdown."""
BINS = 10
DECIDED = (Verdict.FIRST, Verdict.SECOND)


@dataclass(frozen=True, slots=True)
class Sure:
    """Probabilities of the verdicts, by name, that a verdict was read from, and the human label as
    that order shows it."""

    shares: dict[str, float]
    verdict: Verdict
    label: Verdict


def leaning(
    sizes: Sequence[tuple[float, float]],
    verdicts: Sequence[Verdict],
    labels: Sequence[Verdict],
) -> dict[str, Any]:
    """How often the response with more of something wins, for the judge and for the humans.

    sizes: how much each response of a pair has; only pairs that differ count. judge_share,
    human_share: of decided verdicts, the percentage for the response with more. agreement_more,
    agreement_less: percentage of agreement where humans prefer the response with more, and with
    less; their difference is the bias that costs accuracy.
    """
    more = [_more(first, second) for first, second in sizes]
    judge = [v is m for v, m in zip(verdicts, more, strict=True) if m and v in DECIDED]
    rows = [
        (label is m, verdict is label)
        for verdict, label, m in zip(verdicts, labels, more, strict=True)
        if m and label in DECIDED
    ]
    return {
        "pairs": sum(m is not None for m in more),
        "judge_share": _percent(judge),
        "human_share": _percent([preferred for preferred, _ in rows]),
        "agreement_more": _percent([hit for preferred, hit in rows if preferred]),
        "agreement_less": _percent([hit for preferred, hit in rows if not preferred]),
    }


def length(text: str) -> float:
    """Characters of a response."""
    return len(text)


def markup(text: str) -> float:
    """Marks of Markdown formatting in a response."""
    return len(MARKUP.findall(text))


def sure(judgement: Judgement, label: Verdict) -> Sure | None:
    """Of a judgement of one order; None unless its verdict was read as probabilities."""
    found = dict(judgement.confidence or ())
    mass = sum(found.values())
    if not judgement.verdict or mass <= 0:
        return None
    return Sure({name: p / mass for name, p in found.items()}, judgement.verdict, label)


def calibration(orders: Sequence[Sure]) -> dict[str, Any]:
    """Whether the probability of a verdict is how often it is right.

    Bins of equal width; ece: expected calibration error, the mean gap of confidence and accuracy
    over bins, weighted by size. brier: mean squared error of the three probabilities against the
    label, 0..2.
    """
    rows = [(one.shares[str(one.verdict)], one.verdict is one.label) for one in orders]
    if not rows:
        return {"n": 0, "ece": None, "brier": None, "bins": []}
    bins: list[list[tuple[float, bool]]] = [[] for _ in range(BINS)]
    for confidence, hit in rows:
        bins[min(BINS - 1, int(confidence * BINS))].append((confidence, hit))
    table = [
        {
            "from": k / BINS,
            "n": len(members),
            "confidence": round(float(np.mean([c for c, _ in members])), 4),
            "accuracy": round(float(np.mean([h for _, h in members])), 4),
        }
        for k, members in enumerate(bins)
        if members
    ]
    ece = sum(b["n"] * abs(b["confidence"] - b["accuracy"]) for b in table) / len(rows)
    brier = np.mean(
        [
            sum((one.shares.get(str(v), 0.0) - (v is one.label)) ** 2 for v in LABELS)
            for one in orders
        ]
    )
    return {"n": len(rows), "ece": round(ece, 4), "brier": round(float(brier), 4), "bins": table}


def stability(repeats: Sequence[Sequence[Verdict]]) -> dict[str, Any]:
    """Of pairs judged several times over, how often all joint verdicts are the same.

    repeats: the joint verdicts of all pairs, once for every repetition. kappa: mean over every
    pair of repetitions.
    """
    rounds = len(repeats)
    kappas = [
        cohen_kappa(repeats[a], repeats[b]) for a in range(rounds) for b in range(a + 1, rounds)
    ]
    known = [kappa for kappa in kappas if kappa is not None]
    return {
        "repeats": rounds,
        "same": _percent([len(set(row)) == 1 for row in zip(*repeats, strict=True)]),
        "kappa": round(float(np.mean(known)), 4) if known else None,
    }


def _more(first: float, second: float) -> Verdict | None:
    if first == second:
        return None
    return Verdict.FIRST if first > second else Verdict.SECOND


def _percent(hits: Sequence[bool]) -> float | None:
    return percent(sum(hits) / len(hits)) if hits else None
