"""What a judge reads beside a response: the conversation before it, read from messages as chat APIs
and datasets have them, and a context of named texts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autoj_reward.errors import InputError

TEXT_PARTS = ("text", "input_text", "output_text")
"""Types of a content's parts that are read: of chat completions and of the Responses API."""
MAX_TURNS = 1024
FOLLOWS = {
    "": ("system", "user"),
    "system": ("system", "user"),
    "user": ("assistant",),
    "assistant": ("user", "tool"),
    "tool": ("tool", "assistant", "user"),
}
"""The roles that may follow each role; "" is the start."""
NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")
OWN = re.compile("query|responses|response(_[0-9]+)?")
"""Names of a judge input's own texts, which no context field may have."""


def is_own(name: str) -> bool:
    """Whether a name is one of a judge input's own texts."""
    return OWN.fullmatch(name) is not None


class BadMessages(InputError):
    """Error for messages that are no conversation. where: the place in them, such as
    `[2].content`."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"messages{where}: {reason}" if where else reason)
        self.where, self.reason = where, reason


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a conversation. Tools that an assistant calls stand in its text."""

    role: str
    text: str


def plain(turns: Sequence[Turn]) -> str:
    """Write a conversation as one text: that of a lone user turn as it is; else paragraphs that
    open with their role ("User: ..."), in their order."""
    if [turn.role for turn in turns] == ["user"]:
        return turns[0].text
    return "\n\n".join(f"{turn.role.capitalize()}: {turn.text}" for turn in turns)


def question(query: str, turns: Sequence[Turn]) -> str:
    """Return what the user asks: of a conversation the user's last turn."""
    return next((turn.text for turn in reversed(turns) if turn.role == "user"), query)


def turns_of(messages: Any) -> tuple[Turn, ...]:
    """Read the turns of messages, whatever their order. BadMessages for what is no message."""
    if not isinstance(messages, Iterable):
        raise BadMessages("", f"a prompt or completion is text or messages, not {messages!r:.80}")
    found = tuple(_turn(message, f"[{n}]") for n, message in enumerate(messages))
    if len(found) > MAX_TURNS:
        raise BadMessages("", f"{len(found)} messages; a conversation has at most {MAX_TURNS}")
    return found


def before_response(messages: Any, answered: bool) -> tuple[tuple[Turn, ...], str | None]:
    """Return the turns that a response answers, and the assistant's last turn, which is rated.

    answered: responses come from elsewhere, so that messages may end with the user, and a last
    turn of the assistant's is left out. BadMessages for turns that are out of order, blank or of an
    unknown role, and for a conversation without an assistant's turn where none comes from
    elsewhere.
    """
    turns = turns_of(messages)
    _require_order(turns)
    said = [n for n, turn in enumerate(turns) if turn.role == "assistant"]
    if answered:
        said = [n for n in said if n == len(turns) - 1]
    elif not said:
        raise BadMessages("", "no turn of the assistant that could be rated")
    before = turns[: said[-1]] if said else turns
    _require_texts(before)
    if not any(turn.role == "user" for turn in before):
        raise BadMessages("", "no turn of the user before the response")
    return before, turns[said[-1]].text if said else None


def messages_of(turns: Sequence[Turn]) -> list[dict[str, str]]:
    """Return the turns as messages."""
    return [{"role": turn.role, "content": turn.text} for turn in turns]


def content_text(message: Mapping[str, Any], where: str = "") -> str:
    """Return the text of a message; of content in parts, the text parts. BadMessages for what is
    neither text nor parts."""
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        return "\n".join(_part(part, where) for part in content if not _other(part))
    raise BadMessages(
        f"{where}.content", f"a message's content is text or a list of parts, not {content!r:.80}"
    )


