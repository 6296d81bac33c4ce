"""Conversations and context: the messages before a response, and what else the judge is shown."""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from autoj_reward.errors import BadMessages, InputRejected
from autoj_reward.media import (
    RECORDED,
    Media,
    MediaRules,
    describe_media,
    find_media,
    is_empty,
    list_parts,
    other_type,
    with_marks,
)
from autoj_reward.rubric_items import ROW_NAMES
from autoj_reward.thinking import KNOWN_MARKS, Marks, find_block, is_blank

ROLES = {"developer": "system", "function": "tool"}
"""Roles that chat APIs have renamed, with the name that is used here."""
MAX_TURNS = 1024
"""Maximum number of messages in a conversation."""
FOLLOWS = {
    "": ("system", "user"),
    "system": ("system", "user"),
    "user": ("assistant",),
    "assistant": ("user", "tool"),
    "tool": ("tool", "assistant", "user"),
}
"""Roles that may follow each role. The empty string is the start of the conversation."""
NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")
"""Pattern of the name of a context field."""
Shows = Literal["final", "assistant", "trajectory"]
"""What a judge reads of a response that consists of several turns."""
THINKING_KEYS = ("reasoning_content", "reasoning", "thinking")
"""Keys of a message that hold its thinking apart from its content."""
THINKING_PARTS = re.compile("thinking|reasoning")
"""Types of content parts that are thinking."""
RESERVED_NAMES = re.compile("query|items|responses|response(_[0-9]+)?")
"""Names of a judge input's own texts. No context field may use them."""


def is_reserved_name(name: str) -> bool:
    """Return whether a name is reserved for one of a judge input's own texts."""
    return RESERVED_NAMES.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a conversation. Its tool calls are written into the text."""

    role: str
    """`system`, `user`, `assistant` or `tool`."""
    text: str
    media: tuple[Media, ...] = ()
    """Pictures, sound and files in the message, in the order of their places in the text."""
    thinking: str = field(default="", compare=False)
    """Thinking of the assistant that is not in the text: it stood apart, or was cut."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a response answers: a query, or the turns of a conversation."""

    text: str
    """The query. For a conversation the plain text of its turns."""
    turns: tuple[Turn, ...] = ()
    """The conversation. Empty if the prompt is a lone user turn of text."""
    unreadable: str = ""
    """Why no judge can read it: it was given as no text. Empty for every other prompt."""

    @classmethod
    def of(cls, value: Prompt | str | Sequence[Turn | Mapping[str, Any]]) -> Prompt:
        """Return the prompt of a text, or of turns or messages in any order.

        A lone user turn without media is a query. Raises BadMessages for an invalid message.
        """
        if isinstance(value, Prompt):
            return value
        if isinstance(value, str):
            return cls(value)
        turns = turns_of(value)
        is_query = is_alone(turns, "user") and not turns[0].media
        return cls(to_plain_text(turns), () if is_query else turns)

    @classmethod
    def take(cls, value: Any) -> Prompt:
        """Return the prompt of a value. One that is no prompt costs its own input alone: the result
        says why it is `unreadable`."""
        try:
            return cls.of(value)
        except BadMessages as error:
            return cls(show(value), unreadable=str(error))

    @property
    def last_user_text(self) -> str:
        """The text of the last user turn, or the query."""
        return next((turn.text for turn in reversed(self.turns) if turn.role == "user"), self.text)

    @property
    def as_turns(self) -> tuple[Turn, ...]:
        """The conversation, or the query as a user turn."""
        return self.turns or (Turn("user", self.text),)

    @property
    def marked(self) -> str:
        """The text for display, with a mark in place of each of its media."""
        return to_plain_text(_mark_media(self.turns)) if media_of(self.turns) else self.text

    def record(self, whole: bool = False) -> dict[str, Any]:
        """Return the prompt as fields of JSON data: `messages`, or `query`. whole: as for
        `messages_of`."""
        return {"messages": messages_of(self.turns, whole)} if self.turns else {"query": self.text}


class Showing(Protocol):
    """What a judge is shown of a response."""

    @property
    def shows(self) -> Shows | None:
        """What it reads of several turns; None for what the response's source reads."""

    @property
    def shows_thinking(self) -> bool:
        """Whether it reads the thinking."""

    @property
    def thinking_marks(self) -> tuple[Marks, ...]:
        """Marks around a leading block of thinking."""

    @property
    def judges_unanswered(self) -> bool:
        """Whether a response without an answer is judged all the same."""


