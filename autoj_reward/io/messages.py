"""Small readers for the shapes in which rows hold prompts and responses.

A text or messages; messages as JSON in a text; content as a text, parts or a mapping; dialogues
written with marks; sides of a pair with or without the prompt inside. The result is plain: a text,
or a list of messages with `role` and `content`.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autoj_reward.conversation import MAX_TURNS
from autoj_reward.io.checks import BadField, require_text, show
from autoj_reward.media import DOCUMENT_KEYS, MEDIA_KEYS, RECORDED, TEXT_PARTS

Message = dict[str, Any]
"""A message with `role`, and `content`, calls or media."""
Text = str | list[Message]
"""A prompt or a response: a text, or messages."""

ROLES = {
    "human": "user",
    "prompter": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bard": "assistant",
    "bing": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "observation": "tool",
}
"""Roles of public sets that chat APIs call otherwise. All other roles stay as they are."""
CALL_ROLES = {"function_call"}
"""Roles of messages whose text is a call of a tool."""
GIVEN = ("user", "system", "developer")
"""Roles of turns that no policy wrote."""
CALL_KEYS = ("tool_calls", "function_call", "tool_call")
THOUGHTS = ("thinking", "reasoning_content", "reasoning", "thought")
"""Keys of a message that hold what the policy thought."""
PAIRED = (("human", "assistant"), ("user", "assistant"))
"""Keys of an item that holds a question and its answer in place of a role."""
HH_MARKS = re.compile(r"(?:^|\n\n)(Human|Hum|Assistant):")
TURN_MARKS = re.compile(r"\n{0,2}<extra_id_1>(User|Assistant)\n?")
LAST_ANSWER = "\n\nAssistant:"
MAX_LITERAL = 1_000_000
"""Longest text in Python's notation that is read, in characters."""


@dataclass(slots=True)
class Asked:
    """A prompt with the responses to it."""

    prompt: Text
    responses: list[Any]
    """Texts or messages; None for a response that is missing."""
    thoughts: list[str | None]
    """What the policy thought before each response."""


def read_value(value: Any, where: str, listed: bool) -> Text | None:
    """Return a field's value as a text or as messages; None for null.

    listed: whether a text that holds a list of messages is read as those. A text that a policy
    wrote never is.
    """
    if value is None:
        return None
    if isinstance(value, str):
        messages = load_messages(value) if listed else None
        return require_text(value, where) if messages is None else read_messages(messages, where)
    if isinstance(value, Mapping):
        return [read_message(value, where)]
    if isinstance(value, list):
        return read_messages(value, where)
    raise BadField(where, f"not a string: {show(value)}")


def read_messages(values: Sequence[Any], where: str) -> list[Message]:
    """Return the messages of a list, in their order.

    An item may also be a pair of a question and its answer. Raises BadField that names the message.
    """
    if len(values) > MAX_TURNS:
        raise BadField(where, f"{len(values)} messages; a conversation has at most {MAX_TURNS}")
    messages: list[Message] = []
    for n, value in enumerate(values):
        pair = _find_pair(value)
        if pair is None:
            messages.append(read_message(value, f"{where}[{n}]"))
            continue
        for role, text in zip(("user", "assistant"), pair, strict=True):
            if text is not None:
                messages.append({"role": role, "content": require_text(text, f"{where}[{n}]")})
    # A system turn without a text says nothing.
    return [m for m in messages if m["role"] != "system" or m.get("content") != ""]


def read_message(value: Any, where: str) -> Message:
    """Return a message with `role`, `content`, and its calls, media and thoughts."""
    role = value.get("role") or value.get("from") if isinstance(value, Mapping) else None
    if not isinstance(role, str):
        raise BadField(where, f"not a message with a role: {show(value)}")
    message: Message = {"role": ROLES.get(role, role)}
    content = value.get("content")
    if content is None:
        content = value.get("value", value.get("text"))
    if isinstance(content, Mapping):  # Arena-Hard: {"answer": ..., "thought": ...}
        message["thinking"] = content.get("thought")
        content = content.get("answer")
    if isinstance(content, list):
        content = _read_parts(content, where)
    elif content is not None:
        if not isinstance(content, str):
            reason = f"a message's content is text or a list of parts, not {show(content)}"
            raise BadField(f"{where}.content", reason)
        require_text(content, f"{where}.content")
    if role in CALL_ROLES:
        return {"role": "assistant", "tool_call": content}
    if content is not None:
        message["content"] = content
    for key, field in value.items():
        # Tables write a key that only other messages have as null or as an empty list.
        is_kept = key in CALL_KEYS or key in THOUGHTS or _is_media(key)
        if is_kept and field not in (None, False, "", [], {}):
            message[key] = field
    if "content" not in message and not any(key in message for key in CALL_KEYS):
        message["content"] = ""
    return message


def _is_media(key: str) -> bool:
    is_media = MEDIA_KEYS.fullmatch(key) or DOCUMENT_KEYS.fullmatch(key)
    return key == RECORDED or is_media is not None


