"""The protocols of a judge format: what is shown where, and where a verdict stands."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Literal

from pydantic import Field, model_validator

from autoj_reward.config import Block
from autoj_reward.formats.scale import require_few
from autoj_reward.types import Verdict


class Slot(Block):
    """One protocol of a format.

    template, system: file names beside format.yaml. fields: placeholder of either to `query`,
    `response`, `response_1`, `response_2`, the name of a constant, or that of a context field
    (`reference`, `rubric`, any name). optional: placeholder to the text that stands in its place
    where its field is there, the value at the same placeholder in it; without the field nothing
    does. A field that is not optional must be there.
    open, close: regular expressions around the verdict in the judge's own output; the last match
    of open counts, and nothing may follow the verdict. Where the verdict comes first and the reason
    after it, open begins with `\\A`, and without a close the verdict ends its line. force: text
    that brings an unfinished judgement to its verdict.
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
    """Comparison: labels gives the spellings of each verdict, the canonical one first.

    scores: in place of labels, for a judge that opens its text with a number for each response:
    the regular expression of what stands between the two. The higher number wins.
    """

    labels: dict[Literal["first", "second", "tie"], tuple[str, ...]] = Field(default_factory=dict)
    scores: str = Field("", exclude_if=lambda between: not between)

    @model_validator(mode="after")
    def _sides(self) -> PairwiseSlot:
        if self.scores:
            if self.labels or not self.comes_first:
                raise ValueError("scores stand in place of labels, where open begins with \\A")
            return self
        if not {"first", "second"} <= set(self.labels) or not all(self.labels.values()):
            raise ValueError("labels must spell out at least first and second")
        require_few([each for spelled in self.labels.values() for each in spelled], "labels")
        return self

    @property
    def canonical(self) -> dict[str, Verdict]:
        return {spellings[0]: Verdict(name) for name, spellings in self.labels.items()}
