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
    scored_places = [i for i, v in enumerate(values) if v is not None]
    if not scored_places:
        return Selection(0, "all_failed")
    tied = keep_highest(scored_places, values)
    if len(tied) == 1:
        return Selection(tied[0], "only" if len(candidates) == 1 else view)
    comparisons: list[tuple[int, int, Verdict]] = []

    async def play_match(i: int, j: int) -> Verdict:
        assert meet is not None
        verdict = await meet(i, j)
        comparisons.append((i, j, verdict))
        return verdict

    remaining = tied
    for rule in rules:
        if rule == "policy_logprob":
            remaining = keep_highest(remaining, [c.policy_logprob for c in candidates])
        elif rule == "expected_rating":
            remaining = keep_highest(remaining, [j.view("expected") for j in judgements])
        elif rule == "pairwise" and meet is not None:
            remaining = await knock_out(remaining, play_match, matches)
        elif rule == "first":
            remaining = remaining[:1]
        if len(remaining) == 1:
            return Selection(remaining[0], rule, tuple(tied), tuple(comparisons))
    return Selection(remaining[0], "first", tuple(tied), tuple(comparisons))


def keep_highest(tied: list[int], values: Sequence[float | None]) -> list[int]:
    """Return the candidates with the highest value; all of them if any value is None."""
    tied_values = [values[i] for i in tied]
    if any(v is None for v in tied_values):
        return tied
    best = max(v for v in tied_values if v is not None)
    return [i for i, v in zip(tied, tied_values, strict=True) if v == best]


def count_tied_pairs(values: Iterable[float]) -> int:
    """Return the number of pairs with equal values."""
    return sum(math.comb(count, 2) for count in Counter(values).values())


async def knock_out(tied: list[int], meet: PlayMatch, max_matches: float = math.inf) -> list[int]:
    """Return the candidates that lost no match, in index order.

    tied: the tied candidates. max_matches: maximum matches; candidates that have not played by then
    survive. With n candidates there are at most 2 (n - 1) matches.

    Candidates enter one at a time. A new one plays the survivors from the front and goes on as long
    as it wins; each loser is out. A tie, an inconsistent or a failed comparison eliminates nobody,
    and the new candidate joins the survivors at the end. So at most one match of each new candidate
    eliminates nobody.
    """
    survivors: list[int] = []
    for challenger in tied:
        verdict = Verdict.SECOND
        while survivors and verdict is Verdict.SECOND and max_matches > 0:
            max_matches -= 1
            verdict = await meet(survivors[0], challenger)
            if verdict is Verdict.SECOND:
                survivors.pop(0)
        if verdict is not Verdict.FIRST:
            survivors.append(challenger)
    return survivors
