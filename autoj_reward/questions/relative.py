"""Questions that rank a group, made from their config block."""

from __future__ import annotations

from collections.abc import Sequence

from autoj_reward.config import RelativeConfig
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
    group = tuple(candidate.for_judge(asks) for candidate in candidates)
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
