"""Questions that rank a group, made from their config block."""

from __future__ import annotations

from collections.abc import Sequence

from autoj_reward.config import RelativeConfig
from autoj_reward.questions.listwise import Listwise
from autoj_reward.questions.tournament import Tournament
from autoj_reward.types import Candidate

ORDERS = 2
"""Default number of orders of a listwise judgement."""


def default_relative(max_group: int | None) -> RelativeConfig:
    """Return how a group is ranked if nothing is configured.

    It is listwise if the judge's format has a group protocol, else by comparisons. max_group: as
    for `rank_question`.
    """
    return RelativeConfig(by="comparisons" if max_group is None else "listwise")


def rank_question(
    candidates: Sequence[Candidate],
    config: RelativeConfig,
    *,
    max_group: int | None,
    scale: tuple[float, float] | None,
    tie: float | None,
) -> Listwise | Tournament:
    """Return the question that ranks a group. The judge must have passed `require_relative`.

    max_group: the largest number of responses in one listwise judgement; None without a group
    protocol. scale: lowest and highest rating; None without a scale. tie: see `Tournament`.
    """
    group = tuple(candidates)
    if config.by == "listwise":
        assert max_group is not None and scale is not None
        orders = config.orders if isinstance(config.orders, int) else ORDERS
        return Listwise(group, scale, max_group, orders, config.seed)
    return Tournament(
        group,
        config.schedule,
        config.neighbours,
        both=config.orders != "alternate",
        tie=tie,
        seed=config.seed,
    )
