"""Timeline of a run's judgements: counts, cost and rate over time.

A journal has a row for each critique, each rating right after the prompt and each order of a
comparison. `statistics.py` aggregates them by candidate.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from autoj_reward.io.markup import visible
from autoj_reward.journal.reading import Entry
from autoj_reward.questions.listwise import read_scores
from autoj_reward.questions.tournament import share_of_first
from autoj_reward.types import CHECKLIST, GROUP, PAIRWISE, SINGLE, Judgement
from autoj_reward.watch.statistics import VIEWS, by_count, count_name

RATING, COMPARISON, READING = "rating", "comparison", "reading"
"""Kinds of judgements: a rated response, a comparison of two, and a rating read right after the
prompt.

Judgements of other protocols have the protocol's name as their kind.
"""
KINDS = {SINGLE: RATING, PAIRWISE: COMPARISON}
"""Kind of each built-in protocol."""
ALONE = (RATING, READING, CHECKLIST)
"""Kinds of judgements of a single response."""
SLOTS = 120
"""Maximum points of a time series."""
NAMES = 64
"""Maximum failure reasons that are counted separately; further ones are counted together."""
NOW_S = 60
"""Seconds over which the current rate is measured."""


class Mark(NamedTuple):
    """One judgement without its texts."""

    kind: str
    """RATING, COMPARISON, READING, or the name of a format's own protocol."""
    at: float
    """Time in seconds of the Unix epoch."""
    outcome: str
    reason: str
    """Reason of a failure; empty if the judgement is ok."""
    rating: float | None
    expected: float | None
    direct: float | None
    pessimistic: float | None
    verdict: str | None
    scores: tuple[tuple[float | None, bool], ...]
    """For each of several responses in the order shown its score, and whether that was forced.

    A group's scores are on the judge's scale, a comparison's are the shares that each won. Empty
    for a response that was judged alone."""
    forced: bool
    flags: tuple[str, ...]
    tokens_in: int
    tokens_cached: int
    tokens_out: int
    latency_s: float
    queued_s: float
    usd: float = 0.0


def mark_of(entry: Entry) -> Mark:
    """Return a journal entry's judgement without its texts.

    The number of a READING is its expected rating, as `direct`.
    """
    judgement = entry.judgement
    protocol = entry.item.protocol
    kind = READING if entry.item.direct else KINDS.get(protocol, visible(protocol[:200]))
    usage = judgement.usage
    rating, expected, direct, pessimistic = _read_views(judgement, kind)
    return Mark(
        kind,
        entry.at,
        judgement.outcome.value,
        "" if judgement.ok else _shorten(judgement.reason or judgement.outcome.value),
        rating,
        expected,
        direct,
        pessimistic,
        judgement.verdict.value if judgement.verdict else None,
        _list_scores(judgement, kind, len(entry.item.responses)),
        judgement.forced,
        tuple(map(_shorten, judgement.flags)),
        usage.tokens_in,
        usage.tokens_cached,
        usage.tokens_out,
        usage.latency_s,
        usage.queued_s,
        usage.usd,
    )


def _shorten(text: str) -> str:
    """Return a reason or flag, truncated and with visible control characters."""
    return visible(text[:200])


def _read_views(judgement: Judgement, kind: str) -> tuple[float | None, ...]:
    """Return the numbers of VIEWS."""
    if kind == READING:
        return None, None, judgement.view("expected"), None
    return tuple(map(judgement.view, VIEWS))


def _list_scores(
    judgement: Judgement, kind: str, count: int
) -> tuple[tuple[float | None, bool], ...]:
    if kind == GROUP:
        return tuple(read_scores(judgement, count))
    if kind != COMPARISON:
        return ()
    won = share_of_first(judgement)
    return (won, judgement.forced), (None if won is None else 1 - won, judgement.forced)


@dataclass(slots=True)
class TimeSlot:
    """Counts of one time interval."""

    judged: int = 0
    failed: int = 0
    rated: int = 0
    total: float = 0.0
    """Sum of the ratings."""
    squares: float = 0.0
    """Sum of the squared ratings."""
    tokens_out: int = 0

    def add(self, mark: Mark, sign: int) -> None:
        self.judged += sign
        self.failed += sign * (mark.outcome != "ok")
        self.tokens_out += sign * mark.tokens_out
        if mark.rating is not None:
            self.rated += sign
            self.total += sign * mark.rating
            self.squares += sign * mark.rating**2

    def join(self, other: TimeSlot) -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def mean(self) -> float | None:
        return self.total / self.rated if self.rated else None

    @property
    def spread(self) -> float | None:
        """Population standard deviation of the ratings; None without one."""
        if not self.rated:
            return None
        return math.sqrt(max(0.0, self.squares / self.rated - (self.total / self.rated) ** 2))


