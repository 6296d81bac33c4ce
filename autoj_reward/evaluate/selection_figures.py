"""The figures of Eval-R: grades of the chosen, correlations, and what is left to gain. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoj_reward.evaluate import checks
from autoj_reward.evaluate.candidates import Candidates, Scores
from autoj_reward.evaluate.metrics import (
    Indices,
    Statistic,
    correlation,
    pearson,
    percent,
    rounded,
    spearman,
)
from autoj_reward.evaluate.results import Figures, Intervals
from autoj_reward.types import Judgement, Selection

Chosen = Mapping[str, Mapping[int, Selection]]
"""Tie-break to N to choice, for one row; `configured` is the run's own tie-break."""
CONFIGURED = "configured"
Values = NDArray[np.float64]


def figures(
    rows: Sequence[Candidates],
    judged: Sequence[Sequence[Judgement]],
    chosen: Sequence[Chosen],
    grades: Sequence[Scores],
    view: str,
    intervals: Intervals,
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
            | {"ties": percent(checks.tie_rate([values[i] for i in members]))}
            | {"best_of": _sizes(rows, chosen, values, grades, members, intervals)}
            for base, members in own.items()
        },
    }


def _correlations(
    rows: Sequence[Candidates],
    values: Sequence[Sequence[float | None]],
    grades: Sequence[Scores],
    members: Sequence[int],
    intervals: Intervals,
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
    mean, n = checks.within_query([values[i] for i in members], [grades[i] for i in members])
    return found | {"within_query": {"spearman": rounded(mean, 6), "queries": n}}


def _sizes(
    rows: Sequence[Candidates],
    chosen: Sequence[Chosen],
    values: Sequence[Sequence[float | None]],
    grades: Sequence[Scores],
    members: Sequence[int],
    intervals: Intervals,
) -> Figures:
    found: Figures = {}
    for size in chosen[members[0]][CONFIGURED]:
        picks = {rule: [chosen[i][rule][size] for i in members] for rule in chosen[members[0]]}
        own = picks[CONFIGURED]
        queries = [rows[i].query for i in members]
        best = _graded(own, grades, members)
        one: dict[str, Any] = {
            "n": int((~np.isnan(best)).sum()),
            **intervals.number("grade", _mean_of(best), queries),
            "decided_by": dict(Counter(selection.rule for selection in own)),
            "tied": percent(float(np.mean([bool(selection.tied) for selection in own]))),
        }
        one["other_tie_breaks"] = {
            rule: {
                "grade": rounded(_mean(_graded(other, grades, members)), 6),
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
    best: Values, grades: Sequence[Scores], queries: Sequence[str], intervals: Intervals
) -> Figures:
    """What a random choice, and the best one, would get; and where between them the judge is."""
    every = np.array(grades, dtype=float)
    mean, top = every.mean(axis=1), every.max(axis=1)

    def recovered(rows: Indices) -> float | None:
        possible = float((top - mean)[rows].sum())
        return float((best - mean)[rows].sum()) / possible if possible > 0 else None

    return {
        "random_grade": rounded(_mean(mean), 6),
        "best_grade": rounded(_mean(top), 6),
        **intervals.percent("gain_recovered", recovered, queries),
    }


def _graded(picks: Sequence[Selection], grades: Sequence[Scores], members: Sequence[int]) -> Values:
    found = [grades[i][pick.index] for i, pick in zip(members, picks, strict=True)]
    return np.array([np.nan if grade is None else grade for grade in found], dtype=float)


def _mean(values: Values) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else None


def _mean_of(values: Values) -> Statistic:
    return lambda rows: _mean(values[rows])
