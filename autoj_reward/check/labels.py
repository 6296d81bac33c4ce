"""Measures of a judge on rows that people or a stronger judge have labelled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from autoj_reward.check.measures import Measurement, tabulate
from autoj_reward.check.probes import Finding, Probe, compare_with_bound
from autoj_reward.config import View
from autoj_reward.evaluate.agreement import calibration_bins, calibration_error
from autoj_reward.evaluate.labelled_groups import LabelledGroup
from autoj_reward.evaluate.selection_metrics import WithinQuery, mean_orders
from autoj_reward.evaluate.statistics import Array, Draws, Indices, difference, share
from autoj_reward.types import DIRECT, RATING, Judgement

AGREEMENT = Probe(
    "agreement", "labelled pairs in the order of their grades", 0.6, float("inf"),
    "does not order responses as the labels do",
)  # fmt: skip
BEYOND_LENGTH = Probe(
    "beyond length", "agreement less that of the longer response", 0.0, float("inf"),
    "orders worse than the length of the responses does", ("agreement",),
)  # fmt: skip
CALIBRATION = Probe(
    "calibration", "expected calibration error, as a share of the scale", float("-inf"), 0.1,
    "gives numbers that do not mean what the labels mean",
)  # fmt: skip
CENTRED = "set reward.shaping.whiten: group (its order counts, not its numbers)"
"""Setting that helps against a judge that is not calibrated."""
MAPPED = "run `autoj calibrate` with ratings like these and set reward.calibration to its file"
"""Setting that helps where ratings are at hand."""
THIRDS = ("short", "medium", "long")
"""Names of thirds of the pairs by the mean length of their responses."""


@dataclass(frozen=True, slots=True)
class JudgedGroup:
    """A labelled group with a judgement of each response."""

    group: LabelledGroup
    judgements: tuple[Judgement, ...]


@dataclass(frozen=True, slots=True)
class LabelledDuel:
    """Two responses with different grades; the first one is better."""

    query: int
    """Index of the group. The bootstrap resamples pairs of one group together."""
    kind: str
    chars: float
    """Mean length of the two responses in characters."""
    hit: float
    """1 if the judge's numbers have the order of the grades, 0.5 if they are equal, else 0."""
    length_hit: float
    """The same for the lengths of the responses as numbers."""
    chance: float | None
    """Probability by the judge's distributions that the better one is rated higher; equal ratings
    count half. None without distributions."""


def probe_labels(
    judged_groups: Sequence[JudgedGroup],
    view: View,
    scale: tuple[float, float] | None,
    draws: Draws,
) -> list[Finding]:
    """Measure the judge on labelled rows. scale: its lowest and highest rating, if it has any."""
    duels = list(_yield_duels(judged_groups, view))
    agreement = compare_with_bound(
        AGREEMENT, _measure_agreement(judged_groups, duels, view, draws), {}
    )
    beyond_length = _measure_beyond_length(duels, draws)
    earlier = {AGREEMENT.name: agreement}
    rated_groups = [judged_group for judged_group in judged_groups if judged_group.group.on_scale]
    calibration = _measure_pair_calibration(duels, draws)
    if scale and rated_groups:
        calibration = _measure_rating_calibration(rated_groups, view, scale, draws)
    return [
        agreement,
        compare_with_bound(BEYOND_LENGTH, beyond_length, earlier),
        compare_with_bound(CALIBRATION, calibration, earlier),
    ]


def _yield_duels(judged_groups: Sequence[JudgedGroup], view: View) -> Iterator[LabelledDuel]:
    for n, judged_group in enumerate(judged_groups):
        values = [judgement.view(view) for judgement in judged_group.judgements]
        for i, j in combinations(range(len(values)), 2):
            a, b = (i, j) if judged_group.group.grades[i] > judged_group.group.grades[j] else (j, i)
            first, second = values[a], values[b]
            if (
                judged_group.group.grades[a] == judged_group.group.grades[b]
                or first is None
                or second is None
            ):
                continue
            sizes = [len(judged_group.group.responses[k].text) for k in (a, b)]
            yield LabelledDuel(
                n,
                judged_group.group.kind,
                sum(sizes) / 2,
                _compute_point(first - second),
                _compute_point(sizes[0] - sizes[1]),
                _compute_chance(judged_group.judgements[a], judged_group.judgements[b], view),
            )


def _compute_point(gap: float) -> float:
    return float((np.sign(gap) + 1) / 2)


def _compute_chance(better: Judgement, worse: Judgement, view: View) -> float | None:
    """Return the probability that an independent draw rates the better one higher."""
    slot = DIRECT if view == "direct" else RATING
    distributions = [_read_distribution(judgement, slot) for judgement in (better, worse)]
    if None in distributions:
        return None
    (x, p), (y, q) = (distribution for distribution in distributions if distribution is not None)
    return float(p @ ((np.sign(x[:, None] - y[None, :]) + 1) / 2) @ q)


