"""Metrics of best-of-N selection: grade of the chosen response, rank correlation and gain.

Pure functions over the responses to one query, their means over queries, and the metrics of Eval-R.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from autoj_reward.evaluate.statistics import (
    Array,
    Correlation,
    Draws,
    ResultFields,
    Scores,
    correlation,
    mean,
    pearson,
    percentage,
    ratio,
    rounded,
    share,
    spearman,
)
from autoj_reward.types import Selection

QueryNumbers = Sequence[float | None] | Array
"""Numbers of the responses to one query; None and nan are unknown."""
Chosen = Mapping[str, Mapping[int, Selection]]
"""Choices of one row, by tie-break and by N; `configured` is the run's own tie-break."""
BudgetTokens = Mapping[int, tuple[int, float]]
"""Tokens that the judge wrote on a budget, and the estimate for full judging, by N."""
CONFIGURED = "configured"
"""Name of the run's own tie-break in `Chosen`."""


@dataclass(frozen=True, slots=True)
class GradedRow:
    """Ratings, grades and choices of one row, without the texts."""

    base: str
    """Base model that wrote the responses."""
    query: bytes
    """Digest of the query."""
    values: Scores
    """Ratings of the candidates that the largest N includes; None where the judge abstained."""
    grades: Scores
    """Grades of the candidates; None for one without a grade."""
    chosen: Chosen
    spent: BudgetTokens = field(default_factory=dict)
    """Token counts on a budget; empty without a budget."""


def selection_metrics(rows: Sequence[GradedRow], draws: Draws) -> ResultFields:
    """Return the mean grade of the chosen responses by base model and N, and correlations.

    The correlations are over all candidates with a rating and a grade, and within each query. If
    every candidate is graded, the share of the possible gain over a random choice is added.
    """
    own: dict[str, list[GradedRow]] = {}
    for row in rows:
        own.setdefault(row.base, []).append(row)
    return {
        "overall": _correlations(rows, draws),
        "bases": {
            base: _correlations(members, draws)
            | {"ties": percentage(_tie_rate([row.values for row in members]))}
            | {"best_of": _sizes(members, draws)}
            for base, members in own.items()
        },
    }


def _correlations(rows: Sequence[GradedRow], draws: Draws) -> ResultFields:
    """Return correlations over the candidates with a rating and a grade (paper, section 6.3)."""
    both = [
        (value, grade, row.query)
        for row in rows
        for value, grade in zip(row.values, row.grades, strict=False)
        if value is not None and grade is not None
    ]
    x, y, queries = ([row[k] for row in both] for k in range(3))
    found: ResultFields = {"queries": len(rows), "n": len(both)}
    for name, measure in (("pearson", pearson), ("spearman", spearman)):
        found |= draws.number(name, correlation(measure, x, y), queries)
    values = [row.values for row in rows]
    inside = orders(values, [row.grades[: len(row.values)] for row in rows])
    known = int((~np.isnan(inside)).sum())
    return found | {"within_query": {"spearman": rounded(mean(inside), 6), "queries": known}}


def _tie_rate(values: Sequence[Scores]) -> float | None:
    """Return the share of equal values among all pairs of candidates of one query."""
    return ratio(*tie_counts(values).T)(np.arange(len(values)))


def _sizes(rows: Sequence[GradedRow], draws: Draws) -> ResultFields:
    found: ResultFields = {}
    queries = [row.query for row in rows]
    for size in rows[0].chosen[CONFIGURED]:
        picks = {rule: [row.chosen[rule][size] for row in rows] for rule in rows[0].chosen}
        own = picks[CONFIGURED]
        best = _graded(own, rows)
        one: dict[str, Any] = {
            "n": int((~np.isnan(best)).sum()),
            **draws.number("grade", share(best), queries),
            "decided_by": dict(Counter(selection.rule for selection in own)),
            "tied": percentage(float(np.mean([bool(selection.tied) for selection in own]))),
        }
        one["other_tie_breaks"] = {
            rule: {
                "grade": rounded(mean(_graded(other, rows)), 6),
                "other_choice": percentage(
                    float(np.mean([a.index != b.index for a, b in zip(own, other, strict=True)]))
                ),
            }
            for rule, other in picks.items()
            if rule != CONFIGURED
        }
        if rows[0].spent:
            written, full = np.sum([row.spent[size] for row in rows], axis=0)
            one["written"] = percentage(written / full if full else None)
        if all(None not in row.grades[:size] for row in rows):
            one |= _gain(best, [row.grades[:size] for row in rows], queries, draws)
        found[str(size)] = one
    return found


