"""Work in flight: how much at a time, its results in order, and judgements put on record."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from autoj_reward.journal import Journal
from autoj_reward.types import JudgeInput, Judgement

T = TypeVar("T")
R = TypeVar("R")
INPUTS_AT_ONCE = 8192
"""Judge inputs of items under way: enough for the replicas of a cluster, few enough to hold."""
Progress = Callable[[Judgement, bool], None]
"""Called once for every judge input that is answered: (judgement, read from the journal?)."""


class Slots:
    """A counting semaphore that hands out several slots at a time, first come, first served."""

    def __init__(self, free: int) -> None:
        self._free = free
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, count: int) -> None:
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
        self._free += count
        while self._queue and self._queue[0][0] <= self._free:
            needed, turn = self._queue.popleft()
            if not turn.done():
                self._free -= needed
                turn.set_result(None)


def as_one(_item: Any) -> int:
    return 1


async def in_order(
    items: Iterable[T],
    work: Callable[[T], Awaitable[R]],
    done: Callable[[R], object],
    at_once: int = INPUTS_AT_ONCE,
    size: Callable[[T], int] = as_one,
) -> None:
    """Items are taken as they are worked on: sizes of `at_once` together are under way, and at most
    as much again is done and waits for an earlier one. An error of one ends all."""
    room, held = Slots(at_once), 0
    begun: deque[tuple[asyncio.Task[R], int]] = deque()

    async def one(item: T, own: int) -> R:
        try:
            return await work(item)
        finally:
            room.give(own)

    async with asyncio.TaskGroup() as tasks:
        for item in items:
            own = max(1, min(size(item), at_once))
            await room.take(own)
            begun.append((tasks.create_task(one(item, own)), own))
            held += own
            while begun and (begun[0][0].done() or held >= 2 * at_once):
                task, freed = begun.popleft()
                done(await task)
                held -= freed
        while begun:
            done(await begun.popleft()[0])


class Recorder:
    """Gives judgements to their futures once they are on record; those of one turn of the loop go
    on record together. Each that is given gives its slot back."""

    def __init__(self, journal: Journal | None, progress: Progress | None, slots: Slots) -> None:
        self._journal, self._progress, self._slots = journal, progress, slots
        self._said: list[tuple[str, JudgeInput, Judgement]] = []
        self._futures: list[asyncio.Future[Judgement]] = []

    def add(
        self, judge: str, item: JudgeInput, said: Judgement, future: asyncio.Future[Judgement]
    ) -> None:
        if not self._said:
            asyncio.get_running_loop().call_soon(self.flush)
        self._said.append((judge, item, said))
        self._futures.append(future)

    def flush(self) -> None:
        """Record what was added since; what cannot be recorded gives its future the error."""
        said, futures = self._said, self._futures
        self._said, self._futures = [], []
        try:
            kept = [judgement for _, _, judgement in said]
            if self._journal and said:
                kept = self._journal.put_all(said)
            for judgement in kept:
                self.tell(judgement, False)
        except Exception as error:  # of the disk, or the caller's own
            for future in futures:
                if not future.done():
                    future.set_exception(error)
                    self._slots.give(1)
            return
        for future, judgement in zip(futures, kept, strict=True):
            if not future.done():
                future.set_result(judgement)
                self._slots.give(1)

    def tell(self, judgement: Judgement, reused: bool) -> None:
        if self._progress:
            self._progress(judgement, reused)
