"""How the cost of work on a text grows with the length of the text."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

TIMES = 8
"""How much longer the longer text is: linear work takes 8 times as long, quadratic work 64."""
MOST = TIMES**2 / 2
STEP_S = 0.05
"""Seconds that work may cost from some length on, which is no growth."""
ROUNDS = 5


def require_linear(work: Callable[[str], object], text: Callable[[int], str], size: int) -> None:
    """Raise AssertionError if work on a text of 8 * size characters takes over 32 times as long as
    on one of `size`. The least of up to five measurements of each, taken in turn, is compared, in
    processor time of this thread, so that neither a slow nor a busy machine matters.

    text: makes a text of so many characters. Each call of `work` has one of its own, so that
    nothing that is remembered of one shortens another.
    """
    short = long = math.inf
    for turn in range(ROUNDS):
        short = min(short, _seconds(work, f"{text(size)} {turn}"))
        long = min(long, _seconds(work, f"{text(TIMES * size)} {turn}"))
        if long < MOST * short + STEP_S:
            return
    raise AssertionError(f"{TIMES} times the text takes {long / short:.0f} times as long")


def _seconds(work: Callable[[str], object], text: str) -> float:
    started = time.thread_time()
    work(text)
    return time.thread_time() - started