@dataclass(frozen=True, slots=True)
class Context(Mapping[str, str]):
    """Texts that a judge may know beside query and response, by name, such as a reference or a
    rubric.

    A frozen mapping, equal whatever the order in which the texts were given. They are data like the
    query: never control tokens, and a verdict in them is not the judge's.

    turns: the conversation that the response answers, where it is more than the user's one turn;
        the query is then its plain text.

    >>> Context({"reference": "42"})["reference"]
    '42'

    Raises ValueError for a name that no template could have or that a judge input has itself,
    TypeError for what is no text.
    """

    texts: tuple[tuple[str, str], ...] | Mapping[str, str] = ()
    turns: tuple[Turn, ...] = ()

    def __post_init__(self) -> None:
        given = dict(self.texts)
        for name, text in given.items():
            if not isinstance(name, str) or not NAME.fullmatch(name) or is_own(name):
                raise ValueError(f"{name!r} names no context field: write it like `reference`")
            if not isinstance(text, str):
                raise TypeError(f"context field {name!r} is no text: {text!r:.80}")
        object.__setattr__(self, "texts", tuple(sorted(given.items())))

    def __getitem__(self, name: str) -> str:
        return dict(self.texts)[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict(self.texts))

    def __len__(self) -> int:
        return len(self.texts)

    def after(self, turns: tuple[Turn, ...]) -> Context:
        """Return the same texts after these turns; a user's one turn is a query like any other."""
        return Context(self.texts, () if [t.role for t in turns] == ["user"] else turns)


NOTHING = Context()


def context_of(given: Mapping[str, str]) -> Context:
    """Return the frozen form of a mapping."""
    return given if isinstance(given, Context) else Context(given)


@dataclass(frozen=True, slots=True)
class ContextColumn:
    """A context field that rows are asked for, and the column that holds it."""

    field: str
    column: str
    required: bool = False
    """Whether a row without it cannot be judged."""


def _turn(message: Any, where: str) -> Turn:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise BadMessages(where, f"not a message with a role: {message!r:.80}")
    role = "system" if message["role"] == "developer" else message["role"]
    return Turn(role, message_text(message, where))


def message_text(message: Mapping[str, Any], where: str = "") -> str:
    """Return the text of a message, with a line for each tool that it calls. BadMessages for
    content or calls that are none."""
    said = content_text(message, where)
    calls = message.get("tool_calls") or ()
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        raise BadMessages(f"{where}.tool_calls", f"not a list of calls: {calls!r:.80}")
    called = [_call(call, f"{where}.tool_calls[{n}]") for n, call in enumerate(calls)]
    return "\n".join(filter(None, [said, *called]))


def _call(call: Any, where: str) -> str:
    """A tool that is called, as `[calls name {"argument": "value"}]`."""
    made = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(made, Mapping) or not isinstance(made.get("name"), str):
        raise BadMessages(where, f"not a call of a function with a name: {call!r:.80}")
    given = made.get("arguments")
    told = given if isinstance(given, str) else json.dumps(given or {}, ensure_ascii=False)
    return f"[calls {made['name']} {told}]"


def _require_order(turns: Sequence[Turn]) -> None:
    before = ""
    for n, turn in enumerate(turns):
        if turn.role not in FOLLOWS or not turn.role:
            known = ", ".join(filter(None, FOLLOWS))
            raise BadMessages(
                f"[{n}].role", f"unknown role {turn.role!r:.40}: write one of {known}"
            )
        if turn.role not in FOLLOWS[before]:
            after = f"after one of the {before}'s" if before else "at the start"
            wanted = " or ".join(FOLLOWS[before])
            raise BadMessages(
                f"[{n}].role", f"out of order: a turn of the {turn.role}'s {after}, not {wanted}"
            )
        before = turn.role


def _require_texts(turns: Sequence[Turn]) -> None:
    for n, turn in enumerate(turns):
        if not turn.text.strip():
            raise BadMessages(f"[{n}].content", f"blank: {turn.text!r:.40}")


def _other(part: Any) -> bool:
    """Is it a part of another type than text?"""
    kind = part.get("type") if isinstance(part, Mapping) else None
    return isinstance(kind, str) and kind not in TEXT_PARTS


def _part(part: Any, where: str) -> str:
    if not isinstance(part, Mapping) or "type" not in part or not isinstance(part.get("text"), str):
        raise BadMessages(
            f"{where}.content",
            f'a part of a message is {{"type": "text", "text": ...}}, not {part!r:.80}',
        )
    return str(part["text"])
