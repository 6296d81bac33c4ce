"""Bounded concurrency, results in input order, and recording of judgements in the journal."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from autoj_reward.journal import Journal
from autoj_reward.models.price import Spending
from autoj_reward.types import JudgeInput, Judgement

T = TypeVar("T")
R = TypeVar("R")
MAX_INPUTS_IN_FLIGHT = 8192
"""Default limit on judge inputs in flight: keeps a cluster's replicas busy and fits in memory."""
Progress = Callable[[Judgement, bool], None]
"""Callback for every answered judge input: (judgement, whether it came from the journal)."""


class Slots:
    """Counting semaphore that grants several slots at a time, first come, first served."""

    def __init__(self, free: int) -> None:
        self._free = free
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, count: int) -> None:
        """Wait for `count` free slots and take them. On cancellation none is taken."""
        if not self._queue and count <= self._free:
            self._free -= count
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((count, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give(count)
            elif (count, turn) in self._queue:
                self._queue.remove((count, turn))
                self.give(0)
            raise

    def give(self, count: int) -> None:
        """Free `count` slots."""
        self._free += count
        while self._queue and self._queue[0][0] <= self._free:
            needed, turn = self._queue.popleft()
            if not turn.done():
                self._free -= needed
                turn.set_result(None)


def as_one(_item: Any) -> int:
    return 1


async def run_in_order(
    items: Iterable[T],
    work: Callable[[T], Awaitable[R]],
    on_result: Callable[[R], object],
    at_once: int = MAX_INPUTS_IN_FLIGHT,
    size: Callable[[T], int] = as_one,
) -> None:
    """Run `work` on every item concurrently and pass the results to `on_result` in input order.

    Items are drawn lazily. The sizes of running items add up to at most `at_once`. Those of
    finished ones that wait for an earlier item add up to at most as much again. A size outside
    1..at_once is clamped. The first exception cancels the rest and is raised.
    """
    slots, held_size = Slots(at_once), 0
    pending: deque[tuple[asyncio.Task[R], int]] = deque()

    async def run_one(item: T, item_size: int) -> R:
        try:
            return await work(item)
        finally:
            slots.give(item_size)

    async with asyncio.TaskGroup() as tasks:
        for item in items:
            item_size = max(1, min(size(item), at_once))
            await slots.take(item_size)
            pending.append((tasks.create_task(run_one(item, item_size)), item_size))
            held_size += item_size
            while pending and (pending[0][0].done() or held_size >= 2 * at_once):
                task, freed_size = pending.popleft()
                on_result(await task)
                held_size -= freed_size
        while pending:
            on_result(await pending.popleft()[0])


class Recorder:
    """Writes judgements to the journal and then resolves their futures.

    The judgements of one turn of the event loop are written together. Each resolved future frees
    one slot.
    """

    def __init__(
        self,
        journal: Journal | None,
        progress: Progress | None,
        slots: Slots,
        spending: Spending | None = None,
    ) -> None:
        """spending: counts what new judgements cost; None if nothing limits it."""
        self._journal, self._progress, self._slots = journal, progress, slots
        self.spending = spending
        self._entries: list[tuple[str, JudgeInput, Judgement]] = []
        self._futures: list[asyncio.Future[Judgement]] = []

    def add(
        self, judge: str, item: JudgeInput, judgement: Judgement, future: asyncio.Future[Judgement]
    ) -> None:
        """Queue a judgement for the journal, with the future that waits for it."""
        if not self._entries:
            asyncio.get_running_loop().call_soon(self.flush)
        self._entries.append((judge, item, judgement))
        self._futures.append(future)

    def flush(self) -> None:
        """Record the queued judgements and resolve their futures.

        If recording fails, the futures get the error.
        """
        entries, futures = self._entries, self._futures
        self._entries, self._futures = [], []
        try:
            judgements = [judgement for _, _, judgement in entries]
            if self._journal and entries:
                judgements = self._journal.put_all(entries)
            for judgement in judgements:
                self.tell(judgement, False)
                if self.spending:
                    self.spending.add(judgement.usage)
        except Exception as error:  # from the disk, or from the progress callback
            for future in futures:
                if not future.done():
                    future.set_exception(error)
                    self._slots.give(1)
            return
        for future, judgement in zip(futures, judgements, strict=True):
            if not future.done():
                future.set_result(judgement)
                self._slots.give(1)

    def tell(self, judgement: Judgement, reused: bool) -> None:
        """Report a judgement to the progress callback."""
        if self._progress:
            self._progress(judgement, reused)
