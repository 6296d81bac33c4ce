"""The figures of Eval-R: grades of the chosen, correlations, and what is left to gain. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from autoj_reward.evaluate.candidates import Candidates, Scores
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
from autoj_reward.types import Judgement, Selection

Chosen = Mapping[str, Mapping[int, Selection]]
"""Tie-break to N to choice, for one row; `configured` is the run's own tie-break."""
CONFIGURED = "configured"


def figures(
    rows: Sequence[Candidates],
    judged: Sequence[Sequence[Judgement]],
    chosen: Sequence[Chosen],
    grades: Sequence[Scores],
    view: str,
    intervals: Draws,
) -> Figures:
    """By base model and N: the mean grade of the chosen; over all that was graded: correlations.

    Where every candidate is graded, also the correlation inside each query and the share of the
    possible gain over a random choice that the judge's choice makes.
    """
    values = [[judgement.view(view) for judgement in own] for own in judged]
    bases = list(dict.fromkeys(row.base for row in rows))
    own = {base: [i for i, row in enumerate(rows) if row.base == base] for base in bases}
    return {
        "overall": _correlations(rows, values, grades, range(len(rows)), intervals),
        "bases": {
            base: _correlations(rows, values, grades, members, intervals)
            | {"ties": percent(_tie_rate([values[i] for i in members]))}
            | {"best_of": _sizes(rows, chosen, values, grades, members, intervals)}
            for base, members in own.items()
        },
    }


def _correlations(
    rows: Sequence[Candidates],
    values: Sequence[Sequence[float | None]],
    grades: Sequence[Scores],
    members: Sequence[int],
    intervals: Draws,
) -> Figures:
    """Over every candidate that has both a rating and a grade (paper, section 6.3)."""
    both = [
        (value, grade, rows[i].query)
        for i in members
        for value, grade in zip(values[i], grades[i], strict=False)
        if value is not None and grade is not None
    ]
    x, y, queries = ([row[k] for row in both] for k in range(3))
    found: Figures = {"queries": len(members), "n": len(both)}
    for name, measure in (("pearson", pearson), ("spearman", spearman)):
        found |= intervals.number(name, correlation(measure, x, y), queries)
    inside = orders([values[i] for i in members], [grades[i][: len(values[i])] for i in members])
    known = int((~np.isnan(inside)).sum())
    return found | {"within_query": {"spearman": rounded(mean(inside), 6), "queries": known}}


def _tie_rate(values: Sequence[Sequence[float | None]]) -> float | None:
    """Share of all pairs of candidates of one query that have the same value."""
    return ratio(*tie_counts(values).T)(np.arange(len(values)))


def _sizes(
    rows: Sequence[Candidates],
    chosen: Sequence[Chosen],
    values: Sequence[Sequence[float | None]],
    grades: Sequence[Scores],
    members: Sequence[int],
    intervals: Draws,
) -> Figures:
    found: Figures = {}
    for size in chosen[members[0]][CONFIGURED]:
        picks = {rule: [chosen[i][rule][size] for i in members] for rule in chosen[members[0]]}
        own = picks[CONFIGURED]
        queries = [rows[i].query for i in members]
        best = _graded(own, grades, members)
        one: dict[str, Any] = {
            "n": int((~np.isnan(best)).sum()),
            **intervals.number("grade", share(best), queries),
            "decided_by": dict(Counter(selection.rule for selection in own)),
            "tied": percent(float(np.mean([bool(selection.tied) for selection in own]))),
        }
        one["other_tie_breaks"] = {
            rule: {
                "grade": rounded(mean(_graded(other, grades, members)), 6),
                "other_choice": percent(
                    float(np.mean([a.index != b.index for a, b in zip(own, other, strict=True)]))
                ),
            }
            for rule, other in picks.items()
            if rule != CONFIGURED
        }
        if all(None not in grades[i][:size] for i in members):
            one |= _gain(best, [grades[i][:size] for i in members], queries, intervals)
        found[str(size)] = one
    return found


def _gain(
    best: Array, grades: Sequence[Scores], queries: Sequence[str], intervals: Draws
) -> Figures:
    """What a random choice, and the best one, would get; and where between them the judge is."""
    every = np.array(grades, dtype=float)
    chance, top = every.mean(axis=1), every.max(axis=1)
    return {
        "random_grade": rounded(mean(chance), 6),
        "best_grade": rounded(mean(top), 6),
        **intervals.percent("gain_recovered", ratio(best - chance, top - chance), queries),
    }


def _graded(picks: Sequence[Selection], grades: Sequence[Scores], members: Sequence[int]) -> Array:
    found = [grades[i][pick.index] for i, pick in zip(members, picks, strict=True)]
    return np.array([np.nan if grade is None else grade for grade in found], dtype=float)
