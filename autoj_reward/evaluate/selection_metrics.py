"""Metrics of best-of-N selection: grade of the chosen response, rank correlation and gain.

Pure functions over the responses to one query, their means over queries, and the metrics of Eval-R.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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
    Statistic,
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


def selection_metrics(rows: Sequence[GradedRow], draws: Draws) -> ResultFields:
    """Return the mean grade of the chosen responses by base model and N, and correlations.

    The correlations are over all candidates with a rating and a grade, and within each query. If
    every candidate is graded, the share of the possible gain over a random choice is added.
    """
    rows_by_base: dict[str, list[GradedRow]] = {}
    for row in rows:
        rows_by_base.setdefault(row.base, []).append(row)
    return {
        "overall": _compute_correlations(rows, draws),
        "bases": {
            base: _compute_correlations(members, draws)
            | {"ties": percentage(_compute_tie_rate([row.values for row in members]))}
            | {"best_of": _measure_sizes(members, draws)}
            for base, members in rows_by_base.items()
        },
    }


def _compute_correlations(rows: Sequence[GradedRow], draws: Draws) -> ResultFields:
    """Return correlations over the candidates with a rating and a grade (paper, section 6.3)."""
    graded_values = [
        (value, grade, row.query)
        for row in rows
        for value, grade in zip(row.values, row.grades, strict=False)
        if value is not None and grade is not None
    ]
    x, y, queries = ([row[k] for row in graded_values] for k in range(3))
    fields: ResultFields = {"queries": len(rows), "n": len(graded_values)}
    for name, measure in (("pearson", pearson), ("spearman", spearman)):
        fields |= draws.number(name, correlation(measure, x, y), queries)
    values = [row.values for row in rows]
    query_correlations = orders(values, [row.grades[: len(row.values)] for row in rows])
    defined_count = int((~np.isnan(query_correlations)).sum())
    return fields | {
        "within_query": {"spearman": rounded(mean(query_correlations), 6), "queries": defined_count}
    }


def _compute_tie_rate(values: Sequence[Scores]) -> float | None:
    """Return the share of equal values among all pairs of candidates of one query."""
    return ratio(*tie_counts(values).T)(np.arange(len(values)))


def _measure_sizes(rows: Sequence[GradedRow], draws: Draws) -> ResultFields:
    fields: ResultFields = {}
    queries = [row.query for row in rows]
    for size in rows[0].chosen[CONFIGURED]:
        picks = {rule: [row.chosen[rule][size] for row in rows] for rule in rows[0].chosen}
        configured = picks[CONFIGURED]
        best = _collect_grades(configured, rows)
        size_fields: dict[str, Any] = {
            "n": int((~np.isnan(best)).sum()),
            **draws.number("grade", share(best), queries),
            "decided_by": dict(Counter(selection.rule for selection in configured)),
            "tied": percentage(float(np.mean([bool(selection.tied) for selection in configured]))),
        }
        size_fields["other_tie_breaks"] = {
            rule: {
                "grade": rounded(mean(_collect_grades(other_picks, rows)), 6),
                "other_choice": percentage(
                    float(
                        np.mean(
                            [
                                a.index != b.index
                                for a, b in zip(configured, other_picks, strict=True)
                            ]
                        )
                    )
                ),
            }
            for rule, other_picks in picks.items()
            if rule != CONFIGURED
        }
        if all(None not in row.grades[:size] for row in rows):
            size_fields |= _compute_gain(best, [row.grades[:size] for row in rows], queries, draws)
        fields[str(size)] = size_fields
    return fields


def _compute_gain(
    best: Array, grades: Sequence[Scores], queries: Sequence[bytes], draws: Draws
) -> ResultFields:
    """Return the mean grade of a random and of the best choice, and the judge's share of the gain.

    best: grade of the judge's choice in each query.
    """
    grade_table = np.array(grades, dtype=float)
    chance, top = grade_table.mean(axis=1), grade_table.max(axis=1)
    return {
        "random_grade": rounded(mean(chance), 6),
        "best_grade": rounded(mean(top), 6),
        **draws.percent("gain_recovered", ratio(best - chance, top - chance), queries),
    }


def _collect_grades(picks: Sequence[Selection], rows: Sequence[GradedRow]) -> Array:
    grades = [row.grades[pick.index] for row, pick in zip(rows, picks, strict=True)]
    return np.array([np.nan if grade is None else grade for grade in grades], dtype=float)


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
    values_grades, values_lengths, grades_lengths = (float(r or 0.0) for r in pairs)
    unexplained = (1 - values_lengths**2) * (1 - grades_lengths**2)
    return (
        (values_grades - values_lengths * grades_lengths) / math.sqrt(unexplained)
        if unexplained > 1e-12
        else None
    )


def compute_best_drawn(values: ArrayLike, grades: ArrayLike, n: int) -> float:
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
    cumulative_counts = np.concatenate([[0], np.cumsum(counts)])
    ways = [_compute_share(int(k), size, n) for k in cumulative_counts]
    return float(np.bincount(level, grade) / counts @ np.diff(ways))


def gain(values: ArrayLike, grades: ArrayLike, n: int) -> float:
    """Return `compute_best_drawn` minus the mean of all grades."""
    return compute_best_drawn(values, grades, n) - float(np.mean(np.asarray(grades, float)))


def share_of_gain(
    values: Sequence[QueryNumbers], grades: Sequence[QueryNumbers], n: int
) -> Statistic:
    """Return the statistic of queries that divides the gain of the best of n by that of an oracle.

    One sequence of values and of grades for each query, with n responses or more.
    """
    gains = []
    best_gains = []
    for query_values, query_grades in zip(values, grades, strict=True):
        value = np.array(query_values, dtype=float)
        grade = np.array(query_grades, dtype=float)
        gains.append(gain(value, grade, n))
        best_gains.append(gain(grade, grade, n))
    return ratio(gains, best_gains)


def orders(
    values: Iterable[QueryNumbers],
    grades: Iterable[QueryNumbers],
    measure: Correlation = spearman,
) -> Array:
    """Return the correlation of values and grades within each query, shape [queries].

    Responses without a value or a grade are left out. nan where the correlation is undefined.
    """
    correlations = []
    for query_values, query_grades in zip(values, grades, strict=True):
        value, grade = np.array(query_values, dtype=float), np.array(query_grades, dtype=float)
        has_both = ~(np.isnan(value) | np.isnan(grade))
        r = measure(value[has_both], grade[has_both])
        correlations.append(math.nan if r is None else r)
    return np.array(correlations)


def tie_counts(values: Iterable[QueryNumbers]) -> Array:
    """Return (pairs of equal value, all pairs) of each query's known values, shape [queries, 2]."""
    rows = []
    for query_values in values:
        known_values = np.array(query_values, dtype=float)
        known_values = known_values[~np.isnan(known_values)]
        _, counts = np.unique(known_values, return_counts=True)
        rows.append([int((counts * (counts - 1) // 2).sum()), math.comb(len(known_values), 2)])
    return np.array(rows, dtype=float).reshape(-1, 2)


def mean_orders(queries: Sequence[WithinQuery]) -> dict[str, float]:
    """Return the means over queries of `order` and `order_given_length`, by name.

    Undefined correlations are left out, and so is a name for which all are undefined.
    """
    measures = {"order": order, "order_given_length": order_given_length}
    correlations = {
        name: [measure(query) for query in queries] for name, measure in measures.items()
    }
    defined = {name: [r for r in values if r is not None] for name, values in correlations.items()}
    return {name: fmean(values) for name, values in defined.items() if values}


@lru_cache(maxsize=4096)
def _compute_share(k: int, size: int, n: int) -> float:
    """Return the probability that n responses drawn from `size` are all among the lowest k."""
    return math.comb(k, n) / math.comb(size, n)
