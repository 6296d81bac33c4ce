"""Calibration of a judge: a monotone map from one of its views to the scale of labels."""

from __future__ import annotations

import json
from bisect import bisect_right
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from autoj_reward.config import Block, View, Vote
from autoj_reward.config.load import check
from autoj_reward.errors import ConfigError


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

    @model_validator(mode="after")
    def _rising(self) -> Self:
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

    def share(self, label: float) -> float:
        """Map a label to 0..1 by the scale of labels."""
        low, high = self.scale
        return (label - low) / (high - low)

    def require(self, key: str, judge: str, view: View, critiques: int, vote: Vote) -> None:
        """Raise ConfigError naming `key` if the calibration is of other judgements than these.

        judge: fingerprint of the judge that is asked. vote: it counts with several critiques only.
        """
        asked = {"judge": judge, "view": view, "critiques": critiques, "vote": vote}
        for name, value in asked.items():
            own = getattr(self, name)
            if own != value and not (name == "vote" and critiques == 1):
                raise ConfigError(
                    f"{key} is of {name} {own}, and here it is {value}: run `autoj calibrate` with "
                    "this config, or leave the calibration out"
                )


def load_calibration(path: Path) -> JudgeCalibration:
    """Read a file of `autoj calibrate`. Raises ConfigError for any other file."""
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"calibration {path}: cannot be read: {error}") from error
    if not isinstance(found, dict) or found.get("task") != "calibrate":
        raise ConfigError(f"calibration {path}: no file of `autoj calibrate`: make one with it")
    known = {name: found[name] for name in JudgeCalibration.model_fields if name in found}
    return check(JudgeCalibration, known, f"calibration {path}")
