"""Relative rewards: the groups of a training step, each judged together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from autoj_reward.client.client import RewardClient
from autoj_reward.client.remote import HttpBackend
from autoj_reward.config import RelativeConfig
from autoj_reward.errors import ConfigError
from autoj_reward.questions.rank import share_prompt
from autoj_reward.types import Candidate, GroupKey, Judgement, Outcome, group_key

ALONE = "the other responses of its group cannot be judged"
MIXED = "its group has responses to other queries"


async def rate_groups(
    client: RewardClient, how: RelativeConfig, candidates: Sequence[Candidate]
) -> list[Judgement]:
    """Return one judgement a candidate, in order, whose rating is its score in its group.

    Groups are judged concurrently. A candidate abstains if no other response of its group can be
    judged, or if its group holds responses to other queries or contexts. Candidates with a
    `group_size` are judged by a service, which meets the rest of their groups. Raises ConfigError
    for them if the judge is no service.
    """
    groups: dict[GroupKey, list[int]] = {}
    elsewhere = [n for n, candidate in enumerate(candidates) if candidate.group_size is not None]
    for place, candidate in enumerate(candidates):
        if candidate.group_size is None:
            groups.setdefault(group_key(candidate), []).append(place)
    members = await asyncio.gather(*(_in_service(client, how, candidates[n]) for n in elsewhere))
    found = dict(zip(elsewhere, members, strict=True))
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


async def _in_service(client: RewardClient, how: RelativeConfig, candidate: Candidate) -> Judgement:
    """Return the judgement of one response in a group that a service gathers."""
    if not isinstance(client.backend, HttpBackend):
        raise ConfigError(
            f"the {candidate.group_size} responses of a group come one by one, and only a service "
            "meets them all: start one with `autoj serve`, and name it in reward.service"
        )
    shown = candidate.for_judge(client.shows)
    return await client.backend.rate_member(shown, how, client.deadline_s)


def _unfit(group: Sequence[Candidate]) -> str:
    if len(group) < 2:
        return ALONE
    return "" if share_prompt(group) else MIXED
