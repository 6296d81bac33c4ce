"""Places of a slot that no regular expression alone finds: fields of a JSON object, and numbers in
a row."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from autoj_reward.formats.json_text import JsonObject, Member, read_objects

TWICE = "the field stands twice in the JSON object"
"""Failure reason for two fields of one name, of which neither counts."""


@dataclass(frozen=True, slots=True)
class Opening:
    """Opened slot in a judge's text."""

    start: int
    """Offset of the slot."""
    end: int
    """Offset at which the label begins."""
    text: str
    """Text between the two."""
    value_end: int | None = None
    """Offset at which the value ends that the label has to fill. None if the slot's own closing
    text closes it."""
    slot_end: int = 0
    """Offset after all that belongs to the slot, where `value_end` is known."""
    problem: str = ""
    """Reason why the slot cannot be read; empty if it can."""
    keep: int | None = None
    """Number of characters to keep when the slot is forced. None stands for `start`."""
    force: str | None = None
    """Text that leads from there to the label. None stands for the slot's own."""


@dataclass(frozen=True)
class JsonField:
    """Field of a JSON object that the judge writes, with the label as its value."""

    name: str
    """Key of the field. Keys of the objects around it stand before it, joined by dots."""
    quoted: bool
    """Whether the label is a string."""

    comes_first: ClassVar[bool] = False

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """Keys from the outermost object to the field."""
        return tuple(self.name.split("."))

    @cached_property
    def _wanted(self) -> tuple[str, ...]:
        return tuple(key.casefold() for key in self.keys)

    @property
    def _quote(self) -> str:
        return '"' if self.quoted else ""

    @property
    def open(self) -> str:
        """Regular expression of the key and what stands before the label."""
        return rf'"{re.escape(self.keys[-1])}"\s{{0,9}}:\s{{0,9}}"?'

    @property
    def key_text(self) -> str:
        """Key and what stands before the label, as the format writes them."""
        return f'"{self.keys[-1]}": {self._quote}'

    @property
    def path_text(self) -> str:
        """The same after the keys of the objects around the field."""
        heads = "".join(f'"{key}": {{' for key in self.keys[:-1])
        return heads + self.key_text

    @property
    def force(self) -> str:
        """Text that begins an object and leads to the label."""
        return "\n\n{" + self.path_text

    @property
    def force_next(self) -> str:
        """Text that leads to the label from the label of the field before it."""
        return f"{self._quote}, {self.key_text}"

    def find(self, text: str) -> list[Opening]:
        """Return the field in every object of a text that has it or is broken."""
        openings = []
        for found in read_objects(text):
            members = self._find_members(found)
            if members or found.problem:
                openings.append(self._open(text, found, members))
        return openings

    def _find_members(self, found: JsonObject) -> list[Member]:
        """Return the members of an object that are the field: those with the fewest brackets
        around them."""
        members = [m for m in found.members if m.path[-len(self._wanted) :] == self._wanted]
        least_depth = min((member.depth for member in members), default=0)
        return [member for member in members if member.depth == least_depth]

    def _open(self, text: str, found: JsonObject, members: list[Member]) -> Opening:
        if not members:
            # The judge is led on to the field from where its object breaks off.
            goes_on = found.keep < len(text) or found.lead
            force = found.lead + self.path_text if goes_on else self.force
            start = found.start
            return Opening(start, start, "", None, 0, found.problem, found.keep, force)
        first = members[0]
        problem = found.problem or (TWICE if len(members) > 1 else "")
        return Opening(
            first.start,
            first.value,
            text[first.start : first.value],
            first.end,
            found.end,
            problem,
            first.start,
            self.key_text,
        )


@dataclass(frozen=True)
class Row:
    """Place of a number in a row of several, such as `\\boxed{7, 4}`."""

    pattern: str
    """Regular expression of a whole row, with groups `number_1`, `number_2` and so on."""
    number: int
    """Which of them it is, from 1."""
    force_next: str
    """Text that leads to the number from the one before it."""
    comes_first: bool
    """Whether the row begins the judge's output."""

    @cached_property
    def _row(self) -> re.Pattern[str]:
        return re.compile(self.pattern)

    def find(self, text: str) -> list[Opening]:
        """Return the number in every row of a text. One row may begin inside another."""
        openings = []
        row = self._row.search(text)
        while row:
            start = row.end(f"number_{self.number - 1}") if self.number > 1 else row.start()
            end, value_end = row.span(f"number_{self.number}")
            openings.append(Opening(start, end, text[start:end], value_end, row.end()))
            row = self._row.search(text, row.start() + 1)
        return openings
