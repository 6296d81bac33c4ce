"""The figures of Eval-R: grades of the chosen, correlations, and what is left to gain. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from autoj_reward.evaluate.candidates import Scores
from autoj_reward.evaluate.intervals import (
    Array,
    Draws,
    Figures,
    mean,
    percent,
    ratio,
    rounded,
    share,
)
from autoj_reward.evaluate.metrics import correlation, pearson, spearman
from autoj_reward.evaluate.within_query import orders, tie_counts
from autoj_reward.types import Selection

Chosen = Mapping[str, Mapping[int, Selection]]
"""Tie-break to N to choice, for one row; `configured` is the run's own tie-break."""
Spent = Mapping[int, tuple[int, float]]
"""By N: tokens that the judge wrote on a budget, and the estimate for full judging."""
CONFIGURED = "configured"


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept of a row for the figures: no text. query: its digest. values: of the candidates
    that some N considers; None where the judge abstained. grades: None where there is none.
    spent: empty without a budget."""

    base: str
    query: bytes
    values: Scores
    grades: Scores
    chosen: Chosen
    spent: Spent = field(default_factory=dict)


def figures(rows: Sequence[Kept], intervals: Draws) -> Figures:
    """By base model and N: the mean grade of the chosen; over all that was graded: correlations.

    Where every candidate is graded, also the correlation inside each query and the share of the
    possible gain over a random choice that the judge's choice makes.
    """
    own: dict[str, list[Kept]] = {}
    for row in rows:
        own.setdefault(row.base, []).append(row)
    return {
        "overall": _correlations(rows, intervals),
        "bases": {
            base: _correlations(members, intervals)
            | {"ties": percent(_tie_rate([row.values for row in members]))}
            | {"best_of": _sizes(members, intervals)}
            for base, members in own.items()
        },
    }


def _correlations(rows: Sequence[Kept], intervals: Draws) -> Figures:
    """Over every candidate that has both a rating and a grade (paper, section 6.3)."""
    both = [
        (value, grade, row.query)
        for row in rows
        for value, grade in zip(row.values, row.grades, strict=False)
        if value is not None and grade is not None
    ]
    x, y, queries = ([row[k] for row in both] for k in range(3))
    found: Figures = {"queries": len(rows), "n": len(both)}
    for name, measure in (("pearson", pearson), ("spearman", spearman)):
        found |= intervals.number(name, correlation(measure, x, y), queries)
    values = [row.values for row in rows]
    inside = orders(values, [row.grades[: len(row.values)] for row in rows])
    known = int((~np.isnan(inside)).sum())
    return found | {"within_query": {"spearman": rounded(mean(inside), 6), "queries": known}}


def _tie_rate(values: Sequence[Scores]) -> float | None:
    """Share of all pairs of candidates of one query that have the same value."""
    return ratio(*tie_counts(values).T)(np.arange(len(values)))


def _sizes(rows: Sequence[Kept], intervals: Draws) -> Figures:
    found: Figures = {}
    queries = [row.query for row in rows]
    for size in rows[0].chosen[CONFIGURED]:
        picks = {rule: [row.chosen[rule][size] for row in rows] for rule in rows[0].chosen}
        own = picks[CONFIGURED]
        best = _graded(own, rows)
        one: dict[str, Any] = {
            "n": int((~np.isnan(best)).sum()),
            **intervals.number("grade", share(best), queries),
            "decided_by": dict(Counter(selection.rule for selection in own)),
            "tied": percent(float(np.mean([bool(selection.tied) for selection in own]))),
        }
        one["other_tie_breaks"] = {
            rule: {
                "grade": rounded(mean(_graded(other, rows)), 6),
                "other_choice": percent(
                    float(np.mean([a.index != b.index for a, b in zip(own, other, strict=True)]))
                ),
            }
            for rule, other in picks.items()
            if rule != CONFIGURED
        }
        if rows[0].spent:
            written, full = np.sum([row.spent[size] for row in rows], axis=0)
            one["written"] = percent(written / full if full else None)
        if all(None not in row.grades[:size] for row in rows):
            one |= _gain(best, [row.grades[:size] for row in rows], queries, intervals)
        found[str(size)] = one
    return found


def _gain(
    best: Array, grades: Sequence[Scores], queries: Sequence[bytes], intervals: Draws
) -> Figures:
    """What a random choice, and the best one, would get; and where between them the judge is."""
    every = np.array(grades, dtype=float)
    chance, top = every.mean(axis=1), every.max(axis=1)
    return {
        "random_grade": rounded(mean(chance), 6),
        "best_grade": rounded(mean(top), 6),
        **intervals.percent("gain_recovered", ratio(best - chance, top - chance), queries),
    }


def _graded(picks: Sequence[Selection], rows: Sequence[Kept]) -> Array:
    found = [row.grades[pick.index] for row, pick in zip(rows, picks, strict=True)]
    return np.array([np.nan if grade is None else grade for grade in found], dtype=float)
