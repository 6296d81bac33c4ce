"""The protocols of a judge format: how one judge call is laid out, and how its answer is read.

A format says by name how it does each (`single`, `pairwise`, `group`). A protocol is one class
here: the responses that it shows, their names in templates, and the slots of its verdict. Judge,
journal, service and pages know no protocol by name; another one joins by `PROTOCOLS`.
"""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from autoj_reward.config import Block
from autoj_reward.errors import InputRejected
from autoj_reward.formats.read import ParseFailure, Written, read_slot
from autoj_reward.formats.scale import Scale, require_few
from autoj_reward.formats.slots import ChoiceSlot, RatingSlot, ScoresSlot, Slot
from autoj_reward.types import GROUP, PAIRWISE, RATING, SINGLE, VERDICT, JudgeInput, Verdict

LABEL, RESPONSE = "{label}", "{response}"
"""Places in the texts of a group protocol."""


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
    """Responses that one input has, or has at least."""
    direct: ClassVar[bool] = False
    """Whether an input may ask for the slot right after the prompt alone."""

    @property
    def comes_first(self) -> bool:
        """Whether the verdict opens the judge's text, so that its reason follows."""
        return self.open.startswith(r"\A")

    def response_names(self, count: int) -> tuple[str, ...]:
        """Return the names in a template of so many responses, in order. Responses of one name
        stand there one after the other."""
        numbers = range(1, count + 1)
        return tuple(f"response_{n}" for n in numbers) if count > 1 else ("response",)

    def around(self, place: int) -> tuple[str, str]:
        """Return the text before and after the response at a place, from 1."""
        return "", ""

    def inert(self, text: str) -> str:
        """Return an untrusted text in which nothing reads as the text around a response."""
        return text

    def require(self, item: JudgeInput) -> None:
        """Raise InputRejected for responses that this protocol does not lay out."""
        require_responses(item, type(self))

    @abstractmethod
    def slots(self, scale: Scale, count: int) -> tuple[Slot, ...]:
        """Return the slots of a verdict on so many responses, in the order in which they are
        read."""

    def least_readings(self, slots: int) -> int:
        """Return how many of so many slots must be read; with fewer the judgement abstains."""
        return slots


def require_responses(item: JudgeInput, protocol: type[JudgeProtocol], most: int = 0) -> None:
    """Raise InputRejected for another number of responses than the protocol's own, or one between
    it and `most`; and for a direct reading where there is none."""
    count, least = len(item.responses), protocol.responses
    if not least <= count <= max(least, most):
        shown = f"{least} to {most}" if most else str(least)
        raise InputRejected(f"{count} responses, and the protocol {item.protocol} shows {shown}")
    if item.direct and not protocol.direct:
        raise InputRejected(f"direct reads a rating, and the protocol {item.protocol} has none")


class Single(JudgeProtocol):
    """Rates one response."""

    direct: ClassVar[bool] = True

    def slots(self, scale: Scale, count: int) -> tuple[Slot, ...]:
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

    def slots(self, scale: Scale, count: int) -> tuple[Slot, ...]:
        own = VERDICT, self.open, self.close, self.force
        if self.scores:
            return (ScoresSlot(*own, scale, self.scores),)
        return (ChoiceSlot(*own, tuple((str(n), each) for n, each in self.labels.items())),)


class Group(JudgeProtocol):
    """Scores every response of a group.

    The field named `responses` is where the responses stand, one after the other. `open` and
    `force` hold {label}, so that a score is read by the label of its response and never by its
    place in the judge's text. The scores stand at the end of the text, in any order.
    """

    each: str
    """How one response stands in the template, with {label} and then {response}. Its marks are
    broken up in untrusted text, so that no response can close its own block or open another's."""
    labels: tuple[str, ...] = tuple("ABCDEFGHIJKLMNOP")
    """The labels of the responses, in order: letters and digits."""
    max_responses: int = Field(16, ge=2)
    """Responses of one judge call at most. A larger group is judged in several calls."""

    responses: ClassVar[int] = 2

    @model_validator(mode="after")
    def _labelled(self) -> Group:
        head, *tail = self.each.split(RESPONSE)
        if len(tail) != 1 or LABEL not in head or not head.replace(LABEL, "").strip():
            raise ValueError(f"each must have words with {LABEL} and, after them, {RESPONSE} once")
        for name in ("open", "force"):
            if LABEL not in getattr(self, name):
                raise ValueError(f"{name} must have {LABEL}, so that each score has its own words")
        if self.comes_first:
            raise ValueError("the scores of a group stand at the end: open cannot begin with \\A")
        if self.max_responses > len(self.labels):
            raise ValueError(f"max_responses is {self.max_responses}: write as many labels")
        folded = {label.casefold() for label in self.labels}
        if len(folded) < len(self.labels) or not all(label.isalnum() for label in self.labels):
            raise ValueError("labels are letters and digits, and differ by more than their case")
        return self

    @cached_property
    def _marks(self) -> re.Pattern[str]:
        sides = (side.strip() for side in self.each.split(RESPONSE))
        return re.compile("|".join(_spelled(side) for side in sides if side), re.IGNORECASE)

    def response_names(self, count: int) -> tuple[str, ...]:
        return ("responses",) * count

    def around(self, place: int) -> tuple[str, str]:
        head, tail = self.each.replace(LABEL, self.labels[place - 1]).split(RESPONSE)
        return head, tail

    def inert(self, text: str) -> str:
        return self._marks.sub(lambda found: f"{found[0][0]}\u200b{found[0][1:]}", text)

    def require(self, item: JudgeInput) -> None:
        require_responses(item, type(self), self.max_responses)

    def slots(self, scale: Scale, count: int) -> tuple[Slot, ...]:
        return tuple(
            RatingSlot(
                f"response_{n}",
                self.open.replace(LABEL, re.escape(label)),
                self.close,
                self.force.replace(LABEL, label),
                scale,
            )
            for n, label in enumerate(self.labels[:count], 1)
        )

    def least_readings(self, slots: int) -> int:
        return math.ceil(slots / 2)


def _spelled(mark: str) -> str:
    """Return the pattern of a mark around a response, with any label and any space."""
    pieces = re.findall(r"\{label\}|\w+|[^\w\s]", mark)
    found, before = "", ""
    for piece in pieces:
        is_word = piece == LABEL or piece[0].isalnum()
        found += (r"\s{1,8}" if is_word and before else r"\s{0,8}") if found else ""
        found += r"\w{1,8}" if piece == LABEL else re.escape(piece)
        before = piece if is_word else ""
    return found


PROTOCOLS: dict[str, type[JudgeProtocol]] = {SINGLE: Single, PAIRWISE: Pairwise, GROUP: Group}
"""Every protocol by the name that formats and judge inputs give it."""


def read_slots(
    slots: Sequence[Slot],
    text: str,
    policy_texts: Sequence[str] = (),
    given_texts: Sequence[str] = (),
) -> Mapping[str, Written | ParseFailure]:
    """Read the verdict in every slot of a judge's text; see `read_slot`. The verdicts of the slots
    may stand in any order."""
    return {
        slot.name: read_slot(
            text, slot, policy_texts, given_texts, [other for other in slots if other is not slot]
        )
        for slot in slots
    }
