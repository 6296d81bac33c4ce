"""Marks around the turns of a conversation in a prompt. No turn's text can forge them."""

from __future__ import annotations

import re
from functools import cached_property

from pydantic import Field, model_validator

from autoj_reward.config import Block
from autoj_reward.conversation import NAME
from autoj_reward.errors import InputRejected

TEXT = "{text}"
"""Placeholder of a turn's text."""
LINE = r"\n\r\v\f\x1c-\x1e\x85\u2028\u2029"
"""Characters that end a line."""


class Turns(Block):
    """Text around each turn, by role, and between two turns.

    Each turn begins on a new line. A text with a line that begins like a turn is thus found, and
    its mark broken up.
    """

    user: str
    """Text of a user's turn with `{text}` once, after a mark."""
    assistant: str
    """The same for the assistant."""
    system: str | None = Field(None, exclude_if=lambda text: text is None)
    """The same for the system. null if the format shows no such turns."""
    tool: str | None = Field(None, exclude_if=lambda text: text is None)
    """The same for a tool. null if the format shows no such turns."""
    between: str = "\n\n"
    """Text between two turns."""

    @model_validator(mode="after")
    def _check_marks(self) -> Turns:
        for role, template in self.shown.items():
            head, *rest = template.split(TEXT)
            if len(rest) != 1 or not head.strip():
                raise ValueError(
                    f"{role} must have {TEXT} once, and a mark before it: {template!r}"
                )
            if "\n" not in self.between and not head.startswith("\n"):
                raise ValueError(f"between has no line break, so {role} must begin with one")
        return self

    @property
    def shown(self) -> dict[str, str]:
        """Return the text of a turn for each role that the format knows."""
        templates = {role: getattr(self, role) for role in ("user", "assistant", "system", "tool")}
        return {role: template for role, template in templates.items() if template is not None}

    def around(self, role: str) -> tuple[str, str]:
        """Return the texts before and after a turn's own text.

        Raises InputRejected for an unknown role.
        """
        templates = self.shown
        if role not in templates:
            raise InputRejected(
                f"the format shows no turn of the role {role!r}: it shows {sorted(templates)}"
            )
        head, tail = templates[role].split(TEXT)
        return head, tail

    @cached_property
    def _forged(self) -> re.Pattern[str]:
        heads = {
            template.split(TEXT)[0].strip().splitlines()[0] for template in self.shown.values()
        }
        spelled = "|".join(re.escape(head) for head in sorted(heads, key=len, reverse=True))
        return re.compile(rf"((?:^|[{LINE}])[^\S{LINE}]*+)({spelled})", re.IGNORECASE)

    def forged(self, text: str) -> bool:
        """Return whether a line of the text begins like a turn."""
        return self._forged.search(text) is not None

    def inert(self, text: str) -> str:
        """Return the text with a zero-width space in each mark that begins a line like a turn."""
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
"""Turns for formats that define none: written as by `conversation.to_plain_text`, with forged marks
broken up.

A custom role that is a single word is shown by its name.
"""