@dataclass(frozen=True, slots=True)
class Response:
    """A response: a text, or several turns of the assistant and of tools."""

    text: str
    """What is read by default, such as the final answer. If a judge sees the turns, all of them."""
    turns: tuple[Turn, ...] = ()
    """All turns. Empty for a plain text."""
    shows_turns: bool = False
    """Whether a judge sees the turns, and not only the text."""
    unreadable: str = ""
    """Why no judge can read it: it was given as no text. Empty for every other response."""
    thinking: str = field(default="", compare=False)
    """Thinking that is not in the text: it stood apart, or was cut."""
    reads: Shows | None = field(default=None, compare=False)
    """What the text holds of the turns; None if it was not made from them."""
    unanswered: str = field(default="", compare=False)
    """Why a judge is not asked: the answer is empty. Known once `for_judge` has cut it."""

    @classmethod
    def of(
        cls,
        value: Response | str | Sequence[Turn | Mapping[str, Any]],
        shows: Shows = "trajectory",
        text: str | None = None,
    ) -> Response:
        """Return the response that is a text, or consists of turns or messages in any order.

        shows: what is read of several turns by default. text: a text that is read by default
        instead. A lone message of the assistant becomes a plain text, unless it holds media. Raises
        BadMessages for an invalid message.
        """
        if isinstance(value, Response):
            return value
        if isinstance(value, str):
            return cls(value)
        turns = _convert_messages(value)
        response = read_turns(turns, shows)
        if media_of(response.shown_turns):
            return response
        if text is not None:
            response = cls(text)
        if len(turns) < 2 or response.turns:
            return response
        reads = response.reads if text is None else None
        return cls(response.text, turns, thinking=response.thinking, reads=reads)

    @classmethod
    def take(cls, value: Any) -> Response:
        """Return the response of a value. One that is no response costs its own input alone: the
        result says why it is `unreadable`."""
        try:
            return cls.of(value)
        except BadMessages as error:
            return cls("", unreadable=str(error))

    @property
    def shown_turns(self) -> tuple[Turn, ...]:
        """The turns that a judge sees. Empty if it sees a plain text."""
        return self.turns if self.shows_turns else ()

    def for_judge(
        self, showing: Showing, opened_by: Marks | None = None, begun: Sequence[Turn] = ()
    ) -> Response:
        """Return the response as a judge reads it: its turns, their thinking, the answer.

        `showing.shows` counts in place of `reads`. opened_by: marks of the thinking that the prompt
        opened. begun: turns at the end of the prompt that belong to the response.
        """
        if self.unreadable:
            return self
        shows = showing.shows or (self.reads if self.turns else None)
        turns = self.turns
        if not shows or not turns:
            turns = (Turn("assistant", self.text, (), self.thinking),)
        first = next((turn for turn in turns if turn.role == "assistant"), None)
        shown_turns = [_show_thinking(turn, showing, None) for turn in begun]
        for turn in turns:
            shown_turns.append(_show_thinking(turn, showing, opened_by if turn is first else None))
        if shows:
            response = read_turns(shown_turns, shows)
        else:
            [turn] = shown_turns
            is_hidden = bool(self.turns) and not self.shows_turns
            response = self
            if turn.text != self.text or is_hidden:
                response = Response(turn.text, thinking=turn.thinking)
        if not showing.judges_unanswered and (reason := response._explain_no_answer()):
            return replace(response, unanswered=reason)
        return response

    def _explain_no_answer(self) -> str:
        """Return why the response holds no answer; empty if it holds one.

        A tool call and media are answers.
        """
        written = [turn for turn in self.shown_turns if turn.role == "assistant" or turn.media]
        texts = [turn.text for turn in written] if self.shows_turns else [self.text]
        if any(turn.media for turn in written) or not all(map(is_blank, texts)):
            return ""
        if self.thinking:
            return "the response holds thinking and no answer after it"
        return "the response is empty"

    @property
    def marked(self) -> str:
        """The text for display, with a mark in place of each of its media."""
        turns = self.shown_turns
        return _to_answer(_mark_media(turns)) if media_of(turns) else self.text

    def record(self, whole: bool = False) -> str | list[dict[str, Any]]:
        """Return the response as JSON data: its text, or the messages of turns that are shown.
        whole: as for `messages_of`."""
        return messages_of(self.turns, whole) if self.shows_turns else self.text


