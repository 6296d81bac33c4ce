"""Protocols of judge formats: how a judge call is laid out, and which slots its output has.

A protocol is a class with the responses that it shows, their names in templates, and its slots. A
format defines each protocol by name (`single`, `pairwise`). Judge, journal, service and pages treat
all protocols alike. To add one, add it to `PROTOCOLS`.
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
    """Base class of protocols. Its fields are the keys of the protocol's block in format.yaml."""

    template: str
    """File name of the user message's template, in the format's folder."""
    system: str | None = None
    """File name of the system message's template, in the same folder. null for no system
    message."""
    fields: dict[str, str]
    """Placeholders of the two templates, each with the text that it shows.

    - `query`: the query.
    - `response`, or `response_1`, `response_2`, … if there are several: a response.
    - The name of a constant, or of a context field (`reference`, `rubric`, any name).
    """
    optional: dict[str, str] = Field(default_factory=dict, exclude_if=lambda found: not found)
    """Placeholders of optional fields, each with the text that replaces the placeholder.

    The text contains the placeholder again, for the field's value. If an input lacks the field,
    nothing is shown. All other fields are required.
    """
    open: str
    """Regular expression of the text before the verdict in the judge's output.

    The last match counts. The expression begins with `\\A` if the verdict comes first and its
    reason follows. Otherwise nothing may follow the verdict.
    """
    close: str = ""
    """Regular expression of the text after the verdict.

    If it is empty and the verdict comes first, the verdict must end its line.
    """
    force: str
    """Text appended to an unfinished judgement so that the verdict comes next."""

    responses: ClassVar[int] = 1
    """Number of responses in one input."""
    direct: ClassVar[bool] = False
    """Whether an input may ask only for the slot right after the prompt."""

    @property
    def comes_first(self) -> bool:
        """Whether the verdict begins the judge's output, so that its reason follows."""
        return self.open.startswith(r"\A")

    @classmethod
    def response_names(cls) -> tuple[str, ...]:
        """Return the names of the responses in a template, in order."""
        numbers = range(1, cls.responses + 1)
        return tuple(f"response_{n}" for n in numbers) if cls.responses > 1 else ("response",)

    @classmethod
    def require(cls, item: JudgeInput) -> None:
        """Raise InputRejected for a wrong number of responses.

        Also raise it for a `direct` input of a protocol that has no rating.
        """
        if len(item.responses) != cls.responses:
            raise InputRejected(
                f"{len(item.responses)} responses, and the protocol {item.protocol} shows "
                f"{cls.responses}"
            )
        if item.direct and not cls.direct:
            raise InputRejected(f"direct reads a rating, and the protocol {item.protocol} has none")

    @abstractmethod
    def slots(self, scale: Scale) -> tuple[Slot, ...]:
        """Return the protocol's slots, in the order in which they are read."""


class Single(JudgeProtocol):
    """Protocol that rates one response."""

    direct: ClassVar[bool] = True

    def slots(self, scale: Scale) -> tuple[Slot, ...]:
        """Return the slot of the rating."""
        return (RatingSlot(RATING, self.open, self.close, self.force, scale),)


class Pairwise(JudgeProtocol):
    """Protocol that compares two responses."""

    labels: dict[Literal["first", "second", "tie"], tuple[str, ...]] = Field(default_factory=dict)
    """Spellings of each verdict, the canonical one first."""
    scores: str = Field("", exclude_if=lambda between: not between)
    """Regular expression between two numbers, for a judge that begins with two scores.

    It replaces `labels`. The response with the higher number wins.
    """

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
        """Verdicts by their canonical spelling."""
        return {spellings[0]: Verdict(name) for name, spellings in self.labels.items()}

    def slots(self, scale: Scale) -> tuple[Slot, ...]:
        """Return the slot of the verdict."""
        own = VERDICT, self.open, self.close, self.force
        if self.scores:
            return (ScoresSlot(*own, scale, self.scores),)
        return (ChoiceSlot(*own, tuple((str(n), each) for n, each in self.labels.items())),)


PROTOCOLS: dict[str, type[JudgeProtocol]] = {SINGLE: Single, PAIRWISE: Pairwise}
"""Protocols by the name that formats and judge inputs use."""


def read_slots(
    slots: Sequence[Slot],
    text: str,
    policy_texts: Sequence[str] = (),
    given_texts: Sequence[str] = (),
) -> Mapping[str, Written | ParseFailure]:
    """Parse the verdict in every slot of a judge's text; see `read_slot`."""
    return {slot.name: read_slot(text, slot, policy_texts, given_texts) for slot in slots}
