"""An event loop in a thread of its own, for callers that block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from autoj_reward.logs import LOG

T = TypeVar("T")


class LoopThread:
    """An event loop that runs in a daemon thread until `stop`.

    Any thread may submit work to it. `Judge`, `RewardModel` and `autoj serve` run on one each.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start work on the loop, and return its future."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work on the loop and return its result. Raises what the work raises.

        An interrupt of the waiting thread cancels the work.
        """
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def call_soon(self, callback: Callable[..., object], *arguments: object) -> None:
        """Call a function on the loop. Signal handlers may use it."""
        self._loop.call_soon_threadsafe(callback, *arguments)

    def stop(self) -> None:
        """Cancel work that has not ended, wait for it, and end the thread."""
        self.submit(_cancel_other_tasks()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        while True:
            try:
                self._loop.run_forever()
            except (SystemExit, KeyboardInterrupt) as error:
                # asyncio also ends the loop when a task raises one of these, as a user's reward
                # function may. The caller that awaits the task gets the exception anyway, and
                # other callers still need the loop.
                LOG.warning("a task on the judge's event loop raised %r", error)
            else:
                return


async def _cancel_other_tasks() -> None:
    """Cancel all tasks of this loop. What an interrupted caller had opened is closed by them."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