def _gain(
    best: Array, grades: Sequence[Scores], queries: Sequence[bytes], draws: Draws
) -> ResultFields:
    """Return the mean grade of a random and of the best choice, and the judge's share of the gain.

    best: grade of the judge's choice in each query.
    """
    every = np.array(grades, dtype=float)
    chance, top = every.mean(axis=1), every.max(axis=1)
    return {
        "random_grade": rounded(mean(chance), 6),
        "best_grade": rounded(mean(top), 6),
        **draws.percent("gain_recovered", ratio(best - chance, top - chance), queries),
    }


def _graded(picks: Sequence[Selection], rows: Sequence[GradedRow]) -> Array:
    found = [row.grades[pick.index] for row, pick in zip(rows, picks, strict=True)]
    return np.array([np.nan if grade is None else grade for grade in found], dtype=float)


class WithinQuery(NamedTuple):
    """Numbers of the responses to one query."""

    values: Sequence[float]
    """Ratings by the judge or another rater."""
    grades: Sequence[float]
    lengths: Sequence[float]


def order(query: WithinQuery) -> float | None:
    """Return Spearman's correlation of values and grades; None if either is constant."""
    return spearman(query.values, query.grades)


def order_given_length(query: WithinQuery) -> float | None:
    """Return the partial rank correlation of values and grades given the lengths, -1..1.

    Returns None if one of the three is constant, or if values or grades have the same or the
    reverse order as the lengths.
    """
    pairs = (
        spearman(query.values, query.grades),
        spearman(query.values, query.lengths),
        spearman(query.grades, query.lengths),
    )
    if None in pairs:
        return None
    both, of_values, of_grades = (float(r or 0.0) for r in pairs)
    left = (1 - of_values**2) * (1 - of_grades**2)
    return (both - of_values * of_grades) / math.sqrt(left) if left > 1e-12 else None


def best_drawn(values: ArrayLike, grades: ArrayLike, n: int) -> float:
    """Return the expected grade of the best by value of `n` responses, over all ways to draw n.

    values, grades: shape [N]. Equal values are equally likely to be chosen; nan is the lowest
    value. With block b of equal values at ranks l_b+1 .. u_b of N, the result is
        sum_b mean grade of b * (C(u_b, n) - C(l_b, n)) / C(N, n).
    Raises ValueError for n outside 1..N.
    """
    value, grade = np.asarray(values, float), np.asarray(grades, float)
    size = len(value)
    if not 1 <= n <= size:
        raise ValueError(f"best of {n} is outside 1..{size}, the number of responses")
    _, level, counts = np.unique(
        np.where(np.isnan(value), -np.inf, value), return_inverse=True, return_counts=True
    )
    upto = np.concatenate([[0], np.cumsum(counts)])
    ways = [_share(int(k), size, n) for k in upto]
    return float(np.bincount(level, grade) / counts @ np.diff(ways))


def gain(values: ArrayLike, grades: ArrayLike, n: int) -> float:
    """Return `best_drawn` minus the mean of all grades."""
    return best_drawn(values, grades, n) - float(np.mean(np.asarray(grades, float)))


def orders(
    values: Iterable[QueryNumbers],
    grades: Iterable[QueryNumbers],
    measure: Correlation = spearman,
) -> Array:
    """Return the correlation of values and grades within each query, shape [queries].

    Responses without a value or a grade are left out. nan where the correlation is undefined.
    """
    found = []
    for own, graded in zip(values, grades, strict=True):
        value, grade = np.array(own, dtype=float), np.array(graded, dtype=float)
        known = ~(np.isnan(value) | np.isnan(grade))
        r = measure(value[known], grade[known])
        found.append(math.nan if r is None else r)
    return np.array(found)


def tie_counts(values: Iterable[QueryNumbers]) -> Array:
    """Return (pairs of equal value, all pairs) of each query's known values, shape [queries, 2]."""
    found = []
    for own in values:
        known = np.array(own, dtype=float)
        known = known[~np.isnan(known)]
        _, counts = np.unique(known, return_counts=True)
        found.append([int((counts * (counts - 1) // 2).sum()), math.comb(len(known), 2)])
    return np.array(found, dtype=float).reshape(-1, 2)


def mean_orders(queries: Sequence[WithinQuery]) -> dict[str, float]:
    """Return the means over queries of `order` and `order_given_length`, by name.

    Undefined correlations are left out, and so is a name for which all are undefined.
    """
    measures = {"order": order, "order_given_length": order_given_length}
    found = {name: [measure(query) for query in queries] for name, measure in measures.items()}
    known = {name: [r for r in values if r is not None] for name, values in found.items()}
    return {name: fmean(values) for name, values in known.items() if values}


@lru_cache(maxsize=4096)
def _share(k: int, size: int, n: int) -> float:
    """Return the probability that n responses drawn from `size` are all among the lowest k."""
    return math.comb(k, n) / math.comb(size, n)
