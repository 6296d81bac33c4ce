"""How often each value or name came, in memory that does not grow with their number."""

from __future__ import annotations

import math
from collections import Counter

OTHERS = "others"


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
