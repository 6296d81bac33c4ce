"""A clock for tests of waits: time passes only while the event loop has nothing else to do.

Waits take no time then, and every duration is exact, however slow or busy the machine is.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

T = TypeVar("T")


class _Selector(selectors.DefaultSelector):
    """Selector that moves the clock on by the time that it should wait."""

    now = 1000.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:  # only another thread can go on
            return super().select(None)
        self.now += timeout
        return ready


class _Loop(asyncio.SelectorEventLoop):
    def time(self) -> float:
        now: float = self._selector.now  # type: ignore[attr-defined]
        return now


class VirtualClock:
    """Runs coroutines in virtual time, which `time.monotonic` tells too.

    The code must not leave the event loop: a thread or another process would not be waited for.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        loop = _Loop(_Selector())
        with self._monkeypatch.context() as patch, asyncio.Runner(loop_factory=lambda: loop) as run:
            patch.setattr(time, "monotonic", loop.time)
            return run.run(work)


async def measure(work: Coroutine[Any, Any, T]) -> tuple[T, float]:
    """Return the result of a coroutine, and the seconds that it took."""
    started = time.monotonic()
    return await work, time.monotonic() - started