def _read_distribution(judgement: Judgement, slot: str) -> tuple[Array, Array] | None:
    """Return ratings and their probabilities; None if the judge gave none."""
    reading = judgement.reading(slot)
    if reading is None or not reading.distribution or reading.expected is None:
        return None
    labels, shares = zip(*reading.distribution, strict=True)
    p = np.array(shares, dtype=float)
    return np.array([float(label) for label in labels]), p / p.sum()


def _measure_agreement(
    judged_groups: Sequence[JudgedGroup], duels: Sequence[LabelledDuel], view: View, draws: Draws
) -> Measurement:
    """Measure agreement, and where it is low: by kind and by length."""
    if not duels:
        return Measurement(None, "no query has two responses with different grades and a number")
    hits, queries = [duel.hit for duel in duels], [duel.query for duel in duels]
    ends = np.quantile([duel.chars for duel in duels], [1 / 3, 2 / 3])
    thirds = [THIRDS[int(np.searchsorted(ends, duel.chars))] for duel in duels]
    by_length = tabulate(thirds, hits, queries, draws)
    tables = {
        "Agreement by length of the responses": sorted(
            by_length, key=lambda row: THIRDS.index(row["group"])
        ),
        "Agreement by kind": tabulate([duel.kind for duel in duels], hits, queries, draws),
    }
    within_queries = [
        WithinQuery(*zip(*known_numbers, strict=True))
        for judged_group in judged_groups
        if len(judged_group.judgements) > 2
        and (known_numbers := _collect_known_numbers(judged_group, view))
    ]
    correlations = mean_orders(within_queries)
    about = "; ".join(f"{name} within a query {r:.2f}" for name, r in correlations.items())
    return Measurement(draws.over(share(hits), len(hits), queries), about, tables=tables)


def _collect_known_numbers(
    judged_group: JudgedGroup, view: View
) -> list[tuple[float, float, float]]:
    """Return number, grade and length of each response with a number."""
    rows = zip(
        judged_group.judgements,
        judged_group.group.grades,
        judged_group.group.responses,
        strict=True,
    )
    numbers = (
        (judgement.view(view), grade, float(len(response.text)))
        for judgement, grade, response in rows
    )
    return [(value, grade, size) for value, grade, size in numbers if value is not None]


def _measure_beyond_length(duels: Sequence[LabelledDuel], draws: Draws) -> Measurement:
    if not duels:
        return Measurement(None, "no labelled pairs")
    hits, by_length = ([duel.hit for duel in duels], [duel.length_hit for duel in duels])
    queries = [duel.query for duel in duels]
    estimate = draws.over(difference(share(hits), share(by_length)), len(duels), queries)
    return Measurement(estimate, f"the longer response agrees in {np.mean(by_length):.2f}")


def _measure_rating_calibration(
    judged_groups: Sequence[JudgedGroup], view: View, scale: tuple[float, float], draws: Draws
) -> Measurement:
    """Measure the gap between the judge's numbers and labels on the same scale."""
    rows = [
        (value, grade, n)
        for n, judged_group in enumerate(judged_groups)
        for value, grade, _ in _collect_known_numbers(judged_group, view)
    ]  # fmt: skip
    if not rows:
        return Measurement(None, "no rating has a number of the judge beside it")
    values, grades, queries = (list(column) for column in zip(*rows, strict=True))
    p, y = np.array(values), np.array(grades)
    about = f"mean number {p.mean():.2f}, mean label {y.mean():.2f}"
    return _measure_calibration(p, y, queries, scale, about, MAPPED, draws)


def _measure_pair_calibration(duels: Sequence[LabelledDuel], draws: Draws) -> Measurement:
    """Measure the gap between how sure the judge is of its order and how often it is right."""
    duel_chances = [(duel.chance, duel.query) for duel in duels if duel.chance is not None]
    if not duel_chances:
        return Measurement(None, "the judge gives no distributions")
    chances = np.array([chance for chance, _ in duel_chances])
    confidences, hits = np.maximum(chances, 1 - chances), (chances >= 0.5).astype(float)
    # The squared errors of both orders, summed as those of three verdicts in `calibration`.
    about = f"Brier score {2 * np.mean((1 - chances) ** 2):.3f}"
    return _measure_calibration(
        confidences, hits, [query for _, query in duel_chances], (0, 1), about, CENTRED, draws
    )


def _measure_calibration(
    predictions: Array,
    observations: Array,
    queries: Sequence[int],
    scale: tuple[float, float],
    about: str,
    setting: str,
    draws: Draws,
) -> Measurement:
    """Measure the calibration error of predictions, as a share of their scale. Shapes [n]."""
    low, high = scale

    def error(rows: Indices) -> float | None:
        gap = calibration_error(calibration_bins(predictions[rows], observations[rows], low, high))
        return None if gap is None else gap / (high - low)

    curve = [
        {
            "from": calibration_bin.start,
            "predicted": calibration_bin.predicted,
            "observed": calibration_bin.observed,
            "n": calibration_bin.n,
        }
        for calibration_bin in calibration_bins(predictions, observations, low, high)
    ]
    estimate = draws.over(error, len(predictions), queries)
    return Measurement(estimate, about, setting, {"Calibration curve": curve})
