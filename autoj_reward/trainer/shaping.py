"""Reward shaping: length penalty, affine scale, clip, whitening, in this order."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from autoj_reward.config import RewardConfig, ShapingConfig
from autoj_reward.errors import ConfigError
from autoj_reward.types import GroupKey

EPSILON = 1e-4
"""Added to standard deviations, as TRL's GRPO does: a group of equals gets 0, not infinity."""


def refuse_groups(config: RewardConfig, why: str) -> None:
    """ConfigError that names each setting which needs all responses of a query in one call."""
    found = {
        "reward.shaping.whiten": config.shaping.whiten,
        "reward.failures.fallback": config.failures.fallback,
    }
    for key, value in found.items():
        if value == "group":
            raise ConfigError(
                f"{key} is group, which needs all responses of a query in one call, and {why}: "
                "choose another, and let the trainer normalise its groups"
            )


def require_groups(key: str, groups: Sequence[GroupKey]) -> None:
    """Raise ConfigError where the call has a response without another of its group."""
    lone = [group for group, n in Counter(groups).items() if n == 1]
    if lone:
        name = lone[0] if isinstance(lone[0], str) else lone[0][0]
        raise ConfigError(
            f"{key} is group, which needs all responses of a query in one call, and this call has "
            f"one response of {name!r:.80}: choose another, and let the trainer normalise its "
            "groups"
        )


class Shaper:
    """Shapes raw rewards; None stays None and enters no statistic."""

    def __init__(self, config: ShapingConfig) -> None:
        self._config = config

    def __call__(
        self, raw: Sequence[float | None], lengths: Sequence[int], groups: Sequence[GroupKey]
    ) -> list[float | None]:
        """Shaped rewards. lengths: characters of each response; groups: the group of each.

        ConfigError for a lone response where the group decides.
        """
        c = self._config
        shaped = [
            None if r is None else self._clip((r - c.length_penalty * n / 1000) * c.scale + c.shift)
            for r, n in zip(raw, lengths, strict=True)
        ]
        if c.whiten == "group":
            require_groups("shaping.whiten", groups)
            return _by_group(shaped, groups)
        return shaped

    def neutral(self, middle: float) -> float:
        """What the middle of the judge's scale becomes, for an empty response."""
        if self._config.whiten != "none":
            return 0.0
        return self._clip(middle * self._config.scale + self._config.shift)

    def _clip(self, value: float) -> float:
        if self._config.clip is None:
            return value
        low, high = self._config.clip
        return min(high, max(low, value))


def _by_group(values: Sequence[float | None], groups: Sequence[GroupKey]) -> list[float | None]:
    own: dict[GroupKey, list[float]] = {}
    for value, group in zip(values, groups, strict=True):
        if value is not None:
            own.setdefault(group, []).append(value)
    means = {group: sum(found) / len(found) for group, found in own.items()}
    spreads = {
        group: math.sqrt(sum((v - means[group]) ** 2 for v in found) / max(1, len(found) - 1))
        for group, found in own.items()
    }
    return [
        None if v is None else (v - means[g]) / (spreads[g] + EPSILON)
        for v, g in zip(values, groups, strict=True)
    ]
