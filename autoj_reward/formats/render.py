"""One-pass rendering: a judge input becomes messages whose untrusted parts stay marked.

Placeholders are filled once and never searched again, so `{response}` inside a query stays text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from autoj_reward.conversation import Turn
from autoj_reward.errors import InputRejected
from autoj_reward.formats.protocols import JudgeProtocol
from autoj_reward.formats.schema import PLACEHOLDER, JudgeFormat, ScalarFormat
from autoj_reward.formats.turns import PLAIN, Turns
from autoj_reward.types import PLANTED, JudgeInput


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a message. Untrusted text can never become a control token; `response` marks
    what may be cut when the whole is over-long. name: of the field that it is the text of. turn:
    the place, from 1, of the turn of a conversation that it belongs to, if that may be left out
    when the whole is over-long."""

    text: str
    trusted: bool = True
    response: bool = False
    name: str = ""
    turn: int = 0


@dataclass(frozen=True, slots=True)
class Message:
    role: str
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts)


Prompt = tuple[Message, ...]
Values = dict[str, tuple[Part, ...]]
"""What stands for each name."""


def render(item: JudgeInput, fmt: JudgeFormat) -> Prompt:
    """Messages for one judge input: the format's system message if it has one, then the user's.

    Raises InputRejected for responses that the protocol does not lay out, and for a context that
    lacks a field or has one that the format never shows.
    """
    protocol = fmt.protocol(item.protocol)
    protocol.require(item)
    require_context(item, fmt)
    names = protocol.response_names(len(item.responses))
    values: Values = {name: (Part(text),) for name, text in fmt.constants.items()}
    values |= {name: (Part(text, False, name=name),) for name, text in item.context.items()}
    values["query"] = (Part(item.query, False, name="query"),)
    for place, (name, text) in enumerate(zip(names, item.responses, strict=True), 1):
        head, tail = protocol.around(place)
        own = name if len(set(names)) == len(names) else f"response_{place}"
        shown = (Part(head), Part(text, False, True, own), Part(tail))
        values[name] = values.get(name, ()) + tuple(part for part in shown if part.text)
    if how := _turns(item, fmt):
        values["query"] = _conversation(item.turns or (Turn("user", item.query),), how)
        values = {name: _inert(parts, how.inert) for name, parts in values.items()}
    values = {name: _inert(parts, protocol.inert) for name, parts in values.items()}
    fields = protocol.fields.items()
    placed = {place: _placed(place, values.get(name), protocol) for place, name in fields}
    messages = []
    if protocol.system is not None:
        messages.append(Message("system", fill(fmt.texts[protocol.system], placed)))
    messages.append(Message("user", fill(fmt.texts[protocol.template], placed)))
    return tuple(messages)


def _placed(
    place: str, value: tuple[Part, ...] | None, protocol: JudgeProtocol
) -> tuple[Part, ...]:
    """What stands at a placeholder: the value, in its optional part if it has one, or nothing."""
    if value is None:
        return ()
    own = protocol.optional
    return fill(own[place], {place: value}) if place in own else value


def _turns(item: JudgeInput, fmt: JudgeFormat) -> Turns | None:
    """How the query is shown in turns; None where it is one text."""
    return fmt.turns or (PLAIN if item.turns else None)


def _conversation(turns: Sequence[Turn], how: Turns) -> tuple[Part, ...]:
    """All turns. All but the system's and the last may be left out."""
    parts: list[Part] = []
    for n, turn in enumerate(turns, 1):
        place = 0 if turn.role == "system" or n == len(turns) else n
        head, tail = how.around(turn.role)
        parts += (Part(head, turn=place), Part(turn.text, False, name="query", turn=place))
        parts.append(Part(tail + (how.between if n < len(turns) else ""), turn=place))
    return tuple(parts)


def _inert(parts: tuple[Part, ...], broken_up: Callable[[str], str]) -> tuple[Part, ...]:
    return tuple(p if p.trusted else replace(p, text=broken_up(p.text)) for p in parts)


def require_context(item: JudgeInput, fmt: JudgeFormat | ScalarFormat) -> None:
    """InputRejected for a context that lacks a field or has one that the format never shows."""
    needed = {name for name, required in fmt.context(item.protocol).items() if required}
    if not needed and not item.context:
        return
    if missing := sorted(needed - set(item.context)):
        raise InputRejected(
            f"format {fmt.name} needs the context field {missing[0]!r}, and this input has "
            f"{sorted(item.context) or 'none'}: give it, or name its column in `columns`"
        )
    known = fmt.context()
    if unknown := sorted(set(item.context) - set(known)):
        raise InputRejected(
            f"format {fmt.name} shows no context field {unknown[0]!r} (it shows "
            f"{sorted(known) or 'none'}): leave it out, or correct its name"
        )
    if blank := [name for name, text in item.context.items() if not text.strip()]:
        raise InputRejected(f"the context field {blank[0]!r} is blank: leave it out")


def answered_prompt(
    query: str, response: str, fmt: ScalarFormat | None = None, turns: Sequence[Turn] = ()
) -> Prompt:
    """A query, or a conversation, with its response, as a scalar reward model reads them; without a
    format, or one that has no template, as a chat."""
    answer = (Part(response, trusted=False, response=True, name="response"),)
    if fmt is None or fmt.template is None:
        asked = _chat(turns or (Turn("user", query),))
        return (*asked, Message("assistant", answer))
    values: Values = {"query": (Part(query, False, name="query"),), "response": answer}
    if turns:
        values["query"] = _conversation(turns, PLAIN)
        values = {name: _inert(parts, PLAIN.inert) for name, parts in values.items()}
    return (Message("user", fill(fmt.template, values)),)


