"""How a format shows a conversation: marks around each turn, which no text of a turn can forge."""

from __future__ import annotations

import re
from functools import cached_property

from pydantic import Field, model_validator

from autoj_reward.config import Block
from autoj_reward.conversation import NAME
from autoj_reward.errors import InputRejected

TEXT = "{text}"
LINE = r"\n\r\v\f\x1c-\x1e\x85\u2028\u2029"
"""What ends a line."""


class Turns(Block):
    """What stands around the text of a turn, by the role that speaks, and between two turns.

    Each begins on a line of its own, so that a text which begins a line as a turn begins can be
    told and broken up. system, tool: null where a format knows no such turns.
    """

    user: str
    assistant: str
    system: str | None = Field(None, exclude_if=lambda shown: shown is None)
    tool: str | None = Field(None, exclude_if=lambda shown: shown is None)
    between: str = "\n\n"

    @model_validator(mode="after")
    def _told_apart(self) -> Turns:
        for role, shown in self.shown.items():
            head, *rest = shown.split(TEXT)
            if len(rest) != 1 or not head.strip():
                raise ValueError(f"{role} must have {TEXT} once, and a mark before it: {shown!r}")
            if "\n" not in self.between and not head.startswith("\n"):
                raise ValueError(f"between has no line break, so {role} must begin with one")
        return self

    @property
    def shown(self) -> dict[str, str]:
        """What is shown for each role that the format knows."""
        found = {role: getattr(self, role) for role in ("user", "assistant", "system", "tool")}
        return {role: shown for role, shown in found.items() if shown is not None}

    def around(self, role: str) -> tuple[str, str]:
        """What stands before and after the text of a turn. InputRejected for an unknown role."""
        shown = self.shown
        if role not in shown:
            raise InputRejected(
                f"the format shows no turn of the role {role!r}: it shows {sorted(shown)}"
            )
        head, tail = shown[role].split(TEXT)
        return head, tail

    @cached_property
    def _forged(self) -> re.Pattern[str]:
        heads = {shown.split(TEXT)[0].strip().splitlines()[0] for shown in self.shown.values()}
        spelled = "|".join(re.escape(head) for head in sorted(heads, key=len, reverse=True))
        return re.compile(rf"((?:^|[{LINE}])[ \t]{{0,40}})({spelled})", re.IGNORECASE)

    def forged(self, text: str) -> bool:
        """Whether a line of a text begins as a turn does."""
        return self._forged.search(text) is not None

    def inert(self, text: str) -> str:
        """The text, with a zero-width space in each mark of a turn that begins a line of it."""
        return self._forged.sub(lambda m: f"{m[1]}{m[2][0]}\u200b{m[2][1:]}", text)


class _AnyRole(Turns):
    def around(self, role: str) -> tuple[str, str]:
        if role in self.shown or not NAME.fullmatch(role):
            return super().around(role)
        return f"{role.capitalize()}: ", ""


PLAIN = _AnyRole(
    user=f"User: {TEXT}", assistant=f"Assistant: {TEXT}", system=f"System: {TEXT}",
    tool=f"Tool: {TEXT}",
)  # fmt: skip
"""Of formats that have no turns of their own: `conversation.plain`, with what is forged broken up.
A role that trainers made up goes by its name, which is a word."""
