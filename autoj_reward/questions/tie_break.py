"""Choice of the best judged candidate: the highest value wins, and tie-break rules decide among
equals."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence

from autoj_reward.types import Candidate, Judgement, Selection, Verdict

PlayMatch = Callable[[int, int], Awaitable[Verdict]]
"""Compare two candidates, given by index. Returns FIRST if the first one wins."""
RULES = ("policy_logprob", "expected_rating", "pairwise", "first")
"""Default tie-break rules, in the order in which they are tried."""


async def choose(
    candidates: Sequence[Candidate],
    judgements: Sequence[Judgement],
    *,
    view: str = "rating",
    rules: Sequence[str] = RULES,
    meet: PlayMatch | None = None,
    matches: float = math.inf,
) -> Selection:
    """Choose the best of one query's judged candidates (paper, section 6.3).

    The best `view` wins. Tied candidates are narrowed rule by rule until one is left:

    - policy_logprob: the highest, used only if every tied candidate has one.
    - expected_rating: the highest, used only if every tied candidate has one.
    - pairwise: a knock-out in index order, in which only losers leave; a match is won if both
      orders agree. It is skipped if `meet` is None. After `matches` matches, candidates that have
      not played survive together with the unbeaten ones.
    - first: the lowest index; also the last resort.

    Judgements that abstain never win, unless all do. Then the first candidate is chosen, by the
    rule `all_failed`.
    """
    values = [j.view(view) for j in judgements]
    scored = [i for i, v in enumerate(values) if v is not None]
    if not scored:
        return Selection(0, "all_failed")
    tied = keep_highest(scored, values)
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
            left = keep_highest(left, [c.policy_logprob for c in candidates])
        elif rule == "expected_rating":
            left = keep_highest(left, [j.view("expected") for j in judgements])
        elif rule == "pairwise" and meet is not None:
            left = await knock_out(left, match, matches)
        elif rule == "first":
            left = left[:1]
        if len(left) == 1:
            return Selection(left[0], rule, tuple(tied), tuple(held))
    return Selection(left[0], "first", tuple(tied), tuple(held))


def keep_highest(left: list[int], values: Sequence[float | None]) -> list[int]:
    """Return the candidates with the highest value; all of them if any value is None."""
    own = [values[i] for i in left]
    if any(v is None for v in own):
        return left
    best = max(v for v in own if v is not None)
    return [i for i, v in zip(left, own, strict=True) if v == best]


def count_tied_pairs(values: Iterable[float]) -> int:
    """Return the number of pairs with equal values."""
    return sum(math.comb(count, 2) for count in Counter(values).values())


async def knock_out(left: list[int], meet: PlayMatch, most: float = math.inf) -> list[int]:
    """Return the candidates that lost no match, in index order.

    left: the tied candidates. most: maximum matches; candidates that have not played by then
    survive. With n candidates there are at most 2 (n - 1) matches.

    Candidates enter one at a time. A new one plays the survivors from the front and goes on as long
    as it wins; each loser is out. A tie, an inconsistent or a failed comparison eliminates nobody,
    and the new candidate joins the survivors at the end. So at most one match of each new candidate
    eliminates nobody.
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
