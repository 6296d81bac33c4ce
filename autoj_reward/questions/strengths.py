"""Fits for groups: Bradley-Terry strengths from comparisons, and scores from several judgements.

They are written without numpy, which a trainer's client does not install. Groups are small, so
their equations are solved directly. Judgements of a group may be many, so scores are joined by
conjugate gradients, at a cost that grows with the number of scores. Either may still take a part of
a second: call them in a thread where an event loop must go on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import mul

PRIOR = 0.25
"""Precision of the normal prior on each strength: a standard deviation of two logits. It keeps the
fit finite where a response wins or loses all of its comparisons."""
STEPS = 50
TOLERANCE = 1e-9
RESIDUAL = 1e-13
"""Norm of the residual at which scores count as joined. Scores are shares, 0 to 1."""

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
        [step] = solve(hessian, [gradient])
        values = [v + s for v, s in zip(values, step, strict=True)]
        if max(map(abs, step), default=0.0) < TOLERANCE:
            break
    return Strengths(tuple(values), solve(hessian, _make_diagonal(count, 1.0)))


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
        rate = 0.5 * (copies[i] - 1)
        slope = [0.0] * len(values)
        for j in compared_responses:
            if j != i:
                p = logistic(values[i] - values[j])
                rate += copies[j] * p
                slope[j] = -copies[j] * p * (1 - p)
        slope[i] = -sum(slope)
        variance = sum(map(mul, slope, (_dot(row, slope) for row in strengths.covariance)))
        others = total - 1
        rates[i] = rate / others, math.sqrt(max(0.0, variance)) / others
    return rates


def join_scores(
    scores_by_judgement: Sequence[Mapping[int, float]],
) -> dict[int, tuple[float, float | None]]:
    """Join the scores of overlapping judgements that differ in severity, by least squares.

    scores_by_judgement: for each judgement the scores by response. The model is score = worth of
    the response + severity of the judgement, where severities add up to 0, also among those that
    are linked by common responses. If every judgement saw every response, a worth is the mean of
    its scores. Returns worths with standard errors from the pooled residual; an error is None
    without residual degrees of freedom.
    """
    numbers_by_response: dict[int, list[int]] = {}
    for number, scores in enumerate(scores_by_judgement):
        for i in scores:
            numbers_by_response.setdefault(i, []).append(number)
    means = {
        i: sum(scores_by_judgement[number][i] for number in numbers) / len(numbers)
        for i, numbers in numbers_by_response.items()
    }
    severities = _fit_severities(scores_by_judgement, numbers_by_response, means)
    worth = {
        i: means[i] - sum(severities[number] for number in numbers) / len(numbers)
        for i, numbers in numbers_by_response.items()
    }
    residuals = [
        score - worth[i] - severities[number]
        for number, scores in enumerate(scores_by_judgement)
        for i, score in scores.items()
    ]
    count = len(scores_by_judgement)
    degrees_of_freedom = len(residuals) - len(numbers_by_response) - count + 1
    variance = (
        sum(r * r for r in residuals) / degrees_of_freedom if degrees_of_freedom > 0 else None
    )
    return {
        i: (value, None if variance is None else math.sqrt(variance / len(numbers_by_response[i])))
        for i, value in worth.items()
    }


def _fit_severities(
    scores_by_judgement: Sequence[Mapping[int, float]],
    numbers_by_response: Mapping[int, Sequence[int]],
    means: Mapping[int, float],
) -> list[float]:
    """Return the severity of each judgement, by the method of conjugate gradients.

    The normal equations, with the worths eliminated, say for each judgement: its severity times its
    number of scores, less the mean severity at each of its responses, is the sum of its scores'
    distances from the means of their responses. Their matrix is never built.
    """

    def apply_matrix(severities: Sequence[float]) -> list[float]:
        mean_severities = {
            i: sum(severities[number] for number in numbers) / len(numbers)
            for i, numbers in numbers_by_response.items()
        }
        return [
            len(scores) * severity - sum(mean_severities[i] for i in scores)
            for severity, scores in zip(severities, scores_by_judgement, strict=True)
        ]

    count = len(scores_by_judgement)
    severities = [0.0] * count
    residual = [
        sum(score - means[i] for i, score in scores.items()) for scores in scores_by_judgement
    ]
    direction = residual
    square = _dot(residual, residual)
    # In exact arithmetic as many steps as judgements are enough; most groups take a few.
    for _ in range(2 * count):
        if square <= RESIDUAL**2:
            break
        image = apply_matrix(direction)
        curvature = _dot(direction, image)
        if curvature <= 0:  # what is left is rounding
            break
        length = square / curvature
        severities = _add(severities, length, direction)
        residual = _add(residual, -length, image)
        last_square, square = square, _dot(residual, residual)
        direction = _add(residual, square / last_square, direction)
    return severities


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    total: float = sum(map(mul, a, b))
    return total


def _add(a: Sequence[float], factor: float, b: Sequence[float]) -> list[float]:
    return [x + factor * y for x, y in zip(a, b, strict=True)]


def logistic(x: float) -> float:
    """Return 1 / (1 + exp(-x))."""
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


def _make_diagonal(count: int, value: float) -> Matrix:
    return [[value if i == j else 0.0 for j in range(count)] for i in range(count)]


def solve(matrix: Matrix, columns: Sequence[Sequence[float]]) -> Matrix:
    """Return the solution x of `matrix` x = column for each column, by Cholesky factors.

    matrix: symmetric and positive definite, as a Hessian with a prior is.
    """
    factor: Matrix = []
    for n, row in enumerate(matrix):
        factor_row: list[float] = []
        for k in range(n + 1):
            rest = row[k] - sum(map(mul, factor_row, factor[k] if k < n else factor_row))
            factor_row.append(math.sqrt(rest) if k == n else rest / factor[k][k])
        factor.append(factor_row)
    transposed = [[factor[n][k] for n in range(k, len(factor))] for k in range(len(factor))]
    solutions = []
    for column in columns:
        forward: list[float] = []
        for n, value in enumerate(column):
            forward.append((value - sum(map(mul, factor[n], forward))) / factor[n][n])
        backward: list[float] = []
        for n in reversed(range(len(forward))):
            rest = forward[n] - sum(map(mul, transposed[n][1:], reversed(backward)))
            backward.append(rest / factor[n][n])
        solutions.append(backward[::-1])
    return solutions
