"""Judge health: figures over the last judgements, and alarms when they leave what is normal.

The service exports them as metrics; trainers write them into their logs.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from autoj_reward.types import Judgement

CHECK_EVERY = 100
"""Judgements between two looks for alarms: one look costs half a millisecond."""
BOUNDS = {"failure_rate": 0.05, "forced_rate": 0.2, "saturation": 0.6, "length_drift": 0.3}
"""The highest value of a figure that raises no alarm; see `JudgeHealth.figures`."""


@dataclass(frozen=True, slots=True)
class _Seen:
    ok: bool
    forced: bool
    rating: float | None
    characters: int


class JudgeHealth:
    """Watches ratings of single responses over a sliding window.

    window: judgements that the figures are of. least: judgements before there is any alarm. Not
    for several threads at once.
    """

    def __init__(self, window: int = 1000, least: int = 100) -> None:
        self._least = least
        self._seen: deque[_Seen] = deque(maxlen=window)
        self._first: float | None = None
        self._count = 0

    def observe(self, judgement: Judgement, characters: int) -> None:
        """Take note of a judgement of a response of so many characters; pairs count only as
        failed, forced or neither."""
        value = judgement.view("rating")
        self._seen.append(_Seen(judgement.ok, judgement.forced, value, characters))
        self._count += 1
        # The judge's own liking of length, before the policy has learned anything from it.
        if self._first is None and self._count >= self._least:
            known = self._length_correlation()
            self._first = None if math.isnan(known) else known

    def figures(self) -> dict[str, float]:
        """`failure_rate`: share of judgements that are not ok. `forced_rate`: share of those ok
        whose verdict was forced; none is where no critique was asked for. `saturation`: share of
        the commonest rating among all. NaN where nothing is known; shares are 0..1.

        `length_correlation`: see below. `length_drift`: how far it lies from what it was over the
        first `least` judgements, 0..2.
        """
        seen = self._seen
        good = [s for s in seen if s.ok]
        now = self._length_correlation()
        return {
            "failure_rate": (len(seen) - len(good)) / len(seen) if seen else math.nan,
            "forced_rate": sum(s.forced for s in good) / len(good) if good else math.nan,
            "saturation": saturation([s.rating for s in seen if s.rating is not None]),
            "length_correlation": now,
            "length_drift": math.nan if self._first is None else abs(now - self._first),
        }

    def alarms(self) -> tuple[str, ...]:
        """The figures that are over their bounds; none before `least` judgements."""
        if len(self._seen) < self._least:
            return ()
        found = self.figures()
        return tuple(name for name, most in BOUNDS.items() if found[name] > most)

    def _length_correlation(self) -> float:
        rated = [(s.rating, s.characters) for s in self._seen if s.rating is not None]
        return length_correlation([r for r, _ in rated], [n for _, n in rated])


def saturation(ratings: Sequence[float]) -> float:
    """Share of the commonest rating, 0..1; NaN without any. A judge that says the same of
    everything teaches nothing, and a policy that has found its ceiling learns nothing more."""
    return Counter(ratings).most_common(1)[0][1] / len(ratings) if ratings else math.nan


def length_correlation(ratings: Sequence[float], characters: Sequence[int]) -> float:
    """Pearson's correlation of rating and log(1 + characters), -1..1; NaN where either is
    constant. Logarithmic, since lengths of responses are roughly log-normal."""
    if len(set(ratings)) < 2 or len(set(characters)) < 2:
        return math.nan
    return statistics.correlation(ratings, [math.log1p(n) for n in characters])
