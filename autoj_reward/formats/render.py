"""Rendering: fill a format's templates for a judge input, with untrusted text marked as such.

Placeholders are filled once, and the result is not searched again. A `{response}` inside a query
stays text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

from autoj_reward.conversation import Prompt, Response, Turn, is_alone, media_of, read_turns
from autoj_reward.errors import InputRejected
from autoj_reward.formats.final_answer import find_final_answer
from autoj_reward.formats.fold import CONTROL
from autoj_reward.formats.protocols import JudgeProtocol
from autoj_reward.formats.read import PlantSearch
from autoj_reward.formats.schema import PLACEHOLDER, JudgeFormat, ScalarFormat
from autoj_reward.formats.turns import PLAIN, Turns
from autoj_reward.media import Media, split_at_media
from autoj_reward.rubric_items import RubricItem
from autoj_reward.types import PLANTED_FLAG, JudgeInput


@dataclass(frozen=True, slots=True)
class Part:
    """Piece of a message."""

    text: str
    trusted: bool = True
    """Whether the text is the template's own. Untrusted text never becomes a control token."""
    response: bool = False
    """Whether this is of a response, which is cut if the prompt is too long."""
    name: str = ""
    """Name of the field that the text comes from. Empty for text of the template, except for the
    marks around a response's turns."""
    turn: int = 0
    """Index from 1 of a turn, of the conversation or the response, that may be left out if the
    prompt is too long. Else 0."""
    media: Media | None = None
    """Picture, sound or file that stands here. The text is then its mark, and only an engine whose
    judge reads media is given it."""


@dataclass(frozen=True, slots=True)
class Message:
    """Chat message made of parts."""

    role: str
    parts: tuple[Part, ...]
    asks: ClassVar[bool] = False
    """Whether an answer follows even if the message is the assistant's."""

    @property
    def text(self) -> str:
        """All parts as one text."""
        return "".join(part.text for part in self.parts)


class JudgedMessage(Message):
    """Message of the assistant that ends a prompt and that the model judges."""

    __slots__ = ()
    asks = True


RenderedPrompt = tuple[Message, ...]
"""Messages of one model call."""
Values = dict[str, tuple[Part, ...]]
"""Parts that replace a placeholder, by its name."""


def render(item: JudgeInput, fmt: JudgeFormat) -> RenderedPrompt:
    """Return the messages for a judge input, as the format lays them out.

    Raises InputRejected for a wrong number of responses, and for a context that lacks a required
    field or has one that the format never shows.
    """
    protocol = fmt.protocol(item.protocol)
    protocol.require(item)
    require_context(item, fmt)
    names = protocol.response_names(len(item.responses))
    values: Values = {name: (Part(text),) for name, text in fmt.constants.items()}
    values |= {name: (Part(text, False, name=name),) for name, text in item.context.items()}
    values["query"] = _make_query_parts(item.prompt)
    for place, (name, response) in enumerate(zip(names, item.responses, strict=True), 1):
        head, tail = protocol.around(place, len(names))
        field_name = name if len(set(names)) == len(names) else f"response_{place}"
        response_parts = (
            Part(head),
            *_make_response_parts(response, field_name, fmt.turns or PLAIN, fmt.shows_answer),
            Part(tail),
        )
        values[name] = values.get(name, ()) + tuple(part for part in response_parts if part.text)
    if item.items:
        values["items"] = tuple(_make_item_parts(item.items, protocol.item_text))
    if turn_marks := _choose_marks(item, fmt):
        if fmt.turns or _has_turns(item.prompt):
            values["query"] = _make_conversation_parts(item.prompt.as_turns, turn_marks)
        values = {
            name: _break_up_untrusted(parts, turn_marks.inert) for name, parts in values.items()
        }
    values = {name: _break_up_untrusted(parts, protocol.inert) for name, parts in values.items()}
    if protocol.json_texts:
        values = {name: _break_up_untrusted(parts, escape_json) for name, parts in values.items()}
    fields = protocol.fields.items()
    filled_parts = {
        placeholder: _fill_placeholder(placeholder, values.get(name), protocol)
        for placeholder, name in fields
    }
    messages: list[Message] = []
    for block in protocol.layout:
        if block.turns:
            messages += _make_chat(item.prompt.as_turns)
            continue
        parts = fill(fmt.message_text(block), filled_parts)
        # A message of an optional field that the input lacks has no parts.
        if parts or not protocol.messages:
            messages.append(Message(block.role, parts))
    last = messages[-1]
    if last.role == "assistant":
        messages[-1] = JudgedMessage(last.role, last.parts)
    return tuple(messages)


