"""The parts of a reward: what each says of a response, what that counts, and their one number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from autoj_reward.config import JUDGE, PartConfig, RewardConfig, View
from autoj_reward.formats.schema import JudgeFormat, ScalarFormat
from autoj_reward.models import format_of
from autoj_reward.types import PLANTED, Judgement


@dataclass(frozen=True, slots=True)
class Part:
    """One part. format: of a judge or a scalar model; None for a function. view: the number of the
    judgement that counts. range: the two values that count as 0 and as 1, in place of the part's
    own scale."""

    format: JudgeFormat | ScalarFormat | None
    view: View = "rating"
    weight: float = 1.0
    range: tuple[float, float] | None = None

    def value(self, judgement: Judgement | None) -> float | None:
        """What the part says, in its own unit; None where it abstains. A verdict that the policy
        planted in what the judge failed on earns the lowest rating."""
        if judgement is None:
            return None
        planted = not judgement.ok and PLANTED in judgement.flags
        if planted and isinstance(self.format, JudgeFormat):
            return float(self.format.scale.low)
        return judgement.view(self.view)

    def share(self, value: float) -> float:
        """What a value counts: 0..1, or beyond where it leaves the stated range."""
        if self.range:
            nothing, all_of_it = self.range
            return (value - nothing) / (all_of_it - nothing)
        return self.format.share(value) if self.format else value

    @property
    def middle(self) -> float:
        """What stands for a value where none is known, in the part's own unit."""
        if self.range:
            return sum(self.range) / 2
        return self.format.neutral if self.format else 0.5


class Parts:
    """The parts of a reward by name, the reward's own judge first.

    The judge alone rewards in its own unit. With others beside it, every part counts from 0 to 1,
    and the reward is their mean by weight, or the least of them. A part that abstains is left out,
    and the others' weights make up for it.
    """

    def __init__(self, config: RewardConfig) -> None:
        self._least = config.reduce == "min"
        own = {JUDGE: Part(format_of(config.judge))}
        self.by_name = own | {name: _part(part) for name, part in config.parts.items()}
        self.alone = len(self.by_name) == 1

    def use_views(self, views: Mapping[str, View]) -> None:
        """Let these numbers count, by the name of the part; a function has one number alone."""
        self.by_name |= {n: replace(self.by_name[n], view=view) for n, view in views.items()}

    def values(self, answers: Mapping[str, Judgement | None]) -> dict[str, float | None]:
        """What each part says of one response, in its own unit."""
        return {name: part.value(answers[name]) for name, part in self.by_name.items()}

    def reward(self, values: Mapping[str, float | None]) -> float | None:
        """The one number, before shaping; None if every part abstains."""
        if self.alone:
            return values[JUDGE]
        counted = [
            (part.weight, part.share(value))
            for name, part in self.by_name.items()
            if (value := values[name]) is not None
        ]
        if not counted:
            return None
        if self._least:
            return min(share for _, share in counted)
        return sum(w * share for w, share in counted) / sum(w for w, _ in counted)

    @property
    def middle(self) -> float:
        """What stands for a reward where none is known, before shaping."""
        return self.by_name[JUDGE].middle if self.alone else 0.5

    def share(self, reward: float) -> float:
        """Where a reward lies before shaping, 0..1."""
        return self.by_name[JUDGE].share(reward) if self.alone else min(1.0, max(0.0, reward))


def _part(config: PartConfig) -> Part:
    fmt = None if config.function else format_of(config.judge)
    return Part(fmt, weight=config.weight, range=config.range)
