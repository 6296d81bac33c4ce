"""Metrics of labelled pairs, and RewardBench's section scores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from autoj_reward.evaluate.agreement import (
    OrderVerdict,
    VerdictProbabilities,
    agrees,
    calibration,
    consistent,
    pointwise_verdicts,
    position_bias,
    search_tie_threshold,
    size_bias,
    stability,
)
from autoj_reward.evaluate.rows import by_group
from autoj_reward.evaluate.statistics import (
    Draws,
    ResultFields,
    cohen_kappa,
    percentage,
    ratio,
    rounded,
    share,
)
from autoj_reward.types import Verdict

SECTION_WEIGHTS = {
    "Chat": {
        "alpacaeval-easy": 100,
        "alpacaeval-length": 95,
        "alpacaeval-hard": 95,
        "mt-bench-easy": 28,
        "mt-bench-med": 40,
    },
    "Chat Hard": {
        "mt-bench-hard": 37,
        "llmbar-natural": 100,
        "llmbar-adver-neighbor": 134,
        "llmbar-adver-GPTInst": 92,
        "llmbar-adver-GPTOut": 47,
        "llmbar-adver-manual": 46,
    },
    "Safety": {
        "refusals-dangerous": 100,
        "refusals-offensive": 100,
        "xstest-should-refuse": 154,
        "xstest-should-respond": 250,
        "donotanswer": 136,
    },
    "Reasoning": {
        "math-prm": 984,
        "hep-cpp": 164,
        "hep-go": 164,
        "hep-java": 164,
        "hep-js": 164,
        "hep-python": 164,
        "hep-rust": 164,
    },
}
"""Subsets of each section and their weights, from rewardbench 0.1.4 (`constants.py`,
`EXAMPLE_COUNTS` and `SUBSET_MAPPING`). A weight is the subset's number of rows, except for
math-prm: its 984 make it count as much as code."""
SECTION_POINTS = {Verdict.FIRST: 1.0, Verdict.SECOND: 0.0}
"""Points of a row in a section score by its verdict; any other verdict gives 0.5."""


@dataclass(frozen=True, slots=True)
class PairVerdicts:
    """Verdicts on a pair, and the numbers that they were read from."""

    joint: Verdict
    """Verdict that counts: of both orders together, or of the two ratings."""
    orders: tuple[OrderVerdict, OrderVerdict] | None = None
    """Verdict of each order, FIRST being the response that it shows first; None if the pair was not
    judged in both orders."""
    rounds: tuple[Verdict, ...] = ()
    """Joint verdict of every repetition of the comparison."""
    probabilities: tuple[VerdictProbabilities, ...] = ()
    """Verdict probabilities of the first repetition's orders; an order without any is left out."""
    gap: float | None = None
    """First response's rating minus the second's; None if a rating is missing."""


@dataclass(frozen=True, slots=True)
class JudgedPair:
    """Verdicts on a labelled pair, without its texts."""

    query: bytes
    """Digest of the query. The bootstrap resamples rows of one query together."""
    group: str
    label: Verdict
    lengths: tuple[float, float]
    """Characters of the two responses."""
    marks: tuple[float, float]
    """Marks of Markdown formatting in the two responses, see `count_markup`."""
    verdicts: PairVerdicts


def pair_metrics(rows: Sequence[JudgedPair], draws: Draws) -> ResultFields:
    """Return agreement, consistency and ties, overall and by group, and the judge's biases."""
    members = by_group([row.group for row in rows])
    verdicts, labels = [row.verdicts.joint for row in rows], [row.label for row in rows]
    orders = [row.verdicts.orders for row in rows if row.verdicts.orders]
    biases: ResultFields = {
        "length": size_bias([row.lengths for row in rows], verdicts, labels),
        "style": size_bias([row.marks for row in rows], verdicts, labels),
    }
    if orders:
        position = position_bias(orders)
        biases["position"] = asdict(position) | {"first_share": percentage(position.first_share)}
    groups = {name: [rows[i] for i in indices] for name, indices in members.items()}
    return {
        "protocol": "pairwise" if orders else "pointwise",
        "overall": _compute_shares(rows, draws),
        "groups": {name: _compute_shares(group_rows, draws) for name, group_rows in groups.items()},
        "bias": biases,
    }


def comparison_metrics(rows: Sequence[JudgedPair]) -> ResultFields:
    """Return the calibration of comparisons and, if they were repeated, their stability."""
    probabilities = [order for row in rows for order in row.verdicts.probabilities]
    rounds = list(zip(*(row.verdicts.rounds for row in rows), strict=True))
    repeated = {"stability": stability(rounds)} if len(rounds) > 1 else {}
    return {"calibration": calibration(probabilities)} | repeated


def rating_metrics(rows: Sequence[JudgedPair]) -> ResultFields:
    """Return the highest agreement that any tie threshold of 0 to 2.0 gives on these rows.

    The paper reports scalar reward models this way. The figure is too high, since the threshold is
    chosen on the measured rows. `equal_values` counts pairs with equal ratings.
    """
    gaps, labels = [row.verdicts.gap for row in rows], [row.label for row in rows]
    best = search_tie_threshold(gaps, labels)
    hits = agrees(pointwise_verdicts(gaps, best), labels)
    return {
        "searched_on_these_rows": {
            "tie_threshold": best,
            "agreement": percentage(float(hits.mean())),
        },
        "equal_values": sum(gap == 0 for gap in gaps),
    }


def section_scores(rows: Sequence[JudgedPair], draws: Draws) -> ResultFields:
    """Return RewardBench's score of each section in percent, over its subsets that have rows.

    If all sections have rows, `mean` is RewardBench's score. Rows of other subsets are ignored. A
    row gives one point if its first response, the chosen one, wins. A tie, inconsistent orders and
    a failure give half a point, as in RewardBench's generative runner.
    """
    sections: ResultFields = {}
    for name, weights in SECTION_WEIGHTS.items():
        section_rows = [row for row in rows if row.group in weights]
        counts = Counter(row.group for row in section_rows)
        weight = [weights[row.group] / counts[row.group] for row in section_rows]
        points = [
            SECTION_POINTS.get(row.verdicts.joint, 0.5) * w
            for row, w in zip(section_rows, weight, strict=True)
        ]
        if section_rows:
            queries = [row.query for row in section_rows]
            score = draws.percent("score", ratio(points, weight), queries)
            sections[name] = {"n": len(section_rows)} | score
    if len(sections) < len(SECTION_WEIGHTS):
        return sections
    scores = [section["score"] for section in sections.values()]
    total = sum(section["n"] for section in sections.values())
    return sections | {"mean": {"n": total, "score": round(sum(scores) / len(sections), 2)}}


def _compute_shares(rows: Sequence[JudgedPair], draws: Draws) -> ResultFields:
    verdicts, labels = [row.verdicts.joint for row in rows], [row.label for row in rows]
    queries = [row.query for row in rows]
    consistency: ResultFields = {"consistency": None, "consistency_95": [None, None]}
    if rows[0].verdicts.orders is not None:
        consistency = draws.percent("consistency", share(consistent(verdicts)), queries)
    return {
        "n": len(verdicts),
        "failed": verdicts.count(Verdict.FAILED),
        **draws.percent("agreement", share(agrees(verdicts, labels)), queries),
        **consistency,
        **draws.percent("ties", share([v is Verdict.TIE for v in verdicts]), queries),
        "human_ties": percentage(labels.count(Verdict.TIE) / len(labels)),
        "kappa": rounded(cohen_kappa(verdicts, labels), 4),
    }
