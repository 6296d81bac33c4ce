"""Agreement of verdicts with human labels, across orders and repetitions, and between judges.

Also position bias, bias towards longer or more formatted responses, and calibration. The functions
are pure, but for `kappa`, which runs `autoj evaluate kappa` on result files. Where a figure is
undefined (a share of nothing) it is None.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoj_reward.data.labelled import LABELS
from autoj_reward.errors import InputError
from autoj_reward.evaluate.results import ROWS, load_result, load_rows, path_beside
from autoj_reward.evaluate.statistics import (
    Draws,
    Indices,
    ResultFields,
    cohen_kappa,
    percentage,
    share,
)
from autoj_reward.io.files import require_apart, write_json
from autoj_reward.types import Judgement, Verdict

OrderVerdict = Verdict | None
"""Verdict of one order, FIRST being the response that it showed first; None if it failed."""
TIE_THRESHOLDS = tuple(step / 100 for step in range(201))
MARKUP = re.compile(r"^\s*(?:#{1,6} |[-*+] |\d+[.)] |> |\|)|\*\*[^*\n]+\*\*|```", re.MULTILINE)
"""Headings, list items, quotes, table rows, bold text and code fences of Markdown."""
CONFIDENCE_BINS = 10
DECIDED = (Verdict.FIRST, Verdict.SECOND)
LABEL = "label"


@dataclass(frozen=True, slots=True)
class PositionBias:
    """Preference of a judge for a place in the prompt, over rows whose both orders gave a verdict.

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


@dataclass(frozen=True, slots=True)
class VerdictProbabilities:
    """Probabilities by verdict name that one order's verdict was read from, with that verdict and
    the human label as the order shows the pair."""

    shares: dict[str, float]
    verdict: Verdict
    label: Verdict


def agrees(verdicts: Sequence[Verdict], labels: Sequence[Verdict]) -> NDArray[np.bool_]:
    """Tell row by row whether the joint verdict is the human label (paper, section 6.1).

    The strict rule: rows whose orders disagree, or where one failed, do not agree.
    """
    if strange := set(labels) - set(LABELS):
        raise ValueError(f"no human label: {sorted(strange)}")
    pairs = zip(verdicts, labels, strict=True)
    return np.array([verdict is label for verdict, label in pairs], dtype=bool)


def consistent(verdicts: Sequence[Verdict]) -> NDArray[np.bool_]:
    """Tell row by row whether both orders gave the same verdict (paper, Figure 4)."""
    return np.array([verdict in LABELS for verdict in verdicts], dtype=bool)


def position_bias(orders: Sequence[tuple[OrderVerdict, OrderVerdict]]) -> PositionBias:
    """Measure the position bias of (first order, second order) verdicts, each as its order showed
    the pair."""
    both = [pair for pair in orders if None not in pair]
    decided = [verdict for pair in both for verdict in pair if verdict is not Verdict.TIE]
    return PositionBias(
        decided.count(Verdict.FIRST) / len(decided) if decided else None,
        both.count((Verdict.FIRST, Verdict.FIRST)),
        both.count((Verdict.SECOND, Verdict.SECOND)),
        sum((a is Verdict.TIE) != (b is Verdict.TIE) for a, b in both),
    )