def read_turns(turns: Sequence[Turn], shows: Shows) -> Response:
    """Return what a judge reads of a response that consists of these turns.

    `final`: the assistant's last turn. `assistant`: all turns of the assistant's, without empty
    ones. `trajectory`: all turns, unless the assistant's answer is the only one. Turns with media
    stay turns, since a text could not tell of it.
    """
    assistant_turns = [turn for turn in turns if turn.role == "assistant"]
    if shows == "trajectory" and len(turns) > len(assistant_turns[:1]):
        return _show_turns(turns, shows)
    read_by_judge = assistant_turns[-1:] if shows == "final" else assistant_turns
    if media_of(read_by_judge):
        return _show_turns(read_by_judge, shows)
    text = "\n\n".join(turn.text for turn in read_by_judge if turn.text)
    return Response(text, thinking=_join_thinking(read_by_judge), reads=shows)


def _show_turns(turns: Sequence[Turn], shows: Shows) -> Response:
    return Response(
        _to_answer(turns),
        tuple(turns),
        shows_turns=True,
        thinking=_join_thinking(turns),
        reads=shows,
    )


def _join_thinking(turns: Sequence[Turn]) -> str:
    return "\n\n".join(turn.thinking for turn in turns if turn.thinking)


def _show_thinking(turn: Turn, showing: Showing, opened_by: Marks | None) -> Turn:
    """Return a turn with an assistant's thinking in the text, or cut from it."""
    if turn.role != "assistant":
        return turn
    if showing.shows_thinking:
        if not turn.thinking:
            return turn
        marks = next((marks for marks in showing.thinking_marks if marks.open), KNOWN_MARKS[0])
        block_text = f"{marks.open}\n{turn.thinking}\n{marks.close}\n\n"
        return replace(
            turn,
            text=block_text + turn.text,
            media=_move_media(turn.media, len(block_text)),
            thinking="",
        )
    block = find_block(turn.text, showing.thinking_marks, opened_by)
    if block is None:
        return turn
    thinking = "\n\n".join(filter(None, (turn.thinking, turn.text[: block.end])))
    return replace(
        turn,
        text=turn.text[block.end :],
        media=_move_media(turn.media, -block.end),
        thinking=thinking,
    )


def _move_media(media: Iterable[Media], by: int) -> tuple[Media, ...]:
    """Return media whose text grew, or lost as much, at its beginning."""
    return tuple(replace(found, place=max(0, found.place + by)) for found in media)


def media_of(turns: Iterable[Turn]) -> list[Media]:
    """Return the media of all turns."""
    return [media for turn in turns for media in turn.media]


def show_media(turns: Sequence[Turn], rules: MediaRules) -> tuple[Turn, ...]:
    """Return turns with a mark in the text in place of media that a judge is not sent.

    Raises InputRejected for such media if the rules omit none.
    """
    shown_turns = []
    for turn in turns:
        reasons = {media: media.explain_refusal(rules) for media in turn.media}
        refused = next(filter(None, reasons.values()), "")
        if refused and not rules.omits:
            alike = (media for media, reason in reasons.items() if reason == refused)
            raise InputRejected(f"{describe_media(alike)}, {refused}")
        shown_turns.append(_omit_media(turn, reasons) if refused else turn)
    return tuple(shown_turns)


def _omit_media(turn: Turn, reasons: Mapping[Media, str]) -> Turn:
    """Return the turn with a mark in place of each of its media that has a reason."""
    kept = []
    grown = 0
    for media in turn.media:
        if reasons[media]:
            grown += len(media.mark)
        else:
            kept.append(replace(media, place=media.place + grown))
    text = with_marks(turn.text, (media for media in turn.media if reasons[media]))
    return replace(turn, text=text, media=tuple(kept))


def _mark_media(turns: Iterable[Turn]) -> list[Turn]:
    return [replace(turn, text=with_marks(turn.text, turn.media)) for turn in turns]


def _to_answer(turns: Sequence[Turn]) -> str:
    """Return the turns of a response as one text. A lone turn of the assistant's stays as it is."""
    return turns[0].text if is_alone(turns, "assistant") else to_plain_text(turns)


def is_alone(turns: Sequence[Turn], role: str) -> bool:
    """Return whether the turns are one of this role."""
    return [turn.role for turn in turns] == [role]