def _find_pair(value: Any) -> tuple[Any, Any] | None:
    """Return question and answer of an item that holds both; None for a message."""
    if isinstance(value, list) and len(value) == 2:
        return value[0], value[1]
    if isinstance(value, Mapping) and "role" not in value and "from" not in value:
        for asked, answered in PAIRED:
            if asked in value and answered in value:
                return value[asked], value[answered]
    return None


def _read_parts(parts: Sequence[Any], where: str) -> str | list[Any]:
    """Return the text of content parts; the parts themselves if some are no text."""
    texts: list[str] = []
    kept: list[Any] = []
    plain = True
    for n, part in enumerate(parts):
        if isinstance(part, str):
            part = {"type": "text", "text": part}
        if not isinstance(part, Mapping):
            raise BadField(f"{where}.content[{n}]", f"not a part of a message: {show(part)}")
        kind = part.get("type", "text")
        text = part.get("text")
        if text is None:  # LLaMA-Factory
            text = part.get("value")
        if kind in TEXT_PARTS and isinstance(text, str):
            texts.append(require_text(text, f"{where}.content[{n}]"))
            media = {key: field for key, field in part.items() if field and _is_media(key)}
            kept.append({"type": "text", "text": text} | media)
            plain = plain and not media
        elif kind in TEXT_PARTS:
            raise BadField(f"{where}.content[{n}]", f"a part without a text: {show(part)}")
        else:
            plain = False
            kept.append({key: field for key, field in part.items() if field is not None})
    return "".join(texts) if plain else kept


def load_messages(text: str) -> list[Any] | None:
    """Return the list of messages that a text holds, in JSON or in Python's notation; None for any
    other text."""
    start = text.lstrip()[:40]
    if not start.startswith("[") or not start[1:].lstrip().startswith("{"):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = read_literal(text)
    is_list = isinstance(value, list) and all(isinstance(item, Mapping) for item in value)
    return value if is_list and ("role" in value[0] or "from" in value[0]) else None


def read_literal(text: str) -> Any:
    """Return a value in Python's notation; None for a text that is none."""
    if len(text) > MAX_LITERAL:
        return None
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return None


def read_history(value: Any, where: str) -> list[Message]:
    """Return earlier turns: messages, or pairs of question and answer, or the text of either."""
    if isinstance(value, str):
        text = value
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = read_literal(text)
    if not isinstance(value, list):
        raise BadField(where, f"not a list of turns: {show(value)}")
    return read_messages(value, where)


def is_dialogue(text: str) -> bool:
    """Return whether a text is a dialogue of Human and Assistant, or begins one."""
    start = text[:40].lstrip()
    return start.startswith(("Human:", "Hum:")) and LAST_ANSWER in text


def read_dialogue(text: str, marks: re.Pattern[str] = HH_MARKS) -> list[Message]:
    """Return the turns of a dialogue that is written with marks, without an empty last answer.

    A text before the first mark is the user's.
    """
    opening, *parts = marks.split(text.strip())
    messages = [{"role": "user", "content": opening.strip()}] if opening.strip() else []
    for mark, turn in zip(parts[::2], parts[1::2], strict=True):
        role = "assistant" if mark == "Assistant" else "user"
        messages.append({"role": role, "content": turn.strip()})
    if messages and messages[-1] == {"role": "assistant", "content": ""}:
        messages.pop()
    return messages


def split_answer(messages: Sequence[Message]) -> tuple[list[Message], list[Message]]:
    """Return the turns before the last answer, and that answer.

    The answer is the assistant's turns at the end, with what its tools said after them. It is empty
    if the messages end with the user: then they hold a prompt alone.
    """
    end = len(messages)
    while end and messages[end - 1]["role"] not in (*GIVEN, "assistant"):
        end -= 1
    start = end
    while start and messages[start - 1]["role"] == "assistant":
        start -= 1
    if start == end:
        return list(messages), []
    return list(messages[:start]), list(messages[start:])


def answer_of(messages: Sequence[Message]) -> Any:
    """Return a response as a text if it is one text of the assistant's; else as its messages."""
    if len(messages) == 1:
        [message] = messages
        others = set(message) - {"role", "content", *THOUGHTS}
        content = message.get("content")
        if message["role"] == "assistant" and isinstance(content, str) and not others:
            return content
    return list(messages)


def thoughts_of(messages: Sequence[Message]) -> str | None:
    """Return what the policy thought, and take it out of the messages."""
    texts = []
    for message in messages:
        for key in THOUGHTS:
            thought = message.pop(key, None)
            if isinstance(thought, str):
                texts.append(thought)
    return "\n\n".join(texts) or None


