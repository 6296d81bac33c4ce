"""Questions that rank a group, made from their config block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autoj_reward.config import RelativeConfig
from autoj_reward.conversation import show_media
from autoj_reward.errors import InputRejected
from autoj_reward.models.facts import Asks, JudgeFacts
from autoj_reward.questions.listwise import Listwise
from autoj_reward.questions.tournament import Tournament
from autoj_reward.types import Candidate

ORDERS = 2
"""Default number of orders of a listwise judgement."""


def rank_question(
    candidates: Sequence[Candidate],
    facts: JudgeFacts,
    asks: Asks,
    relative: RelativeConfig | None = None,
) -> Listwise | Tournament:
    """Return the question that ranks the responses of a group.

    relative: None stands for `JudgeFacts.default_relative`. Raises ConfigError if this judge cannot
    rank that way. The question itself raises InputError for a group that cannot be ranked.
    """
    relative = relative or facts.default_relative
    facts.require_relative(relative)
    group = tuple(show_member(candidate, facts, asks) for candidate in candidates)
    if relative.by == "listwise":
        assert facts.max_group is not None and facts.scale is not None
        orders = relative.orders if isinstance(relative.orders, int) else ORDERS
        return Listwise(group, facts.scale, facts.max_group, orders, relative.seed)
    return Tournament(
        group,
        relative.schedule,
        relative.neighbours,
        both=relative.orders != "alternate",
        tie=facts.tie,
        seed=relative.seed,
    )


def show_member(candidate: Candidate, facts: JudgeFacts, asks: Asks) -> Candidate:
    """Return a response of a group as the judge reads it.

    Media that the judge would reject make the response unreadable, so that they cost no other one.
    """
    shown_candidate = candidate.for_judge(asks)
    try:
        show_media(shown_candidate.response.shown_turns, facts.media)
    except InputRejected as error:
        response = replace(shown_candidate.response, unreadable=str(error))
        return replace(shown_candidate, response=response)
    return shown_candidate
