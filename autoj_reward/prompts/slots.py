"""The pieces of a judge format: its scale, and where a verdict stands in each of its protocols."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Literal

from pydantic import Field, model_validator

from autoj_reward.config import Block
from autoj_reward.types import Verdict


class Scale(Block):
    """Whole ratings from low to high; half_points also allows 5.5 and the like."""

    low: int = 1
    high: int = 10
    half_points: bool = False

    @model_validator(mode="after")
    def _order(self) -> Scale:
        if not 0 <= self.low < self.high:
            raise ValueError(f"scale {self.low}..{self.high} is not a rising range from 0 up")
        return self

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(str(n) for n in range(self.low, self.high + 1))

    @property
    def steps(self) -> tuple[str, ...]:
        """The labels and, where they are legal, the half points between them."""
        halves = tuple(f"{n}.5" for n in range(self.low, self.high)) if self.half_points else ()
        return (*self.labels, *halves)

    def with_half(self, value: float) -> tuple[str, ...]:
        """The labels, and the value if it is a half point that is legal."""
        half = self.admits(value) and not value.is_integer()
        return (*self.labels, f"{value:g}") if half else self.labels

    def admits(self, value: float) -> bool:
        on_step = (value * (2 if self.half_points else 1)).is_integer()
        return self.low <= value <= self.high and on_step


class Slot(Block):
    """One protocol of a format.

    template, system: file names beside format.yaml. fields: placeholder of either to `query`,
    `response`, `response_1`, `response_2`, the name of a constant, or that of a context field
    (`reference`, `rubric`, any name). optional: placeholder to the text that stands in its place
    where its field is there, the value at the same placeholder in it; without the field nothing
    does. A field that is not optional must be there.
    open, close: regular expressions around the verdict in the judge's own output; the last match
    of open counts, and nothing may follow the verdict. Where the verdict comes first and the reason
    after it, open begins with `\\A`. force: text that brings an unfinished judgement to its
    verdict.
    """

    template: str
    system: str | None = None
    fields: dict[str, str]
    optional: dict[str, str] = Field(default_factory=dict, exclude_if=lambda found: not found)
    open: str
    close: str = ""
    force: str

    @cached_property
    def open_re(self) -> re.Pattern[str]:
        return re.compile(self.open)

    @property
    def comes_first(self) -> bool:
        """Whether the verdict opens the judge's text, so that its reason follows."""
        return self.open.startswith(r"\A")


class PairwiseSlot(Slot):
    """Comparison: labels gives the spellings of each verdict, the canonical one first."""

    labels: dict[Literal["first", "second", "tie"], tuple[str, ...]]

    @model_validator(mode="after")
    def _sides(self) -> PairwiseSlot:
        if not {"first", "second"} <= set(self.labels) or not all(self.labels.values()):
            raise ValueError("labels must spell out at least first and second")
        return self

    @property
    def canonical(self) -> dict[str, Verdict]:
        return {spellings[0]: Verdict(name) for name, spellings in self.labels.items()}
