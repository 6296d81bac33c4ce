"""From a trainer's prompts and completions to the judge's query and response."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from autoj_reward.context import NOTHING
from autoj_reward.conversation import message_text, plain, turns_of
from autoj_reward.errors import InputError
from autoj_reward.types import Candidate, after

Turn = str | Sequence[Mapping[str, Any]]
"""Plain text, or the messages of a conversation."""


def query_text(prompt: Turn) -> str:
    """The judge's query: a plain prompt, or the one user message of a conversation, as it is.

    Several turns, or other roles than the user's, become paragraphs that open with their role
    ("User: ..."), in their order. InputError for what is neither text nor messages.
    """
    return prompt if isinstance(prompt, str) else plain(turns_of(prompt))


def candidate(prompt: Turn, response: str, context: Mapping[str, str] = NOTHING) -> Candidate:
    """The judge's candidate: a response to a plain prompt, or to a conversation, whose turns may be
    in any order. InputError for what is neither text nor messages."""
    if isinstance(prompt, str):
        return Candidate(prompt, response, context=context)
    return after(turns_of(prompt), response, context)


def response_text(completion: Turn) -> str:
    """Return the judge's response: a plain completion, or what the assistant says in its messages,
    the tools that it calls included. InputError for what is neither."""
    if isinstance(completion, str):
        return completion
    said = [m for m in _messages(completion) if _role(m) == "assistant"]
    return "\n\n".join(filter(None, map(message_text, said)))


def reply_text(completion: Turn) -> str:
    """What the assistant says last, "" if nothing; a plain completion as it is. InputError for what
    is neither text nor messages."""
    if isinstance(completion, str):
        return completion
    said = [m for m in _messages(completion) if _role(m) == "assistant"]
    return message_text(said[-1]) if said else ""


def mappings(turns: Any) -> Any:
    """Messages that are pydantic's models as mappings; anything else as it is."""
    if not isinstance(turns, Sequence) or isinstance(turns, str):
        return turns
    return [turn.model_dump() if hasattr(turn, "model_dump") else turn for turn in turns]


def _messages(turns: Any) -> Iterable[Any]:
    if not isinstance(turns, Iterable):
        raise InputError(f"a prompt or completion is text or messages, not {turns!r:.80}")
    return turns


def _role(message: Any) -> str:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise InputError(f"not a message with a role: {message!r:.80}")
    return str(message["role"])
