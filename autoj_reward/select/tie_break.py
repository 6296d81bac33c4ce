"""Best-of-N: the highest-rated candidate, and a stated list of rules among equals."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from autoj_reward.types import Candidate, Comparison, Judgement, Selection, Verdict

Compare = Callable[[int, int], Awaitable[Comparison]]
"""Compares two candidates of the group, by index, in both orders."""


async def select(
    candidates: Sequence[Candidate],
    judgements: Sequence[Judgement],
    *,
    view: str = "rating",
    rules: Sequence[str] = ("policy_logprob", "expected_rating", "pairwise", "first"),
    compare: Compare | None = None,
) -> Selection:
    """Choose among the candidates of one query (paper, section 6.3).

    The best `view` wins. Equals are narrowed rule by rule until one is left:
    policy_logprob - highest, used only if every tied candidate has one;
    expected_rating - highest, used only if every tied candidate has one;
    pairwise - knock-out in index order: a match is won only if both orders agree, and a challenger
        that cannot be told from the champion stays beside it, so ties decide nothing;
    first - lowest index; also the last resort.
    Judgements that abstain never win unless all do: then the first candidate, rule `all_failed`.
    """
    values = [j.view(view) for j in judgements]
    scored = [i for i, v in enumerate(values) if v is not None]
    if not scored:
        return Selection(0, "all_failed")
    best = max(v for v in values if v is not None)
    tied = [i for i in scored if values[i] == best]
    if len(tied) == 1:
        return Selection(tied[0], "only" if len(candidates) == 1 else view)
    left = list(tied)
    matches: list[tuple[int, int, Verdict]] = []
    for rule in rules:
        if rule == "policy_logprob":
            left = _highest(left, [c.policy_logprob for c in candidates])
        elif rule == "expected_rating":
            left = _highest(left, [j.view("expected") for j in judgements])
        elif rule == "pairwise" and compare is not None:
            left = await _knock_out(left, compare, matches)
        elif rule == "first":
            left = left[:1]
        if len(left) == 1:
            return Selection(left[0], rule, tuple(tied), tuple(matches))
    return Selection(left[0], "first", tuple(tied), tuple(matches))


def _highest(left: list[int], values: Sequence[float | None]) -> list[int]:
    own = [values[i] for i in left]
    if any(v is None for v in own):
        return left
    best = max(v for v in own if v is not None)
    return [i for i, v in zip(left, own, strict=True) if v == best]


async def _knock_out(
    left: list[int], compare: Compare, matches: list[tuple[int, int, Verdict]]
) -> list[int]:
    """Challengers meet the champion in turn; whoever cannot be told from it stays in."""
    champions = [left[0]]
    for challenger in left[1:]:
        verdict = (await compare(champions[0], challenger)).verdict
        matches.append((champions[0], challenger, verdict))
        if verdict is Verdict.SECOND:
            champions = [challenger]
        elif verdict is not Verdict.FIRST:
            champions.append(challenger)
    return champions