def to_plain_text(turns: Sequence[Turn]) -> str:
    """Return a conversation as one text.

    A lone user turn stays as it is. Otherwise each turn is a paragraph that begins with its role
    ("User: ...").
    """
    if is_alone(turns, "user"):
        return turns[0].text
    return "\n\n".join(f"{turn.role.capitalize()}: {turn.text}" for turn in turns)


def turns_of(messages: Any) -> tuple[Turn, ...]:
    """Convert messages to turns, whatever the order of roles.

    Raises BadMessages for an invalid message.
    """
    turns = _convert_messages(messages)
    if len(turns) > MAX_TURNS:
        raise BadMessages("", f"{len(turns)} messages; a conversation has at most {MAX_TURNS}")
    return turns


def _convert_messages(messages: Any) -> tuple[Turn, ...]:
    try:
        if not isinstance(messages, Iterable) or getattr(messages, "ndim", None) == 0:
            raise BadMessages(
                "", f"a prompt or completion is text or messages, not {show(messages)}"
            )
        return tuple(_convert_message(message, f"[{n}]") for n, message in enumerate(messages))
    except BadMessages:
        raise
    except Exception as error:
        # Objects of other libraries may raise anything when they are read.
        reason = f"{show(messages)} cannot be read as messages: {type(error).__name__}: {error}"
        raise BadMessages("", f"{reason:.300}") from error


def show(value: Any) -> str:
    """Return the beginning of a value's repr, for an error, whatever the value is."""
    try:
        return f"{reprlib.repr(value):.80}"
    except Exception:
        return f"an object of type {type(value).__name__}"


def before_response(messages: Any, answered: bool) -> tuple[Prompt, Response | None]:
    """Return the prompt that a response answers, and the response: the assistant's last turn.

    With `answered` the responses come from elsewhere, so messages may end with the user. An
    assistant's last turn is then cut off, and the returned response is None if there is none.

    Raises BadMessages for turns that are out of order, blank or of an unknown role. Without
    `answered` it also raises if the assistant has no turn.
    """
    turns = turns_of(messages)
    _require_order(turns)
    assistant_indices = [n for n, turn in enumerate(turns) if turn.role == "assistant"]
    if answered:
        assistant_indices = [n for n in assistant_indices if n == len(turns) - 1]
    elif not assistant_indices:
        raise BadMessages("", "no turn of the assistant that could be rated")
    prompt_turns = turns[: assistant_indices[-1]] if assistant_indices else turns
    _require_texts(prompt_turns)
    if not any(turn.role == "user" for turn in prompt_turns):
        raise BadMessages("", "no turn of the user before the response")
    if not assistant_indices:
        return Prompt.of(prompt_turns), None
    return Prompt.of(prompt_turns), read_turns([turns[assistant_indices[-1]]], "final")


def messages_of(turns: Sequence[Turn], whole: bool = False) -> list[dict[str, Any]]:
    """Return turns as chat messages. Their media stand under `media`.

    whole: whether media go with their content. Else they have a digest of it alone.
    """
    messages = []
    for turn in turns:
        message: dict[str, Any] = {"role": turn.role, "content": turn.text}
        if turn.media:
            message[RECORDED] = [media.record(whole) for media in turn.media]
        messages.append(message)
    return messages


def content_text(message: Mapping[str, Any], where: str = "") -> str:
    """Return the text of a message's content. Parts of other types than text are left out.

    Raises BadMessages for content that is neither text nor a list of parts.
    """
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        return "\n".join(_read_part(part, where) for part in content if not other_type(part))
    raise BadMessages(
        f"{where}.content", f"a message's content is text or a list of parts, not {show(content)}"
    )


@dataclass(frozen=True, slots=True)
class Context(Mapping[str, str]):
    """Named texts that a judge may see with prompt and response, such as a reference.

    A frozen mapping. The order in which texts are given does not affect equality. The texts are
    untrusted data like the query: they never become control tokens, and a verdict in them does not
    count.

    >>> Context({"reference": "42"})["reference"]
    '42'

    Raises ValueError for a name that templates cannot use or that a judge input uses itself. Raises
    TypeError for a value that is no text.
    """

    texts: tuple[tuple[str, str], ...] | Mapping[str, str] = ()

    def __post_init__(self) -> None:
        texts = dict(self.texts)
        for name, text in texts.items():
            if not isinstance(name, str) or not NAME.fullmatch(name) or is_reserved_name(name):
                raise ValueError(f"{name!r} names no context field: write it like `reference`")
            if not isinstance(text, str):
                raise TypeError(f"context field {name!r} is no text: {text!r:.80}")
        object.__setattr__(self, "texts", tuple(sorted(texts.items())))

    def __getitem__(self, name: str) -> str:
        return dict(self.texts)[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict(self.texts))

    def __len__(self) -> int:
        return len(self.texts)


