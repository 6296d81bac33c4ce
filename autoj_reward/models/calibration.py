"""Calibration of a judge: a monotone map from one of its views to the scale of labels, and a limit
on the judge's doubt."""

from __future__ import annotations

import json
from bisect import bisect_right
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from autoj_reward.config import Block, View, Vote
from autoj_reward.config.load import check
from autoj_reward.errors import ConfigError
from autoj_reward.types import Judgement, Outcome


class AbstainRule(Block):
    """Limit on the judge's doubt, beyond which it abstains."""

    max_spread: float
    """Largest standard deviation of the judge's distribution, in its rating points, of a number
    that counts."""
    abstains: float
    """Share of the labelled responses beyond the limit, 0 to 1."""


class JudgeCalibration(Block):
    """Map of a judge's number to the scale of labels, and the judgements that it is for."""

    judge: str
    """Fingerprint of the judge."""
    view: View
    """The number that is mapped."""
    critiques: int
    """Critiques of a response."""
    vote: Vote
    """How the critiques' numbers make one."""
    scale: tuple[float, float]
    """Lowest and highest label."""
    knots: tuple[tuple[float, float], ...] = Field(min_length=2)
    """Points (judge's number, label), rising in both. The map is linear between two of them, and
    constant before the first and after the last."""
    abstain: AbstainRule | None = None
    """When the judge abstains. null: every number counts."""

    @model_validator(mode="after")
    def _require_rising(self) -> Self:
        for (x, y), (next_x, next_y) in pairwise(self.knots):
            if next_x <= x or next_y <= y:
                raise ValueError(f"knots {[x, y]} and {[next_x, next_y]} do not rise")
        if not self.scale[0] < self.scale[1]:
            raise ValueError(f"scale {list(self.scale)} is not a rising pair")
        return self

    def label(self, number: float) -> float:
        """Return the label that the judge's number means."""
        after = bisect_right(self.knots, number, key=lambda knot: knot[0])
        if after in (0, len(self.knots)):
            return self.knots[min(after, len(self.knots) - 1)][1]
        (x, y), (next_x, next_y) = self.knots[after - 1 : after + 1]
        return y + (number - x) / (next_x - x) * (next_y - y)

    def settle(self, judgement: Judgement) -> Judgement:
        """Return the judgement, with outcome UNSURE if it is OK and beyond the limit of doubt.

        One without a distribution is beyond it too.
        """
        if self.abstain is None or not judgement.ok:
            return judgement
        spread, limit = judgement.spread(self.view), self.abstain.max_spread
        if spread is not None and spread <= limit:
            return judgement
        why = f"the judge's distribution is no narrower than its calibration asks for ({limit:g})"
        return replace(judgement, outcome=Outcome.UNSURE, reason=why, readings=())

    def share(self, label: float) -> float:
        """Return where a label lies between the lowest (0) and the highest (1) of its scale."""
        low, high = self.scale
        return (label - low) / (high - low)

    def require(self, key: str, judge: str, view: View, critiques: int, vote: Vote) -> None:
        """Raise ConfigError naming `key` if the calibration is of other judgements than these.

        judge: fingerprint of the judge that is asked. vote: it counts with several critiques only.
        """
        expected = {"judge": judge, "view": view, "critiques": critiques, "vote": vote}
        for name, value in expected.items():
            recorded_value = getattr(self, name)
            if recorded_value != value and not (name == "vote" and critiques == 1):
                raise ConfigError(
                    f"{key} is of {name} {recorded_value}, and here it is {value}: run "
                    "`autoj calibrate` with this config, or leave the calibration out"
                )


def load_calibration(path: Path) -> JudgeCalibration:
    """Read a file of `autoj calibrate`. Raises ConfigError for any other file."""
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"calibration {path}: cannot be read: {error}") from error
    if not isinstance(content, dict) or content.get("task") != "calibrate":
        raise ConfigError(f"calibration {path}: no file of `autoj calibrate`: make one with it")
    fields = {name: content[name] for name in JudgeCalibration.model_fields if name in content}
    if isinstance(rule := fields.get("abstain"), dict):
        fields["abstain"] = {name: rule[name] for name in AbstainRule.model_fields if name in rule}
    return check(JudgeCalibration, fields, f"calibration {path}")
