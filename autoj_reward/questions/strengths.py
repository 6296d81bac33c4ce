"""Fits for groups: Bradley-Terry strengths from comparisons, and scores from several judgements.

They are written without numpy, which a trainer's client does not install. Groups are small, so
solving the equations directly is fast enough.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PRIOR = 0.25
"""Precision of the normal prior on each strength: a standard deviation of two logits. It keeps the
fit finite where a response wins or loses all of its comparisons."""
STEPS = 50
TOLERANCE = 1e-9
RIDGE = 1e-9
"""Added to the diagonal, so that the equations can be solved if judgements share no response."""

Matrix = list[list[float]]
Win = tuple[int, int, float]
"""Two responses by index, and the share of their comparison that the first won, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Strengths:
    """Bradley-Terry strengths and their covariance."""

    values: tuple[float, ...]
    """Strength of each response, in logits."""
    covariance: Matrix
    """Covariance of the strengths, count by count."""


def fit_bradley_terry(count: int, wins: Sequence[Win]) -> Strengths:
    """Fit the strengths of `count` responses to fractional wins by Newton's method.

    The log-posterior is the sum of w log s(d) + (1 - w) log s(-d) over all wins, with s the
    logistic function and d the difference of strengths, less PRIOR / 2 times each strength squared.
    The covariance is the inverse of its negative Hessian. A response without a comparison keeps
    strength 0.
    """
    values = [0.0] * count
    for _ in range(STEPS):
        gradient = [-PRIOR * v for v in values]
        hessian = _make_diagonal(count, PRIOR)
        for i, j, won in wins:
            p = logistic(values[i] - values[j])
            gradient[i] += won - p
            gradient[j] -= won - p
            weight = p * (1 - p)
            hessian[i][i] += weight
            hessian[j][j] += weight
            hessian[i][j] -= weight
            hessian[j][i] -= weight
        inverse = invert(hessian)
        step = [sum(a * g for a, g in zip(row, gradient, strict=True)) for row in inverse]
        values = [v + s for v, s in zip(values, step, strict=True)]
        if max(map(abs, step), default=0.0) < TOLERANCE:
            break
    return Strengths(tuple(values), inverse)


def win_rates(
    strengths: Strengths, copies: Sequence[int], compared_responses: Sequence[int]
) -> dict[int, tuple[float, float]]:
    """Return win rates and their standard errors (delta method) of the compared responses.

    A win rate is expected against a random other response of the group, 0 to 1. copies: how often
    each response occurs in the group. A response wins half the time against its own copy.
    """
    values, rates = strengths.values, {}
    total = sum(copies[i] for i in compared_responses)
    for i in compared_responses:
        rate, slope = 0.5 * (copies[i] - 1), dict[int, float]()
        for j in compared_responses:
            if j != i:
                p = logistic(values[i] - values[j])
                rate += copies[j] * p
                slope[j] = -copies[j] * p * (1 - p)
        slope[i] = -sum(slope.values())
        variance = sum(
            a * b * strengths.covariance[j][k] for j, a in slope.items() for k, b in slope.items()
        )
        others = total - 1
        rates[i] = rate / others, math.sqrt(max(0.0, variance)) / others
    return rates


def join_scores(
    scores_by_judgement: Sequence[Mapping[int, float]],
) -> dict[int, tuple[float, float | None]]:
    """Join the scores of overlapping judgements that differ in severity, by least squares.

    scores_by_judgement: for each judgement the scores by response. The model is score = worth of
    the response + severity of the judgement, where severities add up to 0. If every judgement saw
    every response, a worth is the mean of its scores. Returns worths with standard errors from the
    pooled residual; an error is None without residual degrees of freedom.
    """
    numbers_by_response: dict[int, list[int]] = {}
    for number, scores in enumerate(scores_by_judgement):
        for i in scores:
            numbers_by_response.setdefault(i, []).append(number)
    means = {
        i: sum(scores_by_judgement[number][i] for number in numbers) / len(numbers)
        for i, numbers in numbers_by_response.items()
    }
    count = len(scores_by_judgement)
    coefficients: Matrix = [[1 / count] * count for _ in range(count)]
    constants = [0.0] * count
    for number, scores in enumerate(scores_by_judgement):
        coefficients[number][number] += len(scores) + RIDGE
        for i, score in scores.items():
            constants[number] += score - means[i]
            for other in numbers_by_response[i]:
                coefficients[number][other] -= 1 / len(numbers_by_response[i])
    severity = [
        sum(a * b for a, b in zip(row, constants, strict=True))
        for row in (invert(coefficients) if scores_by_judgement else [])
    ]
    worth = {
        i: means[i] - sum(severity[number] for number in numbers) / len(numbers)
        for i, numbers in numbers_by_response.items()
    }
    residuals = [
        scores[i] - worth[i] - severity[number]
        for number, scores in enumerate(scores_by_judgement)
        for i in scores
    ]
    degrees_of_freedom = len(residuals) - len(numbers_by_response) - count + 1
    variance = (
        sum(r * r for r in residuals) / degrees_of_freedom if degrees_of_freedom > 0 else None
    )
    return {
        i: (value, None if variance is None else math.sqrt(variance / len(numbers_by_response[i])))
        for i, value in worth.items()
    }


def logistic(x: float) -> float:
    """Return 1 / (1 + exp(-x))."""
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


def _make_diagonal(count: int, value: float) -> Matrix:
    return [[value if i == j else 0.0 for j in range(count)] for i in range(count)]


def invert(matrix: Matrix) -> Matrix:
    """Invert a matrix by Gauss-Jordan elimination with pivoting.

    Raises ZeroDivisionError if it is singular.
    """
    count = len(matrix)
    rows = [[*row, *unit] for row, unit in zip(matrix, _make_diagonal(count, 1.0), strict=True)]
    for n in range(count):
        best = max(range(n, count), key=lambda k: abs(rows[k][n]))
        rows[n], rows[best] = rows[best], rows[n]
        pivot = rows[n][n]
        rows[n] = pivot_row = [value / pivot for value in rows[n]]
        for k in range(count):
            if k != n and (factor := rows[k][n]):
                rows[k] = [a - factor * b for a, b in zip(rows[k], pivot_row, strict=True)]
    return [row[count:] for row in rows]
