"""A Python function as a part of a reward: a rule, a test, a number of one's own."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

from autoj_reward.client.slots import Slots
from autoj_reward.errors import ConfigError
from autoj_reward.types import Candidate, Judgement, Outcome, Rating

LOG = logging.getLogger("autoj_reward.trainer")
MAX_THREADS = 32
"""Threads in which one function runs at a time. A call that was given up is not counted."""

Returned = tuple[Any, BaseException | None]


class RewardFunction:
    """The function that `module:function` names, called with one Candidate at a time.

    It may be async; one that is not runs in threads of its own. deadline_s: seconds that a call may
    run, not counting its wait for a thread. A call that takes longer is given up: its thread goes
    on, but keeps neither other calls nor the end of the process waiting. ConfigError if the
    function is not to be had.
    """

    def __init__(self, part: str, named: str, deadline_s: float) -> None:
        self._part, self._deadline_s = part, deadline_s
        self._function = _found(part, named)
        self._threads = Slots(MAX_THREADS)
        self._logged: set[type[BaseException]] = set()

    async def rate(self, candidates: Sequence[Candidate]) -> list[Judgement | None]:
        """Its number as a judgement without words; None where it returned None, so does not apply.
        What it raises, `SystemExit` included, and what is no finite number, abstains with the
        reason."""
        return list(await asyncio.gather(*(self._one(candidate) for candidate in candidates)))

    async def _one(self, candidate: Candidate) -> Judgement | None:
        task = asyncio.current_task()
        assert task is not None
        try:
            async with asyncio.timeout(None) as limit:
                value, error = await self._in_thread(candidate, limit)
                if error:
                    raise error
                if inspect.isawaitable(value):
                    value = await value
            return None if value is None else Judgement(Outcome.OK, rating=_rating(value))
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and task.cancelling():
                raise  # the caller is cancelled; the function may have raised the same by itself
            if isinstance(error, TimeoutError) and limit.expired():
                reason = f"no answer within {self._deadline_s:g} s"
                return Judgement(Outcome.UNAVAILABLE, reason=reason)
            if type(error) not in self._logged:
                self._logged.add(type(error))
                LOG.warning("reward part %s abstains", self._part, exc_info=error)
            return Judgement(Outcome.UNPARSABLE, reason=f"{type(error).__name__}: {error}")

    async def _in_thread(self, candidate: Candidate, limit: asyncio.Timeout) -> Returned:
        """Return the function's value and its error; a future could not hold a StopIteration.
        The deadline starts with the thread.

        Each call has a daemon thread of its own: Python ends only after the threads of an executor
        have, which a hung function would prevent.
        """
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[Returned] = loop.create_future()

        def settle(returned: Returned) -> None:
            if not ended.done():
                ended.set_result(returned)

        def run() -> None:
            returned: Returned
            try:
                returned = self._function(candidate), None
            except BaseException as error:
                returned = None, error
            with suppress(RuntimeError):  # the call was given up, and the loop is closed
                loop.call_soon_threadsafe(settle, returned)

        await self._threads.take(1)
        try:
            limit.reschedule(loop.time() + self._deadline_s)
            threading.Thread(target=run, name=f"autoj-part-{self._part}", daemon=True).start()
            return await ended
        finally:
            self._threads.give(1)


def _rating(value: Any) -> Rating:
    """The number in every view. ValueError or TypeError for what is none."""
    number = float(value) if not isinstance(value, str | bytes) else float("nan")
    if not -float("inf") < number < float("inf"):
        raise ValueError(f"it returned {value!r:.80}: return a finite number, or None")
    return Rating(number, expected=number, direct=number)


def _found(part: str, named: str) -> Callable[[Candidate], Any]:
    module, _, name = named.partition(":")
    try:
        found = getattr(import_module(module), name)
    except Exception as error:
        raise ConfigError(
            f"parts.{part}.function: {named} cannot be loaded: {type(error).__name__}: {error}; "
            "name module:function, and put the module's folder on PYTHONPATH"
        ) from error
    if not callable(found):
        raise ConfigError(f"parts.{part}.function: {named} is {found!r:.80}, no function")
    return found  # type: ignore[no-any-return]
