"""Rules among equals: each leaves those of the tied that it does not put behind another."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence

from autoj_reward.types import Verdict

Meet = Callable[[int, int], Awaitable[Verdict]]
"""The verdict of two candidates of a group, by index: FIRST if the first beats the second."""


def highest(left: list[int], values: Sequence[float | None]) -> list[int]:
    """Those with the highest value; all of them if one has none."""
    own = [values[i] for i in left]
    if any(v is None for v in own):
        return left
    best = max(v for v in own if v is not None)
    return [i for i, v in zip(left, own, strict=True) if v == best]


def tied_pairs(values: Iterable[float]) -> int:
    """How many pairs of the values are equal."""
    return sum(math.comb(count, 2) for count in Counter(values).values())


async def knock_out(left: list[int], meet: Meet, most: float = math.inf) -> list[int]:
    """Those whom nobody beat, in index order, after at most 2 (n - 1) matches of n candidates.

    most: matches that may be held; those who have not met anybody by then stand.

    Each challenger in turn meets those who stand, the first of them first, and goes on as long as
    it wins. A match throws out the one who lost it. One that is a tie, inconsistent or failed
    throws out nobody: the challenger stands behind the others and the next one comes. So every
    match but one a challenger costs a candidate its place.
    """
    standing: list[int] = []
    for challenger in left:
        verdict = Verdict.SECOND
        while standing and verdict is Verdict.SECOND and most > 0:
            most -= 1
            verdict = await meet(standing[0], challenger)
            if verdict is Verdict.SECOND:
                standing.pop(0)
        if verdict is not Verdict.FIRST:
            standing.append(challenger)
    return standing
