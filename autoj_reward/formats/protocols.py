"""The protocols of a judge format: how one judge call is laid out, and how its answer is read.

A format says by name how it does each (`single`, `pairwise`). A protocol is one class here: the
responses that it shows, their names in templates, and the slots of its verdict. Judge, journal,
service and pages know no protocol by name; another one joins by `PROTOCOLS`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from autoj_reward.config import Block
from autoj_reward.errors import InputRejected
from autoj_reward.formats.read import ParseFailure, Written, read_slot
from autoj_reward.formats.scale import Scale, require_few
from autoj_reward.formats.slots import ChoiceSlot, RatingSlot, ScoresSlot, Slot
from autoj_reward.types import PAIRWISE, RATING, SINGLE, VERDICT, JudgeInput, Verdict


class JudgeProtocol(Block):
    """Lays out the judge calls of one protocol, and names the slots of their verdict.

    Its fields are those of the protocol's block in format.yaml.

    template, system: file names beside format.yaml. fields: placeholder of either to `query`, the
    name of a response (`response` where there is one, else `response_1`, `response_2`, …), the name
    of a constant, or that of a context field (`reference`, `rubric`, any name). optional:
    placeholder to the text that stands in its place where its field is there, the value at the same
    placeholder in it; without the field nothing does. A field that is not optional must be there.
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

    responses: ClassVar[int] = 1
    """Responses that one input has."""
    direct: ClassVar[bool] = False
    """Whether an input may ask for the slot right after the prompt alone."""

    @property
    def comes_first(self) -> bool:
        """Whether the verdict opens the judge's text, so that its reason follows."""
        return self.open.startswith(r"\A")

    @classmethod
    def response_names(cls) -> tuple[str, ...]:
        """Return the names of the responses in a template, in order."""
        numbers = range(1, cls.responses + 1)
        return tuple(f"response_{n}" for n in numbers) if cls.responses > 1 else ("response",)

    @classmethod
    def require(cls, item: JudgeInput) -> None:
        """Raise InputRejected for responses that this protocol does not lay out."""
        if len(item.responses) != cls.responses:
            raise InputRejected(
                f"{len(item.responses)} responses, and the protocol {item.protocol} shows "
                f"{cls.responses}"
            )
        if item.direct and not cls.direct:
            raise InputRejected(f"direct reads a rating, and the protocol {item.protocol} has none")

    @abstractmethod
    def slots(self, scale: Scale) -> tuple[Slot, ...]:
        """Return the slots of a verdict, in the order in which they are read."""


class Single(JudgeProtocol):
    """Rates one response."""

    direct: ClassVar[bool] = True

    def slots(self, scale: Scale) -> tuple[Slot, ...]:
        return (RatingSlot(RATING, self.open, self.close, self.force, scale),)


class Pairwise(JudgeProtocol):
    """Compares two responses.

    labels: the spellings of each verdict, the canonical one first. scores: in place of labels, for
    a judge that opens its text with a number for each response, the regular expression between the
    two; the higher number wins.
    """

    labels: dict[Literal["first", "second", "tie"], tuple[str, ...]] = Field(default_factory=dict)
    scores: str = Field("", exclude_if=lambda between: not between)

    responses: ClassVar[int] = 2

    @model_validator(mode="after")
    def _sides(self) -> Pairwise:
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

    def slots(self, scale: Scale) -> tuple[Slot, ...]:
        own = VERDICT, self.open, self.close, self.force
        if self.scores:
            return (ScoresSlot(*own, scale, self.scores),)
        return (ChoiceSlot(*own, tuple((str(n), each) for n, each in self.labels.items())),)


PROTOCOLS: dict[str, type[JudgeProtocol]] = {SINGLE: Single, PAIRWISE: Pairwise}
"""Every protocol by the name that formats and judge inputs give it."""


def read_slots(
    slots: Sequence[Slot],
    text: str,
    policy_texts: Sequence[str] = (),
    given_texts: Sequence[str] = (),
) -> Mapping[str, Written | ParseFailure]:
    """Read the verdict in every slot of a judge's text; see `read_slot`."""
    return {slot.name: read_slot(text, slot, policy_texts, given_texts) for slot in slots}