EMPTY_CONTEXT = Context()
"""Empty context."""


def context_of(texts: Mapping[str, str]) -> Context:
    """Return a mapping as a frozen Context."""
    return texts if isinstance(texts, Context) else Context(texts)


@dataclass(frozen=True, slots=True)
class ContextColumn:
    """Context field of a judge's format, and the column of input rows that holds it."""

    field: str
    """Name of the context field."""
    column: str
    """Name of the column."""
    required: bool = False
    """Whether a row without the column cannot be judged."""
    items: bool = False
    """Whether the column holds rubric items."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns that may hold the field, the first one first."""
        return ROW_NAMES if self.items and self.column in ROW_NAMES else (self.column,)


def _convert_message(message: Any, where: str) -> Turn:
    if isinstance(message, Turn):
        return message
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise BadMessages(where, f"not a message with a role: {show(message)}")
    role = str(message["role"])
    text = message_text(message, where)
    return Turn(
        ROLES.get(role, role),
        text,
        find_media(message, where, len(text)),
        _find_thinking(message) if role == "assistant" else "",
    )


def _find_thinking(message: Mapping[str, Any]) -> str:
    """Return the thinking that a message holds apart from its text; empty for none.

    Gateways send the same thinking under two names, so the first one counts.
    """
    for key in THINKING_KEYS:
        if isinstance(text := message.get(key), str) and text:
            return text
    texts = [
        next(
            (part[key] for key in (kind, "thinking", "text") if isinstance(part.get(key), str)), ""
        )
        for part in list_parts(message).values()
        if THINKING_PARTS.search(kind := other_type(part))
    ]
    return "\n\n".join(filter(None, texts))


def message_text(message: Mapping[str, Any], where: str = "") -> str:
    """Return the text of a message, with one line for each tool call.

    `function_call` is the one call of a message of older chat APIs. Raises BadMessages for invalid
    content or calls.
    """
    content = content_text(message, where)
    calls = message.get("tool_calls")
    if is_empty(calls):
        calls = ()
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        raise BadMessages(f"{where}.tool_calls", f"not a list of calls: {show(calls)}")
    call_lines = [_format_call(call, f"{where}.tool_calls[{n}]") for n, call in enumerate(calls)]
    function_call = message.get("function_call")
    if not is_empty(function_call):
        call_lines.append(_format_call(function_call, f"{where}.function_call"))
    return "\n".join(filter(None, [content, *call_lines]))


def _format_call(call: Any, where: str) -> str:
    """Return a tool call as `[calls name {"argument": "value"}]`."""
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise BadMessages(where, f"not a call of a function with a name: {show(call)}")
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        try:
            arguments = json.dumps({} if is_empty(arguments) else arguments, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError) as error:
            reason = f"arguments without a JSON form: {show(arguments)}"
            raise BadMessages(where, reason) from error
    return f"[calls {function['name']} {arguments}]"


def _require_order(turns: Sequence[Turn]) -> None:
    last_role = ""
    for n, turn in enumerate(turns):
        if turn.role not in FOLLOWS or not turn.role:
            known_roles = ", ".join(filter(None, FOLLOWS))
            raise BadMessages(
                f"[{n}].role", f"unknown role {turn.role!r:.40}: write one of {known_roles}"
            )
        if turn.role not in FOLLOWS[last_role]:
            place = f"after one of the {last_role}'s" if last_role else "at the start"
            allowed_roles = " or ".join(FOLLOWS[last_role])
            raise BadMessages(
                f"[{n}].role",
                f"out of order: a turn of the {turn.role}'s {place}, not {allowed_roles}",
            )
        last_role = turn.role


def _require_texts(turns: Sequence[Turn]) -> None:
    for n, turn in enumerate(turns):
        if not turn.text.strip() and not turn.media:
            raise BadMessages(f"[{n}].content", f"blank: {turn.text!r:.40}")


def _read_part(part: Any, where: str) -> str:
    if not isinstance(part, Mapping) or "type" not in part or not isinstance(part.get("text"), str):
        raise BadMessages(
            f"{where}.content",
            f'a part of a message is {{"type": "text", "text": ...}}, not {show(part)}',
        )
    return str(part["text"])
