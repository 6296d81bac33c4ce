"""Best-of-N: the highest-rated candidate, and a stated list of rules among equals."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence

from autoj_reward.questions.tie_break import highest, knock_out
from autoj_reward.types import Candidate, Comparison, Contest, Judgement, Selection, Verdict

Compare = Callable[[Sequence[Contest]], Awaitable[list[Comparison]]]
"""Compares pairs in both orders, as `RewardClient.compare` does."""


async def choose(
    candidates: Sequence[Candidate],
    judgements: Sequence[Judgement],
    *,
    view: str = "rating",
    rules: Sequence[str] = ("policy_logprob", "expected_rating", "pairwise", "first"),
    compare: Compare | None = None,
    matches: float = math.inf,
) -> Selection:
    """Choose among the candidates of one query (paper, section 6.3).

    The best `view` wins. Equals are narrowed rule by rule until one is left:
    policy_logprob - highest, used only if every tied candidate has one;
    expected_rating - highest, used only if every tied candidate has one;
    pairwise - knock-out in index order that only the beaten leave; a match is won if both orders
        agree. Left out where there is no `compare`: see `RewardClient.compares`. After so many
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

    async def meet(i: int, j: int) -> Verdict:
        assert compare is not None
        own, other = candidates[i], candidates[j]
        [found] = await compare([Contest(own.query, own.response, other.response, own.context)])
        held.append((i, j, found.verdict))
        return found.verdict

    left = tied
    for rule in rules:
        if rule == "policy_logprob":
            left = highest(left, [c.policy_logprob for c in candidates])
        elif rule == "expected_rating":
            left = highest(left, [j.view("expected") for j in judgements])
        elif rule == "pairwise" and compare is not None:
            left = await knock_out(left, meet, matches)
        elif rule == "first":
            left = left[:1]
        if len(left) == 1:
            return Selection(left[0], rule, tuple(tied), tuple(held))
    return Selection(left[0], "first", tuple(tied), tuple(held))
