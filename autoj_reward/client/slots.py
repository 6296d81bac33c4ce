"""How many judge inputs a client has under way at a time."""

from __future__ import annotations

import asyncio
from collections import deque


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
