"""From a trainer's prompts and completions to the judge's query and response."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from autoj_reward.errors import InputError

Turn = str | Sequence[Mapping[str, Any]]
"""Plain text, or the messages of a conversation."""


TEXT_PARTS = ("text", "input_text", "output_text")
"""Types of a content's parts that are read: of chat completions and of the Responses API."""


def query_text(prompt: Turn) -> str:
    """The judge's query: a plain prompt, or the one user message of a conversation, as it is.

    Several turns, or other roles than the user's, become paragraphs that open with their role
    ("User: ..."), in their order. InputError for what is neither text nor messages.
    """
    if isinstance(prompt, str):
        return prompt
    turns = [(_role(message), content_text(message)) for message in _messages(prompt)]
    if [role for role, _ in turns] == ["user"]:
        return turns[0][1]
    return "\n\n".join(f"{role.capitalize()}: {content}" for role, content in turns)


def response_text(completion: Turn) -> str:
    """The judge's response: a plain completion, or what the assistant says in its messages.
    InputError for what is neither."""
    if isinstance(completion, str):
        return completion
    said = [m for m in _messages(completion) if _role(m) == "assistant"]
    return "\n\n".join(content_text(message) for message in said)


def reply_text(completion: Turn) -> str:
    """What the assistant says last, "" if nothing; a plain completion as it is. InputError for what
    is neither text nor messages."""
    if isinstance(completion, str):
        return completion
    said = [m for m in _messages(completion) if _role(m) == "assistant"]
    return content_text(said[-1]) if said else ""


def mappings(turns: Any) -> Any:
    """Messages that are pydantic's models as mappings; anything else as it is."""
    if not isinstance(turns, Sequence) or isinstance(turns, str):
        return turns
    return [turn.model_dump() if hasattr(turn, "model_dump") else turn for turn in turns]


def content_text(message: Mapping[str, Any]) -> str:
    """The text of a message; of content in parts, the text parts. InputError for what is neither
    text nor parts."""
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        return "\n".join(_part(part) for part in content if not _other(part))
    raise InputError(f"a message's content is text or a list of parts, not {content!r:.80}")


def _other(part: Any) -> bool:
    """Is it a part of another type than text?"""
    kind = part.get("type") if isinstance(part, Mapping) else None
    return isinstance(kind, str) and kind not in TEXT_PARTS


def _part(part: Any) -> str:
    if not isinstance(part, Mapping) or "type" not in part or not isinstance(part.get("text"), str):
        raise InputError(
            f'a part of a message is {{"type": "text", "text": ...}}, not {part!r:.80}'
        )
    return str(part["text"])


def _messages(turns: Any) -> Iterable[Any]:
    if not isinstance(turns, Iterable):
        raise InputError(f"a prompt or completion is text or messages, not {turns!r:.80}")
    return turns


def _role(message: Any) -> str:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise InputError(f"not a message with a role: {message!r:.80}")
    return str(message["role"])
