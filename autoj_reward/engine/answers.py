"""What the JSON of an OpenAI-compatible endpoint says: texts, alternatives of tokens, costs.

Every reader raises ValueError, KeyError, IndexError, TypeError or AttributeError for an answer that
is no completion.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from autoj_reward.engine.base import Alternatives, Generation, WrittenToken
from autoj_reward.errors import EngineUnavailable
from autoj_reward.types import Usage

ENDS = {"stop": "", "length": ""}
"""Ends of a text that need no words: its own, and max_tokens."""


def read_generations(answer: dict[str, Any], queued_s: float) -> list[Generation]:
    """Return the answers of a completion, chat or plain. queued_s: its wait for a free request."""
    choices = answer["choices"]
    if not choices:
        raise ValueError("no choices")
    usage = read_usage(answer, queued_s, len(choices))
    return [_generation(choice, usage) for choice in choices]


def read_whole_generation(answer: dict[str, Any], queued_s: float) -> Generation:
    """Return the one answer of a chat completion, with the alternatives of every token read once,
    so that an endpoint whose alternatives cannot be read is known by its first answer."""
    [own] = read_generations(answer, queued_s)
    for token in _told(answer["choices"][0]):
        _alternatives(token)
    return own


def _generation(choice: dict[str, Any], usage: Usage) -> Generation:
    message = choice.get("message") or {}
    text = (message["content"] or "") if "message" in choice else choice["text"]
    # Endpoints have two names for what a model thought.
    thought = message.get("reasoning_content") or message.get("reasoning") or ""
    if not isinstance(text, str) or not isinstance(thought, str):
        raise ValueError("no text")
    why = str(choice.get("finish_reason"))
    return Generation(
        text,
        finished=why == "stop",
        usage=usage,
        reasoning=thought,
        tokens=read_tokens(choice) if "message" in choice else (),
        ended=ENDS.get(why, f"finish_reason {why:.40}"),
    )


def read_tokens(choice: dict[str, Any]) -> tuple[WrittenToken, ...]:
    """Return the tokens of a chat choice with their alternatives; () where none are told."""
    return tuple(
        WrittenToken(_bytes(one), partial(_alternatives_or_error, one)) for one in _told(choice)
    )


def read_next_tokens(
    answer: dict[str, Any], queued_s: float
) -> tuple[list[tuple[bytes, Alternatives]], Usage]:
    """Return each token of a chat answer with its alternatives, [] where none are told, and the
    cost."""
    told = _told(answer["choices"][0])
    return [(_bytes(one), _alternatives(one)) for one in told], read_usage(answer, queued_s, 1)


def read_top_logprobs(
    answer: dict[str, Any], queued_s: float
) -> tuple[dict[str, float] | None, Usage]:
    """Return the log-probabilities at the first token of a plain completion by the token's name,
    None where none are told, and the cost."""
    told = answer["choices"][0].get("logprobs")
    if not told or not told.get("top_logprobs"):
        return None, read_usage(answer, queued_s, 1)
    top = {str(token): _logprob(logprob) for token, logprob in told["top_logprobs"][0].items()}
    return top, read_usage(answer, queued_s, 1)


def read_usage(answer: dict[str, Any], queued_s: float, share: int) -> Usage:
    """Return the cost of one of so many answers."""
    told = answer.get("usage") or {}
    cached = (told.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return Usage(
        (told.get("prompt_tokens") or 0) // share,
        cached // share,
        (told.get("completion_tokens") or 0) // share,
        queued_s=queued_s,
    )


def _told(choice: dict[str, Any]) -> Sequence[dict[str, Any]]:
    """The tokens of a chat choice as JSON has them; () where none are told."""
    return (choice.get("logprobs") or {}).get("content") or ()


def _alternatives_or_error(token: dict[str, Any]) -> Alternatives:
    try:
        return _alternatives(token)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise EngineUnavailable(
            f"an answer's alternatives cannot be read: {type(error).__name__}: {error}"
        ) from error


def _alternatives(token: dict[str, Any]) -> Alternatives:
    return tuple((_bytes(one), _logprob(one["logprob"])) for one in token["top_logprobs"])


def _bytes(token: dict[str, Any]) -> bytes:
    """A token as UTF-8. Its bytes tell a character that several tokens share; text does not."""
    raw = token.get("bytes")
    return bytes(raw) if raw is not None else str(token["token"]).encode("utf-8", "replace")


def _logprob(value: Any) -> float:
    found = float(value)
    if not found <= 1e-6:  # NaN is none either
        raise ValueError(f"{found} is no log-probability")
    return min(0.0, found)
