"""Metrics of several judges on the same labelled responses, and their paired differences.

Pure functions of grades, lengths and what the judges answered. A duel is two responses to one
query. Every metric is a ratio of sums over queries, so that queries are resampled, not duels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from autoj_reward.evaluate.ask import JudgementCost
from autoj_reward.evaluate.selection_metrics import share_of_gain
from autoj_reward.evaluate.statistics import (
    Array,
    Draws,
    Indices,
    ResultFields,
    Scores,
    Statistic,
    difference,
    ratio,
)
from autoj_reward.types import Verdict

SIZES = (2, 4, 8, 16, 32, 64)
"""Values of N for best-of-N. Those above every query's number of responses are left out."""
POINTS = {Verdict.FIRST: 1.0, Verdict.SECOND: 0.0, Verdict.TIE: 0.5, Verdict.INCONSISTENT: 0.5}
"""Points of the first response of a comparison. A failed one has none."""


@dataclass(frozen=True, slots=True)
class ComparedGroup:
    """Labels and lengths of the responses to one query."""

    query: bytes
    """Digest of the query. The bootstrap resamples groups of one query together."""
    grades: tuple[float, ...]
    lengths: tuple[float, ...]
    """Characters of the responses."""
    compared: bool
    """Whether the grades stand for the label of a pair, so that only their order counts."""


@dataclass(frozen=True, slots=True)
class JudgedResponses:
    """Answers of one judge about all groups."""

    view: str
    """The view that counts, or `comparisons`."""
    numbers: Sequence[Scores] | None
    """Number of each response of each group, None where the judge abstained. None for a judge that
    compares."""
    points: Sequence[Scores]
    """Points of the first response of each duel of each group: 1, 0.5 or 0; None where the judge
    abstained."""
    asked: int
    """Number of ratings or comparisons."""
    abstained: int
    """Those without a number or verdict."""
    cost: JudgementCost
    inconsistent: int | None = None
    """Comparisons whose two orders disagree; None for ratings."""

    @classmethod
    def of_numbers(
        cls, view: str, numbers: Sequence[Scores], cost: JudgementCost
    ) -> JudgedResponses:
        """Return the answers of a judge that rates each response alone."""
        points = [tuple(_compare_numbers(scores)) for scores in numbers]
        every = [number for scores in numbers for number in scores]
        return cls(view, numbers, points, len(every), every.count(None), cost)

    @classmethod
    def of_verdicts(
        cls, verdicts: Sequence[Sequence[Verdict]], cost: JudgementCost
    ) -> JudgedResponses:
        """Return the answers of a judge that compares, in the order of the duels."""
        points = [tuple(POINTS.get(verdict) for verdict in group) for group in verdicts]
        every = [verdict for group in verdicts for verdict in group]
        return cls(
            "comparisons",
            None,
            points,
            len(every),
            every.count(Verdict.FAILED),
            cost,
            every.count(Verdict.INCONSISTENT),
        )

    @property
    def has_numbers(self) -> bool:
        """Whether the judge answered at all."""
        return self.abstained < self.asked

    def find_answers(self, place: int) -> Scores:
        """Return the numbers of the responses of a group, or the points of its duels."""
        return (self.points if self.numbers is None else self.numbers)[place]


def count_duels(responses: int) -> int:
    """Return the number of pairs of so many responses."""
    return responses * (responses - 1) // 2


def _compare_numbers(scores: Scores) -> Iterator[float | None]:
    for first, second in combinations(scores, 2):
        if first is None or second is None:
            yield None
        else:
            yield (np.sign(first - second) + 1) / 2


class Duels:
    """All duels of all groups as arrays with one element for each duel."""

    def __init__(self, groups: Sequence[ComparedGroup]) -> None:
        self.group: Indices = np.repeat(
            np.arange(len(groups)), [count_duels(len(group.grades)) for group in groups]
        )
        """Index of the group."""
        self.label = _compute_signs([group.grades for group in groups])
        """1 if the first response is labelled better, -1 if the second one is, else 0."""
        self.longer = _compute_signs([group.lengths for group in groups])
        """1 if the first response is longer, -1 if the second one is, else 0."""
        self._groups = len(groups)

    def agreement(self, points: Array, among: NDArray[np.bool_]) -> Statistic:
        """Return the share of labelled duels that the points decide as the label does.

        A tie counts half. points: shape [duels], nan where the judge abstained. among: duels that
        count.
        """
        counted = among & (self.label != 0) & ~np.isnan(points)
        return self._ratio(np.where(self.label > 0, points, 1 - points), counted)

    def ties(self, points: Array, among: NDArray[np.bool_]) -> Statistic:
        """Return the share of duels that the points leave undecided. Parameters as above."""
        return self._ratio(np.where(points == 0.5, 1.0, 0.0), among & ~np.isnan(points))

    def length(self, points: Array, among: NDArray[np.bool_]) -> Statistic:
        """Return Kendall's correlation of the points' order with length within a query, -1..1.

        Parameters as above. Duels of equal length do not count, ties of the judge count as 0.
        """
        counted = among & (self.longer != 0) & ~np.isnan(points)
        return self._ratio((2 * points - 1) * self.longer, counted)

    def _ratio(self, values: Array, counted: NDArray[np.bool_]) -> Statistic:
        """Return the mean of the values of the counted duels, as sums for each group."""
        sums = np.bincount(self.group[counted], values[counted], self._groups)
        return ratio(sums, np.bincount(self.group[counted], minlength=self._groups))


