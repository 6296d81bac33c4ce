"""Relative rewards: the groups of a training step, each judged together."""

from __future__ import annotations

from collections.abc import Sequence

from autoj_reward.client.client import RewardClient
from autoj_reward.config import RelativeConfig
from autoj_reward.questions.rank import share_prompt
from autoj_reward.types import Candidate, GroupKey, Judgement, Outcome, group_key

ALONE = "the other responses of its group cannot be judged"
MIXED = "its group has responses to other queries"


async def rate_groups(
    client: RewardClient, how: RelativeConfig, candidates: Sequence[Candidate]
) -> list[Judgement]:
    """Return one judgement a candidate, in order, whose rating is its score in its group.

    Groups are judged concurrently. A candidate abstains if no other response of its group can be
    judged, or if its group holds responses to other queries or contexts.
    """
    groups: dict[GroupKey, list[int]] = {}
    for place, candidate in enumerate(candidates):
        groups.setdefault(group_key(candidate), []).append(place)
    found: dict[int, Judgement] = {}
    asked = []
    for places in groups.values():
        own = [candidates[place] for place in places]
        if why := _unfit(own):
            found |= dict.fromkeys(places, Judgement(Outcome.INPUT_REJECTED, reason=why))
        else:
            asked.append((places, await client.question_of_rank(own, how)))
    rankings = await client.answer([question for _, question in asked])
    for (places, _), ranking in zip(asked, rankings, strict=True):
        found |= dict(zip(places, ranking.as_judgements(), strict=True))
    return [found[place] for place in range(len(candidates))]


def _unfit(group: Sequence[Candidate]) -> str:
    if len(group) < 2:
        return ALONE
    return "" if share_prompt(group) else MIXED
