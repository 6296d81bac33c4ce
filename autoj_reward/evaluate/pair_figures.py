"""Figures of labelled pairs, out of the little that is kept of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from autoj_reward.evaluate import checks
from autoj_reward.evaluate.checks import Sure
from autoj_reward.evaluate.intervals import Draws, Figures, percent, rounded, share
from autoj_reward.evaluate.metrics import (
    Shown,
    agrees,
    cohen_kappa,
    consistent,
    pointwise_verdicts,
    position,
    search_tie_threshold,
)
from autoj_reward.evaluate.pair_files import Pair
from autoj_reward.evaluate.rows import by_group
from autoj_reward.evaluate.sections import sections
from autoj_reward.io.files import text_digest
from autoj_reward.types import Judgement, Verdict


@dataclass(frozen=True, slots=True)
class Said:
    """What was said of a pair.

    joint: the verdict of both orders, or of a rating of each response alone. shown: what each
    order said as it showed the pair; None where there is one order only. judgements: in the order
    asked, of the first time; none where verdicts came from a file. rounds: the joint verdict of
    every time. gap: of ratings, that of the first response less that of the second; None if one is
    missing.
    """

    joint: Verdict
    shown: tuple[Shown, Shown] | None = None
    judgements: tuple[Judgement, ...] = ()
    rounds: tuple[Verdict, ...] = ()
    gap: float | None = None


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept of a pair for the figures: no text of it nor of its judgements.

    query: its digest, by which rows of one query are drawn together. lengths, marks: characters of
    both responses, and their marks of Markdown. sure: of each order that gave probabilities. The
    others as of `Pair` and `Said`.
    """

    query: bytes
    group: str
    label: Verdict
    lengths: tuple[float, float]
    marks: tuple[float, float]
    joint: Verdict
    shown: tuple[Shown, Shown] | None
    rounds: tuple[Verdict, ...]
    gap: float | None
    sure: tuple[Sure, ...]


def keep(pair: Pair, said: Said) -> Kept:
    """What the figures need of a pair and of what was said."""
    first, second = pair.responses
    labels = (pair.label, pair.label.swapped())
    orders = zip(said.judgements, labels, strict=True) if said.judgements else ()
    return Kept(
        text_digest(pair.query),
        pair.group,
        pair.label,
        (checks.length(first), checks.length(second)),
        (checks.markup(first), checks.markup(second)),
        said.joint,
        said.shown,
        said.rounds,
        said.gap,
        tuple(found for one, label in orders if (found := checks.sure(one, label))),
    )


def figures(rows: Sequence[Kept], extra: Figures, intervals: Draws) -> Figures:
    """Overall and by group; the biases; agreement beyond chance. extra: figures of their own."""
    members = by_group([row.group for row in rows])
    said, labels = [row.joint for row in rows], [row.label for row in rows]
    shown = [row.shown for row in rows if row.shown]
    biases: Figures = {
        "length": checks.leaning([row.lengths for row in rows], said, labels),
        "style": checks.leaning([row.marks for row in rows], said, labels),
    }
    if shown:
        place = position(shown)
        biases["position"] = asdict(place) | {"first_share": percent(place.first_share)}
    groups = {name: [rows[i] for i in own] for name, own in members.items()}
    return {
        "protocol": "pairwise" if shown else "pointwise",
        "overall": _shares(rows, intervals),
        "groups": {name: _shares(own, intervals) for name, own in groups.items()},
        "bias": biases,
        **extra,
    }


def of_comparisons(rows: Sequence[Kept]) -> Figures:
    """Whether the judge means what it says, and says it again."""
    extra: Figures = {"calibration": checks.calibration([one for row in rows for one in row.sure])}
    rounds = list(zip(*(row.rounds for row in rows), strict=True))
    return extra | ({"stability": checks.stability(rounds)} if len(rounds) > 1 else {})


def of_ratings(rows: Sequence[Kept]) -> Figures:
    """What the threshold of 0 to 2.0 with the highest agreement on these very rows would give,
    which is how the authors report scalar reward models, and flatters them."""
    gaps, labels = [row.gap for row in rows], [row.label for row in rows]
    best = search_tie_threshold(gaps, labels)
    hits = agrees(pointwise_verdicts(gaps, best), labels)
    return {
        "searched_on_these_rows": {
            "tie_threshold": best,
            "agreement": percent(float(hits.mean())),
        },
        "equal_values": sum(gap == 0 for gap in gaps),
    }


def of_sections(rows: Sequence[Kept], intervals: Draws) -> Figures:
    """RewardBench's scores."""
    subsets, queries = [row.group for row in rows], [row.query for row in rows]
    return sections(subsets, [row.joint for row in rows], queries, intervals)


def _shares(rows: Sequence[Kept], intervals: Draws) -> Figures:
    said, labels = [row.joint for row in rows], [row.label for row in rows]
    queries = [row.query for row in rows]
    both = rows[0].shown is not None
    return {
        "n": len(said),
        "failed": said.count(Verdict.FAILED),
        **intervals.percent("agreement", share(agrees(said, labels)), queries),
        **(
            intervals.percent("consistency", share(consistent(said)), queries)
            if both
            else {"consistency": None, "consistency_95": [None, None]}
        ),
        **intervals.percent("ties", share([v is Verdict.TIE for v in said]), queries),
        "human_ties": percent(labels.count(Verdict.TIE) / len(labels)),
        "kappa": rounded(cohen_kappa(said, labels), 4),
    }
