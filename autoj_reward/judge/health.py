"""Judge health: metrics over recent judgements, and alarms when they are out of bounds.

The service exports them as metrics; trainers write them into their logs.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from autoj_reward.types import Judgement, Outcome

CHECK_EVERY = 100
"""Judgements between two checks for alarms; a check takes half a millisecond."""
BOUNDS = {"failure_rate": 0.05, "forced_rate": 0.2, "saturation": 0.6, "length_drift": 0.3}
"""Highest value of each metric that raises no alarm; see `JudgeHealth.figures`."""
MASTER_KEYS = {
    "colon": ":",
    "thought process": "Thought process:",
    "empty answer": "",
    "repeated query": "{q}",
}
"""Responses without content that some judges accept. `{q}` stands for the query."""


@dataclass(frozen=True, slots=True)
class _Observation:
    ok: bool
    forced: bool
    rating: float | None
    characters: int


class JudgeHealth:
    """Metrics of single-response ratings over a sliding window. Not thread-safe."""

    def __init__(self, window: int = 1000, least: int = 100) -> None:
        """Create an empty window.

        window: number of judgements in it. least: judgements before any alarm is raised.
        """
        self._least = least
        self._observations: deque[_Observation] = deque(maxlen=window)
        self._first_correlation: float | None = None
        self._count = 0

    def observe(self, judgement: Judgement, characters: int) -> None:
        """Add a judgement to the window.

        characters: length of the response. A pair counts only as failed, forced or neither. A
        response without an answer does not count: no judge was asked about it.
        """
        if judgement.outcome is Outcome.NO_ANSWER:
            return
        value = judgement.view("rating")
        self._observations.append(_Observation(judgement.ok, judgement.forced, value, characters))
        self._count += 1
        # The judge's initial preference for length, before the policy has learned from it.
        if self._first_correlation is None and self._count >= self._least:
            correlation = self._compute_length_correlation()
            self._first_correlation = None if math.isnan(correlation) else correlation

    def figures(self) -> dict[str, float]:
        """Return the metrics by name. Shares are 0..1; NaN means that a metric is undefined.

        - `failure_rate`: share of judgements that are not ok.
        - `forced_rate`: share of ok judgements with a forced verdict; 0 if no critique is
          requested.
        - `saturation`: share of the most frequent rating.
        - `length_correlation`: see the function `length_correlation`.
        - `length_drift`: absolute change of that correlation, 0..2, since the first `least`
          judgements.
        """
        window = self._observations
        good = [s for s in window if s.ok]
        correlation = self._compute_length_correlation()
        return {
            "failure_rate": (len(window) - len(good)) / len(window) if window else math.nan,
            "forced_rate": sum(s.forced for s in good) / len(good) if good else math.nan,
            "saturation": saturation([s.rating for s in window if s.rating is not None]),
            "length_correlation": correlation,
            "length_drift": math.nan
            if self._first_correlation is None
            else abs(correlation - self._first_correlation),
        }

    def alarms(self) -> tuple[str, ...]:
        """Return the metrics that exceed their bounds; () before `least` judgements."""
        if len(self._observations) < self._least:
            return ()
        figures = self.figures()
        return tuple(name for name, most in BOUNDS.items() if figures[name] > most)

    def _compute_length_correlation(self) -> float:
        rated = [(s.rating, s.characters) for s in self._observations if s.rating is not None]
        return length_correlation([r for r, _ in rated], [n for _, n in rated])


def saturation(ratings: Sequence[float]) -> float:
    """Return the share of the most frequent rating, 0..1; NaN without ratings.

    A judge that gives every response the same rating teaches nothing. A policy that always gets the
    highest rating learns nothing more.
    """
    return Counter(ratings).most_common(1)[0][1] / len(ratings) if ratings else math.nan


def length_correlation(ratings: Sequence[float], characters: Sequence[int]) -> float:
    """Return Pearson's correlation of rating and log(1 + characters), -1..1; NaN if either is
    constant.

    The logarithm is used because response lengths are roughly log-normal.
    """
    if len(set(ratings)) < 2 or len(set(characters)) < 2:
        return math.nan
    return statistics.correlation(ratings, [math.log1p(n) for n in characters])
