"""Work on any number of items, some at a time, with the results in the order of the items."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from autoj_reward.client.slots import Slots

T = TypeVar("T")
R = TypeVar("R")
INPUTS_AT_ONCE = 8192
"""Judge inputs of items under way: enough for the replicas of a cluster, few enough to hold."""


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