MEASURES = {"agreement": Duels.agreement, "ties": Duels.ties, "length": Duels.length}
"""Metrics of duels, by their name in a result."""
PERCENT = ("agreement", "ties")
"""Those that are shares, in percent. `length` is a correlation."""


def compare_judges(
    groups: Sequence[ComparedGroup], judged: Mapping[str, JudgedResponses], draws: Draws
) -> ResultFields:
    """Return the metrics of every judge, and the differences of every two judges.

    A difference is taken on the duels that both judges decided, over the same resamples.
    """
    duels = Duels(groups)
    points = {name: _flatten(one.points) for name, one in judged.items()}
    everywhere = np.ones(len(duels.group), dtype=bool)
    queries = [group.query for group in groups]
    label_points = (duels.label + 1) / 2
    is_labelled = duels.label != 0
    labels = {
        "pairs": int(is_labelled.sum()),
        **draws.number("length", duels.length(label_points, everywhere), queries),
        **draws.percent(
            "longer_agrees", duels.agreement((duels.longer + 1) / 2, everywhere), queries
        ),
    }
    by_judge: ResultFields = {}
    for name, one in judged.items():
        fields: ResultFields = {
            "view": one.view,
            "asked": one.asked,
            "abstained": one.abstained,
            "pairs": int((is_labelled & ~np.isnan(points[name])).sum()),
        }
        if one.inconsistent is not None:
            fields["inconsistent"] = one.inconsistent
        for measure, make in MEASURES.items():
            fields |= _estimate(draws, measure, make(duels, points[name], everywhere), queries)
        fields["best_of"] = _measure_sizes(groups, one, draws)
        fields["cost"] = one.cost.fields() | {"total": asdict(one.cost.usage)}
        by_judge[name] = fields
    differences = []
    for first, second in combinations(judged, 2):
        both = ~np.isnan(points[first]) & ~np.isnan(points[second])
        fields = {"first": first, "second": second, "pairs": int((both & is_labelled).sum())}
        for measure, make in MEASURES.items():
            gap = difference(make(duels, points[first], both), make(duels, points[second], both))
            fields |= _estimate(draws, measure, gap, queries)
        fields["best_of"] = _compare_sizes(groups, judged[first], judged[second], draws)
        differences.append(fields)
    return {"labels": labels, "judges": by_judge, "differences": differences}


def _estimate(
    draws: Draws, name: str, statistic: Statistic, queries: Sequence[bytes]
) -> ResultFields:
    if name in PERCENT:
        return draws.percent(name, statistic, queries)
    return draws.number(name, statistic, queries)


def _measure_sizes(
    groups: Sequence[ComparedGroup], one: JudgedResponses, draws: Draws
) -> ResultFields:
    """Return by N what the best of N by the judge's numbers gains, in percent of an oracle's gain.

    A response without a number is never chosen before one that has a number.
    """
    fields: ResultFields = {}
    for size, places in _find_sizes(groups, one):
        queries = [groups[place].query for place in places]
        gained = draws.percent("gain", _make_gain(groups, one, size, places), queries)
        fields[str(size)] = {"queries": len(places)} | gained
    return fields


def _compare_sizes(
    groups: Sequence[ComparedGroup], first: JudgedResponses, second: JudgedResponses, draws: Draws
) -> ResultFields:
    fields: ResultFields = {}
    if second.numbers is None:
        return fields
    for size, places in _find_sizes(groups, first):
        queries = [groups[place].query for place in places]
        gap = difference(
            _make_gain(groups, first, size, places), _make_gain(groups, second, size, places)
        )
        fields[str(size)] = draws.percent("gain", gap, queries)
    return fields


def _find_sizes(
    groups: Sequence[ComparedGroup], one: JudgedResponses
) -> Iterator[tuple[int, list[int]]]:
    """Yield each N with the places of the groups that it can be measured on."""
    if one.numbers is None:
        return
    for size in SIZES:
        places = [
            place
            for place, group in enumerate(groups)
            if not group.compared and len(group.grades) >= size
        ]
        # The whole of a group of N has the best of N; groups of two tell no more than pairs do.
        if places and max(len(groups[place].grades) for place in places) > 2:
            yield size, places


def _make_gain(
    groups: Sequence[ComparedGroup], one: JudgedResponses, size: int, places: Sequence[int]
) -> Statistic:
    assert one.numbers is not None  # it has sizes
    numbers = [one.numbers[place] for place in places]
    return share_of_gain(numbers, [groups[place].grades for place in places], size)


def _compute_signs(rows: Sequence[Sequence[float]]) -> Array:
    """Return the sign of first less second for every duel of every row, shape [duels]."""
    signs = [np.sign(first - second) for row in rows for first, second in combinations(row, 2)]
    return np.array(signs, dtype=float)


def _flatten(rows: Sequence[Scores]) -> Array:
    """Return the values of all rows, nan for None, shape [duels]."""
    return np.array([value for row in rows for value in row], dtype=float)
