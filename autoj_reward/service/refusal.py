"""Inputs that a service refuses one by one, so that the others of a request are answered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from fastapi.exceptions import RequestValidationError

from autoj_reward.client.remote import unfit
from autoj_reward.service.bodies import MAX_INPUTS
from autoj_reward.types import Judgement, Outcome

T = TypeVar("T")
R = TypeVar("R")


def require_inputs(count: int, field: str) -> None:
    """RequestValidationError for more judge inputs than one request may cost."""
    if count > MAX_INPUTS:
        told = f"{count} judge inputs: a request may cost {MAX_INPUTS}"
        raise RequestValidationError([{"type": "too_long", "loc": ("body", field), "msg": told}])


def refused(texts: Iterable[str], judge: str) -> Judgement | None:
    """The judgement of an input whose texts are unfit for a service, None of any other."""
    reason = unfit(texts)
    return Judgement(Outcome.INPUT_REJECTED, reason=reason, judge=judge) if reason else None


async def answered(
    items: Sequence[T],
    refusal: Callable[[T], R | None],
    ask: Callable[[list[T]], Awaitable[Sequence[R]]],
) -> list[R]:
    """One answer an item, in order: its refusal if it has one, else what `ask` says of it."""
    found = [refusal(item) for item in items]
    rest = iter(await ask([i for i, own in zip(items, found, strict=True) if own is None]))
    return [next(rest) if own is None else own for own in found]