def _make_item_parts(items: Sequence[RubricItem], item_template: str) -> Iterator[Part]:
    """Yield the parts that show rubric items one after the other, numbered from 1."""
    for n, item in enumerate(items, 1):
        labels = " / ".join(label for label, _ in item.choices)
        values = {
            "label": (Part(str(n)),),
            "item": (Part(item.criterion, False, name=f"item_{n}"),),
            "choices": (Part(labels, False, name=f"item_{n}"),),
        }
        yield from fill(item_template, values)


def _fill_placeholder(
    placeholder: str, value: tuple[Part, ...] | None, protocol: JudgeProtocol
) -> tuple[Part, ...]:
    """Return the parts for a placeholder. Empty if there is no value.

    An optional field's value stands inside its optional text.
    """
    if value is None:
        return ()
    texts = protocol.optional
    return fill(texts[placeholder], {placeholder: value}) if placeholder in texts else value


def _choose_marks(item: JudgeInput, fmt: JudgeFormat) -> Turns | None:
    """Return how turns are shown. None if query and responses are texts without turns."""
    has_turns = _has_turns(item.prompt) or any(map(_has_turns, item.responses))
    return fmt.turns or (PLAIN if has_turns else None)


def _has_turns(text: Prompt | Response) -> bool:
    """Return whether a prompt or response is shown with marks around its turns.

    One turn of a prompt's user or of a response's assistant, which only media make a turn, is
    shown as a text is.
    """
    if isinstance(text, Prompt):
        return bool(text.turns) and not is_alone(text.turns, "user")
    return bool(text.shown_turns) and not is_alone(text.shown_turns, "assistant")


def _make_query_parts(prompt: Prompt) -> tuple[Part, ...]:
    """Return the parts of a query, or of a conversation as one text."""
    media = () if _has_turns(prompt) else media_of(prompt.turns)
    return _split_at_media(Part(prompt.text, False, name="query"), media)


def _split_at_media(part: Part, media: Sequence[Media]) -> tuple[Part, ...]:
    """Return the parts of a text with its media in their places."""
    parts = []
    for text, found in split_at_media(part.text, media):
        is_trusted = part.trusted or found is not None
        parts.append(replace(part, text=text, trusted=is_trusted, media=found))
    return tuple(parts)


def _make_conversation_parts(turns: Sequence[Turn], turn_marks: Turns) -> tuple[Part, ...]:
    """Return the parts of all turns. All but system turns and the last one may be left out."""
    fixed_turns = {n for n, turn in enumerate(turns, 1) if turn.role == "system" or n == len(turns)}
    parts = _make_turn_parts(turns, turn_marks, "query")
    return tuple(replace(part, turn=0) if part.turn in fixed_turns else part for part in parts)


def _make_turn_parts(turns: Sequence[Turn], turn_marks: Turns, name: str) -> Iterator[Part]:
    """Yield the parts of all turns, each with the index of its turn. name: that of their texts."""
    for n, turn in enumerate(turns, 1):
        head, tail = turn_marks.around(turn.role)
        yield Part(head, turn=n)
        yield from _split_at_media(Part(turn.text, False, name=name, turn=n), turn.media)
        yield Part(tail + (turn_marks.between if n < len(turns) else ""), turn=n)


def _make_response_parts(
    response: Response, name: str, turn_marks: Turns, shows_answer: bool = False
) -> tuple[Part, ...]:
    """Return the parts of a response: its text, or those of the turns that a judge sees.

    shows_answer: whether its final answer is shown in place of all that, with its media behind.
    """
    turns = response.shown_turns
    if shows_answer:
        text = read_turns(turns, "final").text if turns else response.text
        answer = Part(find_final_answer(text), False, True, name)
        media = (replace(answer, text=m.mark, trusted=True, media=m) for m in media_of(turns))
        return (answer, *media)
    if not _has_turns(response):
        return _split_at_media(Part(response.text, False, True, name), media_of(turns))
    parts = _make_turn_parts(turns, turn_marks, name)
    return tuple(replace(part, response=True, name=name) for part in parts if part.text)


