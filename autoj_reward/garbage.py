"""Python's garbage collector where thousands of requests or candidates are under way."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

LOOK_AFTER = 20_000
"""New objects before the collector looks for cycles among them; Python's own number is 700."""


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Leave what is loaded by now alone, and look seldom at what comes.

    With 1,000 requests under way the collector goes through all that they hold again and again: a
    third of the CPU, and stalls of 0.2 s. A request leaves nothing for it to find. What the caller
    had frozen before stays so.
    """
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    gc.collect()
    gc.freeze()
    gc.set_threshold(LOOK_AFTER, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if not frozen:
            gc.unfreeze()