def pointwise_verdicts(differences: Sequence[float | None], threshold: float) -> list[Verdict]:
    """Return verdicts of responses rated alone, from the first rating less the second.

    A tie if they are at most the threshold apart; FAILED where a rating is missing. The order of
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
    """Return the lowest of 0, 0.01 .. 2.0 with the highest agreement, the authors' rule for reward
    models.

    For validation rows, never the rows to be measured. ValueError without any row.
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

    sizes: a size of both responses of each pair, such as characters; only pairs that differ count.
    judge_share, human_share: of decided verdicts, the percentage for the larger response.
    agreement_more, agreement_less: percentage of agreement where humans prefer the larger response,
    and the smaller; their difference is the bias that costs accuracy.
    """
    larger = [_larger(first, second) for first, second in sizes]
    judge = [v is m for v, m in zip(verdicts, larger, strict=True) if m and v in DECIDED]
    rows = [
        (label is m, verdict is label)
        for verdict, label, m in zip(verdicts, labels, larger, strict=True)
        if m and label in DECIDED
    ]
    return {
        "pairs": sum(m is not None for m in larger),
        "judge_share": _percentage(judge),
        "human_share": _percentage([preferred for preferred, _ in rows]),
        "agreement_more": _percentage([hit for preferred, hit in rows if preferred]),
        "agreement_less": _percentage([hit for preferred, hit in rows if not preferred]),
    }


def count_markup(text: str) -> int:
    """Count the marks of Markdown formatting in a response."""
    return len(MARKUP.findall(text))


def verdict_probabilities(judgement: Judgement, label: Verdict) -> VerdictProbabilities | None:
    """Return the probabilities behind a judgement of one order, which sum to 1; None unless its
    verdict was read from probabilities."""
    found = dict(judgement.confidence or ())
    mass = sum(found.values())
    if not judgement.verdict or mass <= 0:
        return None
    shares = {name: p / mass for name, p in found.items()}
    return VerdictProbabilities(shares, judgement.verdict, label)


def calibration(orders: Sequence[VerdictProbabilities]) -> dict[str, Any]:
    """Measure whether the probability of a verdict is how often it is right.

    Bins of equal width; ece: expected calibration error, the mean gap of confidence and accuracy
    over bins, weighted by size. brier: mean squared error of the three probabilities against the
    label, 0..2.
    """
    rows = [(one.shares[str(one.verdict)], one.verdict is one.label) for one in orders]
    if not rows:
        return {"n": 0, "ece": None, "brier": None, "bins": []}
    bins: list[list[tuple[float, bool]]] = [[] for _ in range(CONFIDENCE_BINS)]
    for confidence, hit in rows:
        bins[min(CONFIDENCE_BINS - 1, int(confidence * CONFIDENCE_BINS))].append((confidence, hit))
    table = [
        {
            "from": k / CONFIDENCE_BINS,
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
    """Measure how often all joint verdicts of a pair that is judged several times are the same.

    repeats: the joint verdicts of all pairs, once for every repetition. kappa: mean over every
    pair of repetitions.
    """
    kappas = [cohen_kappa(one, other) for one, other in combinations(repeats, 2)]
    known = [kappa for kappa in kappas if kappa is not None]
    return {
        "repeats": len(repeats),
        "same": _percentage([len(set(row)) == 1 for row in zip(*repeats, strict=True)]),
        "kappa": round(float(np.mean(known)), 4) if known else None,
    }


def kappa(results: Sequence[str], result: str) -> int:
    """Write Cohen's kappa of every two judges, and of each with the human labels, on the same
    pairs. InputError for results of other rows."""
    if len(results) < 2:
        raise InputError("--results: name two results or more, of different judges")
    require_apart([*results, *(path_beside(path, ROWS) for path in results)], [result])
    verdicts, queries, labels = _read_results(results)
    if any(label is not None for label in labels):
        verdicts[LABEL] = labels
    rows = [
        {"first": one, "second": two, **_kappa(verdicts[one], verdicts[two], queries)}
        for one, two in combinations(verdicts, 2)
    ]
    write_json(result, {"task": "kappa", "results": list(results), "agreement": rows})
    for row in rows:
        shown = "-" if row["kappa"] is None else f"{row['kappa']:.3f}"
        print(f"{row['first']} / {row['second']}: kappa {shown}, same {row['same']:.2f} %")
    print(f"result: {result}")
    return 0


def _kappa(
    first: Sequence[Hashable], second: Sequence[Hashable], queries: Sequence[str]
) -> ResultFields:
    """Share of equal verdicts, and kappa; inconsistent and failed are verdicts of their own."""

    def statistic(rows: Indices) -> float | None:
        return cohen_kappa([first[i] for i in rows], [second[i] for i in rows])

    same = [a == b for a, b in zip(first, second, strict=True)]
    return {
        "n": len(same),
        **Draws().percent("same", share(same), queries),
        **Draws().number("kappa", statistic, queries),
    }


def _read_results(
    results: Sequence[str],
) -> tuple[dict[str, list[Hashable]], list[str], list[Hashable]]:
    """Verdicts by judge, queries, and labels. InputError unless all are of the same rows."""
    found: dict[str, list[Hashable]] = {}
    first: list[ResultFields] = []
    for path in results:
        name, rows = f"{load_result(path)['name']} ({Path(path).stem})", load_rows(path)
        if not rows or "verdict" not in rows[0]:
            raise InputError(f"{path}: no verdicts on pairs beside it: evaluate pairs again")
        first = first or rows
        for number, (a, b) in enumerate(zip(first, rows, strict=False), 1):
            if any(a.get(key) != b.get(key) for key in ("query", "responses", "label")):
                raise InputError(f"{path}: row {number} is not that of {results[0]}: same data?")
        if len(rows) != len(first):
            raise InputError(f"{path}: {len(rows)} rows, and {results[0]} has {len(first)}")
        if name in found:
            raise InputError(f"{path}: a second result called {name}: rename the file")
        found[name] = [row["verdict"] for row in rows]
    return found, [row["query"] for row in first], [row.get("label") for row in first]


def _larger(first: float, second: float) -> Verdict | None:
    if first == second:
        return None
    return Verdict.FIRST if first > second else Verdict.SECOND


def _percentage(hits: Sequence[bool]) -> float | None:
    return percentage(sum(hits) / len(hits)) if hits else None