def ask_sides(
    prompt: Text | None,
    sides: Sequence[Text | None],
    names: Sequence[str],
    before: Sequence[Message],
) -> Asked:
    """Return the prompt and the responses of a row.

    prompt: what the row's own column holds; None if the prompt is inside the sides. sides:
    responses, each a text or messages, with or without the prompt. names: their fields, for errors.
    before: turns that go before the prompt, such as a system turn.
    """
    if isinstance(prompt, list) and not prompt:
        prompt = None
    held = [side for side in sides if isinstance(side, list)]
    inside = any(side and side[0]["role"] in GIVEN for side in held)
    if inside and len(held) == len([side for side in sides if side is not None]):
        # The prompt inside goes before the column: the column may be only its last turn.
        turns, answers = _split_common(held, names)
        found = iter(answers)
        answered: list[Any] = [None if side is None else next(found) for side in sides]
        return _asked([*before, *turns], answered)
    answers_only: list[Any] = []
    for side, name in zip(sides, names, strict=True):
        if isinstance(side, list) and side and side[0]["role"] in GIVEN:
            side = split_answer(side)[1]
        if isinstance(side, list):
            side = _after_prompt(side, prompt)
            _require_answer(side, name)
        answers_only.append(side)
    if prompt is None:
        prompt, answers_only = _split_texts(answers_only, names)
    if isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    return _asked([*before, *prompt], answers_only)


def _asked(turns: list[Message], answers: Sequence[Any]) -> Asked:
    thoughts: list[str | None] = []
    responses: list[Any] = []
    for answer in answers:
        is_messages = isinstance(answer, list)
        thoughts.append(thoughts_of(answer) if is_messages else None)
        responses.append(answer_of(answer) if is_messages else answer)
    thoughts_of(turns)
    return Asked(prompt_of(turns), responses, thoughts)


def prompt_of(turns: list[Message]) -> Text:
    """Return a prompt as a text if it is one text of the user's; else as its messages."""
    if len(turns) == 1 and turns[0]["role"] == "user" and set(turns[0]) == {"role", "content"}:
        content = turns[0]["content"]
        if isinstance(content, str):
            return content
    return turns


def _after_prompt(side: list[Message], prompt: Text | None) -> list[Message]:
    """Return the side without the prompt that it begins with."""
    if isinstance(prompt, list) and side[: len(prompt)] == prompt:
        return side[len(prompt) :]
    return side


def _require_answer(side: Sequence[Message], name: str) -> None:
    if not side or side[-1]["role"] in GIVEN:
        raise BadField(name, "ends with a turn of the user's: the answer was left out")
    if not any(message["role"] not in GIVEN for message in side):
        raise BadField(name, f"no turn of the assistant's: {show(side)}")


def _split_common(
    sides: Sequence[list[Message]], names: Sequence[str]
) -> tuple[list[Message], list[list[Message]]]:
    """Return the turns that all sides begin with, and the rest of each."""
    for side, name in zip(sides, names, strict=False):
        _require_answer(side, name)
    if len(sides) == 1:
        turns, answer = split_answer(sides[0])
        return turns, [answer]
    shortest = min(map(len, sides)) - 1
    size = 0
    while size < shortest and all(side[size] == sides[0][size] for side in sides):
        size += 1
    # A response begins with the policy's turn.
    while size and any(side[size]["role"] in GIVEN for side in sides):
        size -= 1
    if not size:
        raise BadField(names[-1], f"its first query is another than {names[0]}'s")
    return list(sides[0][:size]), [list(side[size:]) for side in sides]


def _split_texts(texts: Sequence[Any], names: Sequence[str]) -> tuple[Text, list[Any]]:
    """Return the prompt that two texts begin with, and the rest of each."""
    if len(texts) != 2 or not all(isinstance(text, str) for text in texts):
        raise BadField(names[0] if names else "prompt", "no prompt before the response")
    if all(map(is_dialogue, texts)):
        return _split_dialogues(texts, names)
    first, second = texts
    size = 0
    shortest = min(len(first), len(second))
    while size < shortest and first[size] == second[size]:
        size += 1
    # Cut back to whole words, of which the responses keep the blank before them.
    common = first[:size]
    common = common[: max(common.rfind(blank) for blank in " \n\t") + 1].rstrip()
    if not common:
        raise BadField(names[0], f"no prompt: the texts of {' and '.join(names)} begin differently")
    return common, [text[len(common) :] for text in texts]


def _split_dialogues(texts: Sequence[str], names: Sequence[str]) -> tuple[Text, list[Any]]:
    heads: list[str] = []
    answers: list[Any] = []
    for text, name in zip(texts, names, strict=True):
        head, mark, answer = text.rpartition(LAST_ANSWER)
        if not mark:
            raise BadField(name, "the dialogue has no Assistant turn")
        heads.append(head)
        answers.append(answer.strip())
    if heads[0] != heads[1]:
        raise BadField(names[-1], "the dialogues differ before their last turn")
    turns = read_dialogue(heads[0])
    if not turns:
        raise BadField(names[0], "the dialogue has no query")
    return turns, answers
