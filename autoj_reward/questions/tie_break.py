"""Choosing among judged candidates: the highest value wins, and a stated list of rules decides
among equals."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence

from autoj_reward.types import Candidate, Judgement, Selection, Verdict

Meet = Callable[[int, int], Awaitable[Verdict]]
"""The verdict of two candidates of a group, by index: FIRST if the first beats the second."""
RULES = ("policy_logprob", "expected_rating", "pairwise", "first")
"""The rules among equals, in the order in which they are tried unless a list is given."""


async def choose(
    candidates: Sequence[Candidate],
    judgements: Sequence[Judgement],
    *,
    view: str = "rating",
    rules: Sequence[str] = RULES,
    meet: Meet | None = None,
    matches: float = math.inf,
) -> Selection:
    """Choose among the judged candidates of one query (paper, section 6.3).

    The best `view` wins. Equals are narrowed rule by rule until one is left:
    policy_logprob - highest, used only if every tied candidate has one;
    expected_rating - highest, used only if every tied candidate has one;
    pairwise - knock-out in index order that only the beaten leave; a match is won if both orders
        agree. Left out where there is no `meet`. After so many
        `matches` those who have not met anybody are left with those whom nobody beat;
    first - lowest index; also the last resort.
    Judgements that abstain never win unless all do: then the first candidate, rule `all_failed`.
    """
    values = [j.view(view) for j in judgements]
    scored = [i for i, v in enumerate(values) if v is not None]
    if not scored:
        return Selection(0, "all_failed")
    tied = highest(scored, values)
    if len(tied) == 1:
        return Selection(tied[0], "only" if len(candidates) == 1 else view)
    held: list[tuple[int, int, Verdict]] = []

    async def match(i: int, j: int) -> Verdict:
        assert meet is not None
        verdict = await meet(i, j)
        held.append((i, j, verdict))
        return verdict

    left = tied
    for rule in rules:
        if rule == "policy_logprob":
            left = highest(left, [c.policy_logprob for c in candidates])
        elif rule == "expected_rating":
            left = highest(left, [j.view("expected") for j in judgements])
        elif rule == "pairwise" and meet is not None:
            left = await knock_out(left, match, matches)
        elif rule == "first":
            left = left[:1]
        if len(left) == 1:
            return Selection(left[0], rule, tuple(tied), tuple(held))
    return Selection(left[0], "first", tuple(tied), tuple(held))


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
