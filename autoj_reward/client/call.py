"""One backend call: its inputs, deadline and task, from departure until each input is answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextvars import Context as TaskContext
from dataclasses import dataclass, field

from autoj_reward.client.backend import Backend
from autoj_reward.client.in_flight import Recorder, Slots
from autoj_reward.errors import EngineUnavailable, ReplicaLost
from autoj_reward.io.backoff import Backoff
from autoj_reward.tracing import span
from autoj_reward.types import JudgeInput, Judgement, Outcome

CLOSED = "the judge was closed: open it again to ask it"
TRIES = 2
"""Replicas that may be lost while they hold an input before that input is suspected of crashing
them."""
LONGEST_PAUSE_S = 5.0
"""Limit in seconds on the pause between two attempts, before jitter."""


@dataclass(eq=False, slots=True)
class Waiting:
    """A judge input in flight, and the future of its judgement."""

    item: JudgeInput
    future: asyncio.Future[Judgement]
    context: TaskContext
    """Context of the first caller: the input's call belongs to this caller's trace."""
    call: Call | None = None
    """The call that holds the input. None until it departs."""

    def fail(self, error: BaseException) -> None:
        """Set an exception on the future, unless it is done."""
        if not self.future.done():
            self.future.set_exception(error)


@dataclass(slots=True)
class CallSettings:
    """What all calls of a client share."""

    backend: Backend
    recorder: Recorder
    slots: Slots
    """Judge inputs that may be in flight."""
    deadline_s: float
    """Seconds for one input, retries included."""
    first_pause_s: float = 0.1
    """Mean pause before the second attempt. Each further one doubles it."""
    quarantine: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Lets one suspected input at a time be retried, so that it takes no other with it."""


class Call:
    """A backend call of several inputs. It retries until each is answered or given up.

    An input that was in flight when two replicas were lost is suspected of crashing them, and is
    not retried with others. The inputs of its call are then retried alone once, one at a time, so
    that only the one that crashes the replica fails.
    """

    def __init__(self, settings: CallSettings, waitings: Sequence[Waiting]) -> None:
        self._settings = settings
        self._waitings = waitings
        for waiting in waitings:
            waiting.call = self
        self.task = asyncio.create_task(self._run(), context=waitings[0].context.copy())
        self.task.add_done_callback(self._finish)

    async def leave(self) -> None:
        """Cancel the call if its callers have gone and nobody waits for any of its inputs."""
        is_open = any(not waiting.future.done() for waiting in self._waitings)
        was_left = any(waiting.future.cancelled() for waiting in self._waitings)
        if was_left and not is_open:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)

    def _finish(self, task: asyncio.Task[None]) -> None:
        """Fail what is still open: the call was cancelled, or ended by an unexpected error."""
        error = None if task.cancelled() else task.exception()
        for waiting in self._waitings:
            waiting.fail(error or EngineUnavailable(CLOSED))

    async def _run(self) -> None:
        settings = self._settings
        await settings.slots.take(len(self._waitings))
        try:
            if settings.recorder.spending:
                settings.recorder.spending.require()
            with span("autoj.call", {"autoj.inputs": len(self._waitings)}, kind="CLIENT"):
                await self._answer_all(time.monotonic() + settings.deadline_s)
        finally:
            settings.recorder.flush()
            # Each recorded answer has already freed its slot.
            unanswered = [w for w in self._waitings if w.future.cancelled() or not w.future.done()]
            settings.slots.give(len(unanswered))

    async def _answer_all(self, deadline: float) -> None:
        """Answer every input, or record it as unavailable. deadline: on `time.monotonic`."""
        unanswered = list(self._waitings)
        problem = await self._ask_until(unanswered, deadline, TRIES)
        problems = dict.fromkeys(unanswered, problem)
        if len(unanswered) > 1 and time.monotonic() < deadline:
            for waiting in problems:
                async with self._settings.quarantine:
                    problems[waiting] = await self._ask_until([waiting], deadline, 1)
        judge = self._settings.backend.judge
        for waiting, reason in problems.items():
            if reason:
                self._record(waiting, Judgement(Outcome.UNAVAILABLE, reason=reason, judge=judge))

    async def _ask_until(self, unanswered: list[Waiting], deadline: float, tries: int) -> str:
        """Ask until every input is answered, the deadline passes or `tries` replicas are lost.

        unanswered: answered inputs are removed from this list. deadline: on `time.monotonic`.
        Returns why inputs are left, or "" if none is.
        """
        settings = self._settings
        backoff = Backoff(settings.first_pause_s, LONGEST_PAUSE_S)
        last_problem = ""
        lost_replicas: set[str] = set()
        while time.monotonic() < deadline:
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    await self._ask_once(unanswered)
                if not unanswered:
                    return ""
                last_problem = "the replica ended its answer early"
                wait_s = 0.0
            except TimeoutError:
                last_problem = settings.backend.problem or last_problem
                break
            except EngineUnavailable as error:
                last_problem = str(error)
                wait_s = error.retry_after_s
                # A replica without a name cannot be told from another, so each loss counts.
                if isinstance(error, ReplicaLost) and error.replica not in lost_replicas:
                    tries -= 1
                    lost_replicas |= {error.replica} - {""}
            if not tries:
                return (
                    "replicas were lost while they held this input: it may kill them; last: "
                    f"{last_problem}"
                )
            pause_s = backoff.next_s(least_s=wait_s)
            await asyncio.sleep(min(pause_s, max(0.0, deadline - time.monotonic())))
        reason = f"no answer within {settings.deadline_s:g} s"
        return f"{reason}; last: {last_problem}" if last_problem else reason

    async def _ask_once(self, unanswered: list[Waiting]) -> None:
        """Send the inputs that somebody waits for, and record the answers as they come."""
        unanswered[:] = [waiting for waiting in unanswered if not waiting.future.done()]
        if not unanswered:  # their callers have gone
            return
        sent = tuple(unanswered)
        stream = self._settings.backend.stream(tuple(waiting.item for waiting in sent))
        try:
            async for index, judgement in stream:
                unanswered.remove(sent[index])
                self._record(sent[index], judgement)
        finally:  # an error here must also stop the replica's work
            if isinstance(stream, AsyncGenerator):
                await stream.aclose()

    def _record(self, waiting: Waiting, judgement: Judgement) -> None:
        # While a judge is replaced, the old one still answers.
        judge = judgement.judge or self._settings.backend.judge
        self._settings.recorder.add(judge, waiting.item, judgement, waiting.future)
