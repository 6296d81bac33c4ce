"""Responses that were judged together, for the page: their scores and the evidence behind them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autoj_reward.questions.rank import Order, PairScore, Ranking
from autoj_reward.questions.strengths import Win, fit_bradley_terry, join_scores, win_rates
from autoj_reward.types import GROUP
from autoj_reward.watch.timeline import COMPARISON, Mark

SHARES, POINTS, WINS = "share of the scale", "points of the judge's scale", "win rate"
"""Units of a group's scores. A journal has the judge's points, a job's results have shares."""
REFERENCE = "reference"
"""Name of a reference answer among compared responses."""
MOST = 64
"""Maximum responses of a group that are ranked and shown, and maximum orders that are shown."""
RANKS = 16
"""Ranks that a job's pictures have; 1 is the best response of a query."""

Scores = dict[int, tuple[float, float | None]]


def ranking_of(
    judgements: Sequence[tuple[tuple[int, ...], Mark]],
) -> tuple[tuple[int, ...], Ranking] | None:
    """Return the responses of a query that were judged beside others, with their ranking.

    It is fitted as a job fits it: to the orders of listwise judgements, or else to comparisons. The
    scores of orders are points of the judge's scale. judgements: the responses of each by hash,
    in the order shown. Returns None if every response was judged alone, and for more than MOST
    responses.
    """
    joint_judgements = [
        (responses, mark) for responses, mark in judgements if mark.kind in (GROUP, COMPARISON)
    ]
    names = tuple(dict.fromkeys(name for responses, _ in joint_judgements for name in responses))
    if not 2 <= len(names) <= MOST:
        return None
    places = {name: n for n, name in enumerate(names)}
    orders, pairs = list[Order](), dict[tuple[int, int], list[float | None]]()
    for responses, mark in joint_judgements:
        order = tuple(places[name] for name in responses)
        scores = tuple(score for score, _ in mark.scores)
        if mark.kind == GROUP:
            orders.append(Order(order, scores, tuple(forced for _, forced in mark.scores)))
        elif order[0] != order[1]:
            low, high = sorted(order)
            pairs.setdefault((low, high), []).append(scores[order.index(low)])
    matches = tuple(PairScore(i, j, _average_shares(won)) for (i, j), won in pairs.items())
    estimates = _join_orders(orders) if orders else _fit_win_rates(len(names), matches)
    pair = [estimates.get(n, (None, None)) for n in range(len(names))]
    scores, errors = tuple(score for score, _ in pair), tuple(error for _, error in pair)
    reasons = ("",) * len(names)
    return names, Ranking(scores, errors, reasons, (), orders=tuple(orders), matches=matches)


def _join_orders(orders: Sequence[Order]) -> Scores:
    scores_by_order = [
        {i: score for i, score in zip(order.shown, order.scores, strict=True) if score is not None}
        for order in orders
    ]
    return join_scores([scores for scores in scores_by_order if scores])


def _fit_win_rates(count: int, matches: Sequence[PairScore]) -> Scores:
    wins: list[Win] = [(m.first, m.second, m.won) for m in matches if m.won is not None]
    compared = sorted({i for win in wins for i in win[:2]})
    return dict(win_rates(fit_bradley_terry(count, wins), [1] * count, compared))


def _average_shares(shares: Sequence[float | None]) -> float | None:
    """Return the mean share of a pair's orders; None if one of them failed."""
    valid_shares = [share for share in shares if share is not None]
    return sum(valid_shares) / len(valid_shares) if len(valid_shares) == len(shares) else None


def ranking_data(ranking: Ranking, names: Sequence[str], unit: str = SHARES) -> dict[str, Any]:
    """Return a group's scores and evidence as JSON values for the page.

    names: name of each response. unit: unit of listwise scores. At most MOST responses are given:
    half from the best and half from the worst. Orders and comparisons are of these alone.
    """
    scores = [-1.0 if score is None else score for score in ranking.scores]
    best = sorted(range(len(names)), key=lambda i: -scores[i])
    listed_places = {*best[: MOST // 2], *best[MOST // 2 :][-MOST // 2 :]}
    listed_names = {i: names[i] for i in best if i in listed_places} | {-1: REFERENCE}
    return {
        "unit": unit if ranking.orders else WINS,
        "total": len(names),
        "scores": [
            {"name": name, "score": ranking.scores[i], "error": ranking.errors[i]}
            for i, name in listed_names.items()
            if i >= 0
        ],
        "orders": [
            [
                {"name": listed_names.get(i), "score": score, "forced": forced}
                for i, score, forced in zip(order.shown, order.scores, order.forced, strict=True)
            ]
            for order in ranking.orders[:MOST]
        ],
        "orders_total": len(ranking.orders),
        "matches": [
            {"one": listed_names[m.first], "two": listed_names[m.second], "won": m.won}
            for m in ranking.matches
            if m.first in listed_names and m.second in listed_names
        ],
        "order_spread": ranking.spread,
        "position_correlation": ranking.position_correlation,
    }


@dataclass(slots=True)
class _Mean:
    """Mean of a stream of numbers, with its standard error."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        self.total += value
        self.squares += value * value

    @property
    def mean(self) -> float:
        return self.total / self.count

    @property
    def error(self) -> float | None:
        """Return the standard error; None for a single number."""
        if self.count < 2:
            return None
        variance = max(0.0, self.squares - self.total * self.mean) / (self.count - 1)
        return math.sqrt(variance / self.count)


class RankTotals:
    """Scores and comparisons of a job's groups by rank, in bounded memory.

    The rank of a response is its place in the scores of its query.
    """

    def __init__(self) -> None:
        self._queries = 0
        self._unit = SHARES
        self._longest = 0
        self._scores: defaultdict[int, _Mean] = defaultdict(_Mean)
        self._won: defaultdict[tuple[int, int], _Mean] = defaultdict(_Mean)

    def add(self, ranking: Ranking) -> None:
        """Count a query whose responses were judged together."""
        scored = [(score, i) for i, score in enumerate(ranking.scores) if score is not None]
        if not scored:
            return
        self._queries += 1
        self._longest = max(self._longest, len(scored))
        if ranking.matches:
            self._unit = WINS
        scored.sort(key=lambda pair: -pair[0])
        ranks = {i: rank for rank, (_, i) in enumerate(scored[:RANKS], 1)}
        for score, i in scored[:RANKS]:
            self._scores[ranks[i]].add(score)
        for match in ranking.matches:
            if match.won is None or match.first not in ranks or match.second not in ranks:
                continue
            first, second = ranks[match.first], ranks[match.second]
            if first < second:
                self._won[first, second].add(match.won)
            else:
                self._won[second, first].add(1 - match.won)

    def as_json(self) -> dict[str, Any] | None:
        """Return the means by rank in the form of `ranking_data`; None without a query."""
        if not self._queries:
            return None
        return {
            "queries": self._queries,
            "unit": self._unit,
            "total": self._longest,
            "scores": [
                {"name": str(rank), "score": score.mean, "error": score.error}
                for rank, score in sorted(self._scores.items())
            ],
            "matches": [
                {"one": str(one), "two": str(two), "won": won.mean}
                for (one, two), won in sorted(self._won.items())
            ],
        }
