"""A Python function as a part of a reward: a rule, a test, a number of one's own."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from autoj_reward.errors import ConfigError
from autoj_reward.types import Candidate, Judgement, Outcome, Rating

LOG = logging.getLogger("autoj_reward.trainer")


class RewardFunction:
    """The function that `module:function` names, called with one Candidate at a time.

    It may be async; one that is not is called in threads, several at a time. deadline_s: seconds
    until a call is given up (its thread runs on). ConfigError if the function is not to be had.
    """

    def __init__(self, part: str, named: str, deadline_s: float) -> None:
        self._part, self._deadline_s = part, deadline_s
        self._function = _found(part, named)
        self._told: set[type[Exception]] = set()

    async def rate(self, candidates: Sequence[Candidate]) -> list[Judgement | None]:
        """Its number as a judgement without words; None where it returned None, so does not apply.
        What it raises, and what is no finite number, abstains with the reason."""
        return list(await asyncio.gather(*(self._one(candidate) for candidate in candidates)))

    async def _one(self, candidate: Candidate) -> Judgement | None:
        try:
            async with asyncio.timeout(self._deadline_s) as limit:
                said = await asyncio.to_thread(self._function, candidate)
                if inspect.isawaitable(said):
                    said = await said
            return None if said is None else Judgement(Outcome.OK, rating=_rating(said))
        except Exception as error:
            if isinstance(error, TimeoutError) and limit.expired():
                reason = f"no answer within {self._deadline_s:g} s"
                return Judgement(Outcome.UNAVAILABLE, reason=reason)
            if type(error) not in self._told:
                self._told.add(type(error))
                LOG.warning("reward part %s abstains", self._part, exc_info=error)
            return Judgement(Outcome.UNPARSABLE, reason=f"{type(error).__name__}: {error}")


def _rating(said: Any) -> Rating:
    """The number in every view. ValueError or TypeError for what is none."""
    value = float(said) if not isinstance(said, str | bytes) else float("nan")
    if not -float("inf") < value < float("inf"):
        raise ValueError(f"it returned {said!r:.80}: return a finite number, or None")
    return Rating(value, expected=value, direct=value)


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
