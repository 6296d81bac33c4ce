"""Rewards of responses without an answer: never above a judged response of their group."""

from __future__ import annotations

from collections.abc import Sequence

from autoj_reward.types import GroupKey


def fill_lowest(
    raw: Sequence[float | None],
    unanswered: Sequence[bool],
    groups: Sequence[GroupKey],
    lowest: float | None,
) -> list[float | None]:
    """Return the rewards before shaping, with the lowest one for each response without an answer.

    lowest: that of the scale; None for a scale without bounds. There the lowest of the group
    counts, or None if no judged response of it has a reward.
    """
    minima = _find_minima(raw, unanswered, groups)
    return [
        (minima.get(group) if lowest is None else lowest) if is_unanswered else value
        for value, is_unanswered, group in zip(raw, unanswered, groups, strict=True)
    ]


def keep_lowest(
    shaped: Sequence[float | None], unanswered: Sequence[bool], groups: Sequence[GroupKey]
) -> list[float | None]:
    """Return shaped rewards in which no response without an answer is above a judged one of its
    group. Penalties and whitening may have raised it."""
    minima = _find_minima(shaped, unanswered, groups)
    return [
        min(value, minima.get(group, value)) if is_unanswered and value is not None else value
        for value, is_unanswered, group in zip(shaped, unanswered, groups, strict=True)
    ]


def _find_minima(
    values: Sequence[float | None], unanswered: Sequence[bool], groups: Sequence[GroupKey]
) -> dict[GroupKey, float]:
    """Return the lowest value of each group's judged responses."""
    minima: dict[GroupKey, float] = {}
    for value, is_unanswered, group in zip(values, unanswered, groups, strict=True):
        if value is not None and not is_unanswered:
            minima[group] = min(value, minima.get(group, value))
    return minima
