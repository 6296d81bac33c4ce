"""A run in figures that are kept up as judgements come: constant memory, whatever their number."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from autoj_reward.io.page import visible
from autoj_reward.journal.reading import Entry
from autoj_reward.types import SINGLE, Judgement

RATING, COMPARISON, READING = "rating", "comparison", "reading"
"""What is judged: one response, two, or one at a glance, by the slot right after the prompt."""
SLOTS = 120
"""Most points of time in a series."""
BARS = 64
"""Most different values in a histogram before they are put together."""
NAMES = 64
"""Most reasons or flags that are told apart; the others are counted together."""
NOW_S = 60
OTHERS = "others"
"""Names that are counted together."""


def count_name(names: Counter[str], name: str, most: int, sign: int = 1) -> None:
    """Count a name; with sign -1 take one back. Those that come once `most` are known are counted
    together, as OTHERS."""
    names[name if name in names or len(names) < most else OTHERS] += sign


class Histogram:
    """Counts by value while there are at most so many of them; beyond, in bars of equal width, a
    power of two, each by its middle."""

    def __init__(self, most: int) -> None:
        self.width = 0.0
        self._most = most
        self._counts: Counter[float] = Counter()

    def add(self, value: float, sign: int = 1) -> None:
        """Count a value; with sign -1 take one back. What is not finite is left out."""
        if not math.isfinite(value):
            return
        self._counts[self._bar(value)] += sign
        while len(self._counts) > self._most:
            span = max(self._counts) - min(self._counts)
            self.width = max(2 * self.width, 2.0 ** math.ceil(math.log2(span / self._most)))
            before, self._counts = self._counts, Counter()
            for old, found in before.items():
                self._counts[self._bar(old)] += found

    def _bar(self, value: float) -> float:
        """The value, or the middle of its bar. Of bars that are put together all values go into the
        same one, so that each can be taken back."""
        return (math.floor(value / self.width) + 0.5) * self.width if self.width else value

    def counts(self) -> tuple[tuple[float, int], ...]:
        """(value, count), ascending."""
        return tuple(sorted((value, count) for value, count in self._counts.items() if count > 0))


class Mark(NamedTuple):
    """One judgement without its texts. kind: RATING, COMPARISON or READING."""

    kind: str
    at: float
    outcome: str
    reason: str
    rating: float | None
    expected: float | None
    direct: float | None
    verdict: str | None
    forced: bool
    flags: tuple[str, ...]
    tokens_in: int
    tokens_cached: int
    tokens_out: int
    latency_s: float
    queued_s: float


def mark_of(entry: Entry) -> Mark:
    """What is counted of a judgement. The number of a reading is its expected rating."""
    j = entry.judgement
    kind = RATING if entry.item.protocol == SINGLE else COMPARISON
    kind = READING if entry.item.direct else kind
    used = j.usage
    rating, expected, direct = _views(j, kind)
    return Mark(
        kind,
        entry.at,
        j.outcome.value,
        "" if j.ok else _name(j.reason or j.outcome.value),
        rating,
        expected,
        direct,
        j.verdict.value if j.verdict else None,
        j.forced,
        tuple(map(_name, j.flags)),
        used.tokens_in,
        used.tokens_cached,
        used.tokens_out,
        used.latency_s,
        used.queued_s,
    )


def _name(text: str) -> str:
    """Of a reason or a flag: cut, with all in it that can be seen."""
    return visible(text[:200])


def _views(j: Judgement, kind: str) -> tuple[float | None, float | None, float | None]:
    if kind == READING:
        return None, None, j.view("expected")
    return j.view("rating"), j.view("expected"), j.view("direct")


@dataclass(slots=True)
class Slot:
    """What came in one stretch of time. total, squares: of the ratings, and of their squares."""

    judged: int = 0
    failed: int = 0
    rated: int = 0
    total: float = 0.0
    squares: float = 0.0
    tokens_out: int = 0

    def add(self, mark: Mark, sign: int) -> None:
        self.judged += sign
        self.failed += sign * (mark.outcome != "ok")
        self.tokens_out += sign * mark.tokens_out
        if mark.rating is not None:
            self.rated += sign
            self.total += sign * mark.rating
            self.squares += sign * mark.rating**2

    def join(self, other: Slot) -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def mean(self) -> float | None:
        return self.total / self.rated if self.rated else None

    @property
    def spread(self) -> float | None:
        """Standard deviation (population)."""
        if not self.rated:
            return None
        return math.sqrt(max(0.0, self.squares / self.rated - (self.total / self.rated) ** 2))


class Series:
    """Slots of equal length in time; they grow when they would become too many."""

    def __init__(self) -> None:
        self.seconds = 1
        self._slots: dict[int, Slot] = {}

    def add(self, mark: Mark, sign: int = 1) -> None:
        self._slots.setdefault(int(mark.at // self.seconds), Slot()).add(mark, sign)
        while max(self._slots) - min(self._slots) >= SLOTS:
            self.seconds *= 2
            merged: dict[int, Slot] = {}
            for n, slot in self._slots.items():
                merged.setdefault(n // 2, Slot()).join(slot)
            self._slots = merged

    def points(self) -> Iterator[dict[str, Any]]:
        """In order of time; stretches in which nothing came are left out."""
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
class Figures:
    """The figures of one judge in a run."""

    kinds: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    flags: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    ratings: Histogram = field(default_factory=lambda: Histogram(BARS))
    series: Series = field(default_factory=Series)
    whole: Slot = field(default_factory=Slot)
    forced: int = 0
    tokens_in: int = 0
    tokens_cached: int = 0
    latency_s: float = 0.0
    queued_s: float = 0.0
    first: float = math.inf
    last: float = -math.inf
    _lately: Counter[int] = field(default_factory=Counter)

    def add(self, mark: Mark, sign: int = 1) -> None:
        """Count a judgement; with sign -1 take back one that another has replaced."""
        self.kinds[mark.kind] += sign
        self.outcomes[mark.outcome] += sign
        if mark.reason:
            count_name(self.reasons, mark.reason, NAMES, sign)
        for flag in mark.flags:
            count_name(self.flags, flag, NAMES, sign)
        if mark.verdict:
            self.verdicts[mark.verdict] += sign
        if mark.rating is not None:
            self.ratings.add(round(mark.rating, 3), sign)
        self.series.add(mark, sign)
        self.whole.add(mark, sign)
        self.forced += sign * mark.forced
        self.tokens_in += sign * mark.tokens_in
        self.tokens_cached += sign * mark.tokens_cached
        self.latency_s += sign * mark.latency_s
        self.queued_s += sign * mark.queued_s
        self.first, self.last = min(self.first, mark.at), max(self.last, mark.at)
        if mark.at > self.last - 2 * NOW_S:
            self._lately[int(mark.at)] += sign
            for second in [s for s in self._lately if s < self.last - 2 * NOW_S]:
                del self._lately[second]

    def told(self, now: float) -> dict[str, Any]:
        """As the page shows them. now: seconds of the Unix epoch."""
        judged = self.whole.judged
        lately = sum(n for second, n in self._lately.items() if second > now - NOW_S)
        seconds = min(NOW_S, max(1.0, now - self.first))
        return {
            "judged": judged,
            "failed": self.whole.failed,
            "mean": self.whole.mean,
            "spread": self.whole.spread,
            "rated": self.whole.rated,
            "forced": self.forced,
            "kinds": dict(self.kinds),
            "outcomes": _ranked(self.outcomes),
            "reasons": _ranked(self.reasons),
            "flags": _ranked(self.flags),
            "verdicts": _ranked(self.verdicts),
            "tokens_in": self.tokens_in,
            "tokens_cached": self.tokens_cached,
            "tokens_out": self.whole.tokens_out,
            "latency_s": self.latency_s / judged if judged else None,
            "queued_s": self.queued_s / judged if judged else None,
            "first": self.first if judged else None,
            "last": self.last if judged else None,
            "lately": lately / seconds,
            "ratings": list(self.ratings.counts()),
            "bar": self.ratings.width,
            "slot_s": self.series.seconds,
            "series": list(self.series.points()),
        }


def _ranked(counts: Counter[str]) -> dict[str, int]:
    return {name: n for name, n in counts.most_common() if n > 0}