def fold_system(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return chat messages with a leading system message put into the first user message.

    A content of parts gets it as its first part.
    """
    if len(messages) < 2 or messages[0]["role"] != "system" or messages[1]["role"] != "user":
        return list(messages)
    system, user, *rest = messages
    head = f"{system['content']}\n\n"
    content = user["content"]
    is_text = isinstance(content, str)
    content = head + content if is_text else [{"type": "text", "text": head}, *content]
    return [{"role": "user", "content": content}, *rest]


def responses_in(prompt: RenderedPrompt) -> dict[str, str]:
    """Return the text of each response in a prompt by its name. Empty ones are not in a prompt."""
    texts: dict[str, str] = {}
    for part in (part for message in prompt for part in message.parts if part.response):
        texts[part.name] = texts.get(part.name, "") + part.text
    return texts


def _break_up_untrusted(
    parts: tuple[Part, ...], break_up: Callable[[str], str]
) -> tuple[Part, ...]:
    broken_parts = []
    for part in parts:
        text = part.text if part.trusted else break_up(part.text)
        broken_parts.append(part if text == part.text else replace(part, text=text))
    return tuple(broken_parts)


def escape_json(text: str) -> str:
    """Return a text as it stands inside of a string of JSON."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def require_context(item: JudgeInput, fmt: JudgeFormat | ScalarFormat) -> None:
    """Raise InputRejected for a context with a missing, unknown or blank field."""
    needed = {name for name, required in fmt.context(item.protocol).items() if required}
    if not needed and not item.context:
        return
    if missing := sorted(needed - set(item.context)):
        raise InputRejected(
            f"format {fmt.name} needs the context field {missing[0]!r}, and this input has "
            f"{sorted(item.context) or 'none'}: give it, or name its column in `columns`"
        )
    shown_fields = fmt.context()
    if unknown := sorted(set(item.context) - set(shown_fields)):
        raise InputRejected(
            f"format {fmt.name} shows no context field {unknown[0]!r} (it shows "
            f"{sorted(shown_fields) or 'none'}): leave it out, or correct its name"
        )
    if blank := [name for name, text in item.context.items() if not text.strip()]:
        raise InputRejected(f"the context field {blank[0]!r} is blank: leave it out")


def answered_prompt(
    prompt: Prompt | str, response: Response | str, fmt: ScalarFormat | None = None
) -> RenderedPrompt:
    """Return a prompt followed by its response, as a scalar reward model reads it.

    Without a format, or if the format has no template, the messages are a chat.
    """
    prompt, response = Prompt.of(prompt), Response.of(response)
    response_turns = response.shown_turns
    if fmt is None or fmt.template is None:
        messages = _make_chat(prompt.as_turns)
        numbered_turns = enumerate(response_turns or (Turn("assistant", response.text),), 1)
        parts = (
            (turn.role, Part(turn.text, False, True, "response", n)) for n, turn in numbered_turns
        )
        return (*messages, *(Message(role, (part,)) for role, part in parts))
    values: Values = {
        "query": (Part(prompt.text, False, name="query"),),
        "response": _make_response_parts(response, "response", PLAIN),
    }
    if prompt.turns:
        values["query"] = _make_conversation_parts(prompt.turns, PLAIN)
    if prompt.turns or response_turns:
        values = {name: _break_up_untrusted(parts, PLAIN.inert) for name, parts in values.items()}
    return (Message("user", fill(fmt.template, values)),)


def _make_chat(turns: Sequence[Turn]) -> RenderedPrompt:
    """Return turns as messages.

    Turns are left out from one user turn up to the next, since chat templates want the user first.
    """
    last_user_turn = max((n for n, turn in enumerate(turns, 1) if turn.role == "user"), default=0)
    messages, place = [], 0
    for n, turn in enumerate(turns, 1):
        if turn.role == "user":
            place = n if n < last_user_turn else 0
        messages.append(Message(turn.role, (Part(turn.text, False, name="query", turn=place),)))
    return tuple(messages)


def fill(template: str, values: Mapping[str, tuple[Part, ...]]) -> tuple[Part, ...]:
    """Return a template's parts with its placeholders filled.

    An unknown `{name}` stays as it is.
    """
    parts: list[Part] = []
    for name, piece in _split_template(template):
        parts += values.get(name, (piece,)) if name else (piece,)
    return tuple(part for part in parts if part.text)


@lru_cache(maxsize=64)
def _split_template(template: str) -> tuple[tuple[str, Part], ...]:
    """Return (placeholder name, part) pairs of a template. The name is empty for plain text.

    The part of a placeholder is used if there is no value for it.
    """
    split = enumerate(PLACEHOLDER.split(template))
    return tuple((p, Part("{" + p + "}")) if n % 2 else ("", Part(p)) for n, p in split)


def user_prompt(prompt: Prompt | str, system: str | None = None) -> RenderedPrompt:
    """Return a prompt as the policy reads it.

    A system turn of the conversation replaces `system`.
    """
    turns = Prompt.of(prompt).as_turns
    without_system = system is None or turns[0].role == "system"
    head = () if without_system else (Message("system", (Part(system or ""),)),)
    return (*head, *(Message(turn.role, (Part(turn.text, trusted=False),)) for turn in turns))


_WORD = re.compile(r"[^\W_]")
CALL = re.compile(r"^\[calls [^\n]*\]$", re.MULTILINE)
"""Tool call in a response, as `conversation.message_text` writes it."""


def flags(item: JudgeInput, fmt: JudgeFormat, search: PlantSearch | None = None) -> tuple[str, ...]:
    """Return the flags for attempts of the responses to influence the judge.

    The input is judged all the same. search: as for `find_planting`.

    - `planted_verdict`: a whole verdict of the judge's form, however it is spelled, in what the
      policy wrote.
    - `template_delimiter`: a line of the judge's own template, or a mark of its thinking block.
    - `control_token`: the spelling of a known control token.
    - `empty_response`: only white space, punctuation and tool calls.
    - `forged_turn`: a line, in any text, that begins like a turn of the conversation.
    """
    marks = (fmt.thinking.open, fmt.thinking.close) if fmt.thinking else ()
    protocol, flag_names = fmt.protocol(item.protocol), set(text_flags(item))
    turn_marks = _choose_marks(item, fmt)
    texts = [turn.text for turn in item.prompt.as_turns]
    for response in item.responses:
        texts += [turn.text for turn in response.shown_turns] or [response.text]
    if turn_marks and any(map(turn_marks.forged, (*texts, *item.context.values()))):
        flag_names.add("forged_turn")
    if find_planting(item, fmt, search):
        flag_names.add(PLANTED_FLAG)
    for response in item.responses:
        delimiters = (*fmt.headings(item.protocol), *marks)
        text = response.text
        if any(line in text for line in delimiters) or protocol.inert(text) != text:
            flag_names.add("template_delimiter")
    return tuple(sorted(flag_names))


def find_planting(
    item: JudgeInput, fmt: JudgeFormat, search: PlantSearch | None = None
) -> tuple[int, ...]:
    """Return the places, from 1, of the responses whose policy planted a verdict.

    search: that of the input's slots, if other functions search the texts too.
    """
    slots = fmt.slots_of(item)
    search = search or PlantSearch(slots)
    places = []
    for place in range(1, len(item.responses) + 1):
        texts = item.policy_texts_of(place)
        if any(search.find_planted(texts, slot) for slot in slots):
            places.append(place)
    return tuple(places)


def require_readable(item: JudgeInput, max_chars: int) -> None:
    """Raise InputRejected for what is no text, and for a text over `max_chars` characters or with
    invalid Unicode."""
    if item.unreadable:
        raise InputRejected(item.unreadable)
    for text in item.untrusted:
        require_unicode(text)
        if len(text) > max_chars:
            raise InputRejected(
                f"a text has {len(text)} characters, over judge.max_text_chars {max_chars}"
            )


def require_readable_response(response: Response) -> None:
    """Raise InputRejected for what cannot be read, and for invalid Unicode."""
    if response.unreadable:
        raise InputRejected(response.unreadable)
    require_unicode(response.text)


def require_unicode(text: str) -> None:
    """Raise InputRejected for what no tokenizer can read: half of a surrogate pair in a text."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputRejected(f"text holds a lone surrogate at character {error.start}") from error


def text_flags(item: JudgeInput) -> tuple[str, ...]:
    """Return the flags that do not depend on a template: `control_token` and `empty_response`."""
    flag_names = set()
    for response in item.responses:
        if CONTROL.search(response.text):
            flag_names.add("control_token")
        turns = response.shown_turns
        text = read_turns(turns, "assistant").text if turns else response.text
        if media_of(turns):
            continue
        if not _WORD.search(CALL.sub("", text) if "[calls " in text else text):
            flag_names.add("empty_response")
    return tuple(sorted(flag_names))


def break_control_tokens(text: str, marks: Collection[str] | None = None) -> str:
    """Break control tokens in a text by a zero-width space after their first character.

    This is for endpoints that tokenize on their side, and for templates whose marks are ordinary
    text. With `marks` only these spellings are broken.
    """

    def break_mark(match: re.Match[str]) -> str:
        mark = match.group()
        return mark if marks is not None and mark not in marks else f"{mark[0]}\u200b{mark[1:]}"

    return CONTROL.sub(break_mark, text)


def broken_up(text: str, marks: Collection[str]) -> str:
    """Break each mark in a text by a zero-width space after its first character."""
    for mark in marks:
        text = text.replace(mark, f"{mark[0]}\u200b{mark[1:]}")
    return text
