"""The parts of a reward: what judges and functions say of a response, and their one number."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

from autoj_reward.client.in_flight import Slots
from autoj_reward.config import JUDGE, RewardConfig, View
from autoj_reward.errors import ConfigError
from autoj_reward.formats.schema import JudgeFormat, ScalarFormat
from autoj_reward.models.spec import JudgeSpec, judge_spec
from autoj_reward.types import PLANTED, Candidate, Judgement, Outcome

LOG = logging.getLogger("autoj_reward.trainer")
MAX_THREADS = 32
"""Threads in which one function runs at a time. A call that was given up is not counted."""
Ask = Callable[[Sequence[Candidate]], Awaitable[Sequence[Judgement | None]]]
"""How a part is asked; None is no failure: it has nothing to say of this candidate."""
Returned = tuple[Any, BaseException | None]


@dataclass(frozen=True, slots=True)
class RewardPart:
    """One part. format: of a judge or a scalar model; None for a function. view: the number of the
    judgement that counts. range: the two values that count as 0 and as 1, in place of the part's
    own scale."""

    format: JudgeFormat | ScalarFormat | None
    view: View = "rating"
    weight: float = 1.0
    range: tuple[float, float] | None = None

    def value(self, judgement: Judgement | None) -> float | None:
        """What the part says, in its own unit; None where it abstains. A verdict that the policy
        planted in what the judge failed on earns the lowest rating."""
        if judgement is None:
            return None
        planted = not judgement.ok and PLANTED in judgement.flags
        if planted and isinstance(self.format, JudgeFormat):
            return float(self.format.scale.low)
        return judgement.view(self.view)

    def share(self, value: float) -> float:
        """What a value counts: 0..1, or beyond where it leaves the stated range."""
        if self.range:
            nothing, all_of_it = self.range
            return (value - nothing) / (all_of_it - nothing)
        return self.format.share(value) if self.format else value

    @property
    def middle(self) -> float:
        """What stands for a value where none is known, in the part's own unit."""
        if self.range:
            return sum(self.range) / 2
        return self.format.neutral if self.format else 0.5


def reward_judges(config: RewardConfig) -> dict[str, JudgeSpec]:
    """Resolve the judges of a reward, by the names of their parts, the reward's own first. Each
    reads what its view needs. Raises ConfigError and FormatError for what cannot be."""
    return {
        name: judge_spec(own.judge).that_reads(own.view, "reward")
        for name, own in config.judged.items()
    }


class Parts:
    """The parts of a reward by name, the reward's own judge first.

    The judge alone rewards in its own unit. With others beside it, every part counts from 0 to 1,
    and the reward is their mean by weight, or the least of them. A part that abstains is left out,
    and the others' weights make up for it.
    """

    def __init__(self, config: RewardConfig, judges: Mapping[str, JudgeSpec]) -> None:
        """judges: those of the config, as `reward_judges` returns them."""
        self._least = config.reduce == "min"
        self.by_name = {JUDGE: RewardPart(judges[JUDGE].format)}
        for name, part in config.parts.items():
            fmt = None if part.function else judges[name].format
            self.by_name[name] = RewardPart(fmt, weight=part.weight, range=part.range)
        self.alone = len(self.by_name) == 1

    def use_views(self, views: Mapping[str, View]) -> None:
        """Let these numbers count, by the name of the part; a function has one number alone."""
        self.by_name |= {n: replace(self.by_name[n], view=view) for n, view in views.items()}

    def values(self, answers: Mapping[str, Judgement | None]) -> dict[str, float | None]:
        """What each part says of one response, in its own unit."""
        return {name: part.value(answers[name]) for name, part in self.by_name.items()}

    def reward(self, values: Mapping[str, float | None]) -> float | None:
        """The one number, before shaping; None if every part abstains."""
        if self.alone:
            return values[JUDGE]
        counted = [
            (part.weight, part.share(value))
            for name, part in self.by_name.items()
            if (value := values[name]) is not None
        ]
        if not counted:
            return None
        if self._least:
            return min(share for _, share in counted)
        return sum(w * share for w, share in counted) / sum(w for w, _ in counted)

    @property
    def middle(self) -> float:
        """What stands for a reward where none is known, before shaping."""
        return self.by_name[JUDGE].middle if self.alone else 0.5

    def share(self, reward: float) -> float:
        """Where a reward lies before shaping, 0..1."""
        return self.by_name[JUDGE].share(reward) if self.alone else min(1.0, max(0.0, reward))


@dataclass(frozen=True, slots=True)
class Reward:
    """One candidate's reward. raw: the configured view of the judgement, or what all parts make;
    value: what is learned from, after shaping. Both are None if the judgement is not ok, or every
    part abstains, unless a verdict is planted in what the judge failed on: that earns the lowest
    rating, and no fallback. parts: what each says in its own unit, None where it abstains; empty
    for the judge alone."""

    judgement: Judgement
    raw: float | None
    value: float | None
    parts: Mapping[str, float | None] = field(default_factory=dict)


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
            return None if value is None else Judgement.of_score(_number(value))
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


def _number(value: Any) -> float:
    """The number that a function returned. ValueError or TypeError for what is none."""
    number = float(value) if not isinstance(value, str | bytes) else float("nan")
    if not -float("inf") < number < float("inf"):
        raise ValueError(f"it returned {value!r:.80}: return a finite number, or None")
    return number


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