class Series:
    """Counts in time intervals of equal length, which doubles when there are too many."""

    def __init__(self) -> None:
        self.seconds = 1
        self._slots: dict[int, TimeSlot] = {}

    def add(self, mark: Mark, sign: int = 1) -> None:
        self._slots.setdefault(int(mark.at // self.seconds), TimeSlot()).add(mark, sign)
        while max(self._slots) - min(self._slots) >= SLOTS:
            self.seconds *= 2
            merged: dict[int, TimeSlot] = {}
            for n, slot in self._slots.items():
                merged.setdefault(n // 2, TimeSlot()).join(slot)
            self._slots = merged

    def points(self) -> Iterator[dict[str, Any]]:
        """Yield the intervals in order of time, without empty ones."""
        for n, slot in sorted(self._slots.items()):
            yield {
                "at": n * self.seconds,
                "judged": slot.judged,
                "failed": slot.failed,
                "tokens_out": slot.tokens_out,
                "mean": slot.mean,
                "spread": slot.spread,
            }


@dataclass(slots=True)
class Timeline:
    """Judgements of one judge in a run's journals: counts, cost, and a series over time."""

    kinds: Counter[str] = field(default_factory=Counter)
    """Judgements by kind."""
    failures: Counter[str] = field(default_factory=Counter)
    """Failed judgements by reason."""
    verdicts: Counter[str] = field(default_factory=Counter)
    """Comparisons by verdict."""
    series: Series = field(default_factory=Series)
    whole: TimeSlot = field(default_factory=TimeSlot)
    """Counts of the whole run."""
    tokens_in: int = 0
    tokens_cached: int = 0
    latency_s: float = 0.0
    queued_s: float = 0.0
    usd: float = 0.0
    first: float = math.inf
    """Time of the first judgement."""
    last: float = -math.inf
    """Time of the last judgement."""
    _lately: Counter[int] = field(default_factory=Counter)

    def add(self, mark: Mark, sign: int = 1) -> None:
        """Count a judgement, or remove one that was replaced with `sign=-1`."""
        self.kinds[mark.kind] += sign
        if mark.reason:
            count_name(self.failures, mark.reason, NAMES, sign)
        if mark.verdict:
            self.verdicts[mark.verdict] += sign
        self.series.add(mark, sign)
        self.whole.add(mark, sign)
        self.tokens_in += sign * mark.tokens_in
        self.tokens_cached += sign * mark.tokens_cached
        self.latency_s += sign * mark.latency_s
        self.queued_s += sign * mark.queued_s
        self.usd += sign * mark.usd
        self.first, self.last = min(self.first, mark.at), max(self.last, mark.at)
        if mark.at > self.last - 2 * NOW_S:
            self._lately[int(mark.at)] += sign
            for second in [s for s in self._lately if s < self.last - 2 * NOW_S]:
                del self._lately[second]

    def as_json(self, now: float) -> dict[str, Any]:
        """Return the timeline for the page. now: seconds of the Unix epoch.

        failures: failed judgements by reason. latency_s, queued_s: means per judgement. lately:
        judgements a second over the last minute.
        """
        judged = self.whole.judged
        lately = sum(n for second, n in self._lately.items() if second > now - NOW_S)
        seconds = min(NOW_S, max(1.0, now - self.first))
        return {
            "judged": judged,
            "failed": self.whole.failed,
            "failures": by_count(self.failures),
            "kinds": dict(self.kinds),
            "verdicts": by_count(self.verdicts),
            "tokens_in": self.tokens_in,
            "tokens_cached": self.tokens_cached,
            "tokens_out": self.whole.tokens_out,
            "usd": self.usd,
            "latency_s": self.latency_s / judged if judged else None,
            "queued_s": self.queued_s / judged if judged else None,
            "first": self.first if judged else None,
            "last": self.last if judged else None,
            "lately": lately / seconds,
            "slot_s": self.series.seconds,
            "series": list(self.series.points()),
        }