def _chat(turns: Sequence[Turn]) -> Prompt:
    """Turns as messages. What may be left out goes from one turn of the user's to the next, since
    templates want the user first."""
    last = max((n for n, turn in enumerate(turns, 1) if turn.role == "user"), default=0)
    found, place = [], 0
    for n, turn in enumerate(turns, 1):
        if turn.role == "user":
            place = n if n < last else 0
        found.append(Message(turn.role, (Part(turn.text, False, name="query", turn=place),)))
    return tuple(found)


def fill(template: str, values: Mapping[str, tuple[Part, ...]]) -> tuple[Part, ...]:
    """The parts of a template with its placeholders filled; `{unknown}` stays as it is."""
    parts: list[Part] = []
    for name, own in _pieces(template):
        parts += values.get(name, (own,)) if name else (own,)
    return tuple(part for part in parts if part.text)


@lru_cache(maxsize=64)
def _pieces(template: str) -> tuple[tuple[str, Part], ...]:
    """A placeholder's name, or nothing, and what stands there unless a value does."""
    split = enumerate(PLACEHOLDER.split(template))
    return tuple((p, Part("{" + p + "}")) if n % 2 else ("", Part(p)) for n, p in split)


def user_prompt(asked: str | Sequence[Turn], system: str | None = None) -> Prompt:
    """A plain chat turn, or the turns of a conversation, as the policy sees them. A conversation's
    own system turn stands in place of the policy's."""
    turns = (Turn("user", asked),) if isinstance(asked, str) else asked
    own = system is None or turns[0].role == "system"
    head = () if own else (Message("system", (Part(system or ""),)),)
    return (*head, *(Message(turn.role, (Part(turn.text, trusted=False),)) for turn in turns))


_SAID = re.compile(r"[^\W_]")
CALL = re.compile(r"^\[calls [^\n]*\]$", re.MULTILINE)
"""A tool that a response calls, as `conversation.message_text` writes it."""
CONTROL = re.compile(
    r"<\|[^<>|\s]{1,40}\|>|<｜[^<>｜\s]{1,40}｜>|</?s>|<(?:bos|eos|pad|unk)>|<(?:start|end)_of_turn>"
    r"|\[/?INST\]|<</?SYS>>|\[gMASK\]|<sop>"
)


def flags(item: JudgeInput, fmt: JudgeFormat) -> tuple[str, ...]:
    """What the responses of an input try on the judge, for the record; judging goes on.

    `planted_verdict`: text that reads as the judge's verdict slot. `template_delimiter`: a line
    of the judge's own template, or a mark of its thinking block. `control_token`: the spelling of a
    known control token. `empty_response`: nothing but white space, punctuation
    and calls of tools. `forged_turn`:
    a line that begins as a turn of the conversation does, in any text.
    """
    openings = [slot.open_re for slot in fmt.slots(item.protocol, len(item.responses))]
    marks = (fmt.thinking.open, fmt.thinking.close) if fmt.thinking else ()
    own, found = fmt.protocol(item.protocol), set(text_flags(item))
    how, spoken = _turns(item, fmt), [turn.text for turn in item.turns] or [item.query]
    if how and any(map(how.forged, (*spoken, *item.responses, *item.context.values()))):
        found.add("forged_turn")
    for response in item.responses:
        if any(opening.search(response) for opening in openings):
            found.add(PLANTED)
        delimiters = (*fmt.headings(item.protocol), *marks)
        if any(line in response for line in delimiters) or own.inert(response) != response:
            found.add("template_delimiter")
    return tuple(sorted(found))


def require_readable(item: JudgeInput, max_chars: int) -> None:
    """InputRejected for an input with a text that is too long, or that no tokenizer can read."""
    for text in item.untrusted:
        if len(text) > max_chars:
            raise InputRejected(
                f"a text has {len(text)} characters, over judge.max_text_chars {max_chars}"
            )
        require_unicode(text)


def require_unicode(text: str) -> None:
    """InputRejected for text that no tokenizer can read: half of a surrogate pair."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputRejected(f"text holds a lone surrogate at character {error.start}") from error


def text_flags(item: JudgeInput) -> tuple[str, ...]:
    """Those of `flags` that no template plays a part in: `control_token`, `empty_response`."""
    found = set()
    for response in item.responses:
        if CONTROL.search(response):
            found.add("control_token")
        if not _SAID.search(CALL.sub("", response)):
            found.add("empty_response")
    return tuple(sorted(found))


def defuse(text: str, marks: Collection[str] | None = None) -> str:
    """Break the spelling of control tokens with a zero-width space after their first character.

    For endpoints that tokenize on their side, where no other way keeps text from becoming control,
    and for templates whose marks are text. marks: break up these alone.
    """

    def broken(found: re.Match[str]) -> str:
        mark = found.group()
        return mark if marks is not None and mark not in marks else f"{mark[0]}\u200b{mark[1:]}"

    return CONTROL.sub(broken, text)


def broken_up(text: str, marks: Collection[str]) -> str:
    """Break every mark with a zero-width space after its first character."""
    for mark in marks:
        text = text.replace(mark, f"{mark[0]}\u200b{mark[1:]}")
    return text
