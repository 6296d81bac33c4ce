"""Relative rewards: the groups of a training step, each judged together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from autoj_reward.client.client import JudgeClient
from autoj_reward.client.remote import HttpBackend
from autoj_reward.config import RelativeConfig
from autoj_reward.errors import ConfigError
from autoj_reward.questions.rank import share_prompt
from autoj_reward.questions.relative import rank_question
from autoj_reward.types import Candidate, GroupKey, Judgement, Outcome, group_key

ALONE = "the other responses of its group cannot be judged"
MIXED = "its group has responses to other queries"


async def rate_groups(
    client: JudgeClient, relative: RelativeConfig, candidates: Sequence[Candidate]
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
    served_judgements = await asyncio.gather(
        *(_rate_in_service(client, relative, candidates[n]) for n in elsewhere)
    )
    judgements = dict(zip(elsewhere, served_judgements, strict=True))
    group_questions = []
    for places in groups.values():
        members = [candidates[place] for place in places]
        if fault := _find_group_fault(members):
            judgements |= dict.fromkeys(places, Judgement(Outcome.INPUT_REJECTED, reason=fault))
        else:
            question = rank_question(members, client.facts, client.asks, relative)
            group_questions.append((places, question))
    rankings = await client.answer([question for _, question in group_questions])
    for (places, _), ranking in zip(group_questions, rankings, strict=True):
        judgements |= dict(zip(places, ranking.as_judgements(), strict=True))
    return [judgements[place] for place in range(len(candidates))]


async def _rate_in_service(
    client: JudgeClient, relative: RelativeConfig, candidate: Candidate
) -> Judgement:
    """Return the judgement of one response in a group that a service gathers."""
    if not isinstance(client.backend, HttpBackend):
        raise ConfigError(
            f"the {candidate.group_size} responses of a group come one by one, and only a service "
            "meets them all: start one with `autoj serve`, and name it in reward.service"
        )
    shown_candidate = candidate.for_judge(client.asks)
    deadline_s = client.limits.deadline_s
    return await client.backend.rate_member(shown_candidate, relative, deadline_s)


def _find_group_fault(group: Sequence[Candidate]) -> str:
    if len(group) < 2:
        return ALONE
    return "" if share_prompt(group) else MIXED
