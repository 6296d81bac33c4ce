"""Pauses between the attempts of a call that is retried."""

from __future__ import annotations

import math
import random


class Backoff:
    """Exponential backoff: each pause is twice as long as the one before.

    Jitter keeps the calls of many clients from coming back at the same moment.
    """

    def __init__(self, first_s: float, longest_s: float) -> None:
        """first_s, longest_s: seconds of the first and of the longest pause, before jitter."""
        self._next_s = first_s
        self._longest_s = longest_s

    def next_s(self, least_s: float = 0.0, longest_s: float = math.inf) -> float:
        """Return the seconds until the next attempt.

        least_s: seconds that the server asks for. longest_s: a lower limit for this pause.
        """
        pause_s = min(self._next_s, self._longest_s, longest_s)
        self._next_s = pause_s * 2
        return max(least_s, pause_s * random.uniform(0.5, 1.5))
