"""Readers of an OpenAI-compatible endpoint's JSON: texts, token alternatives and usage.

Every reader raises ValueError, KeyError, IndexError, TypeError or AttributeError if the JSON is not
a completion.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from autoj_reward.engine.base import Alternatives, Generation, WrittenToken
from autoj_reward.errors import EngineUnavailable
from autoj_reward.types import Usage

NORMAL_FINISH_REASONS = {"stop": "", "length": ""}
"""Finish reasons that need no explanation: the model's own end, and `max_tokens`."""


def read_generations(answer: dict[str, Any], queued_s: float) -> list[Generation]:
    """Return the answers of a completion, plain or chat.

    queued_s: seconds that the request waited for a free slot.
    """
    choices = answer["choices"]
    if not choices:
        raise ValueError("no choices")
    usage = read_usage(answer, queued_s, len(choices))
    return [_read_generation(choice, usage) for choice in choices]


def read_whole_generation(answer: dict[str, Any], queued_s: float) -> Generation:
    """Return the one answer of a chat completion, after reading every token's alternatives once.

    An endpoint with unreadable alternatives is thus detected by its first answer.
    """
    [generation] = read_generations(answer, queued_s)
    for token in _list_tokens(answer["choices"][0]):
        _read_alternatives(token)
    return generation


def _read_generation(choice: dict[str, Any], usage: Usage) -> Generation:
    message = choice.get("message") or {}
    text = (message["content"] or "") if "message" in choice else choice["text"]
    # Endpoints use two names for the model's thinking.
    thought = message.get("reasoning_content") or message.get("reasoning") or ""
    if not isinstance(text, str) or not isinstance(thought, str):
        raise ValueError("no text")
    finish_reason = str(choice.get("finish_reason"))
    return Generation(
        text,
        finished=finish_reason == "stop",
        usage=usage,
        reasoning=thought,
        tokens=read_tokens(choice) if "message" in choice else (),
        ended=NORMAL_FINISH_REASONS.get(finish_reason, f"finish_reason {finish_reason:.40}"),
    )


def read_tokens(choice: dict[str, Any]) -> tuple[WrittenToken, ...]:
    """Return the tokens of a chat choice with their alternatives; () if the endpoint sent none."""
    return tuple(
        WrittenToken(_read_bytes(token), partial(_read_alternatives_or_raise, token))
        for token in _list_tokens(choice)
    )


def read_next_tokens(
    answer: dict[str, Any], queued_s: float
) -> tuple[list[tuple[bytes, Alternatives]], Usage]:
    """Return (each token of a chat answer with its alternatives, usage).

    The list is empty if the endpoint sent no tokens.
    """
    tokens = _list_tokens(answer["choices"][0])
    return [(_read_bytes(t), _read_alternatives(t)) for t in tokens], read_usage(
        answer, queued_s, 1
    )


def read_top_logprobs(
    answer: dict[str, Any], queued_s: float
) -> tuple[dict[str, float] | None, Usage]:
    """Return (token name to log-probability at the first token of a plain completion, usage).

    The mapping is None if the endpoint sent no log-probabilities.
    """
    logprobs = answer["choices"][0].get("logprobs")
    if not logprobs or not logprobs.get("top_logprobs"):
        return None, read_usage(answer, queued_s, 1)
    top = {
        str(token): _read_logprob(logprob) for token, logprob in logprobs["top_logprobs"][0].items()
    }
    return top, read_usage(answer, queued_s, 1)


def read_usage(answer: dict[str, Any], queued_s: float, share: int) -> Usage:
    """Return one answer's share of a request's usage.

    share: the number of answers in the request.
    """
    usage = answer.get("usage") or {}
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return Usage(
        (usage.get("prompt_tokens") or 0) // share,
        cached // share,
        (usage.get("completion_tokens") or 0) // share,
        queued_s=queued_s,
    )


def _list_tokens(choice: dict[str, Any]) -> Sequence[dict[str, Any]]:
    """Return the tokens of a chat choice as JSON objects; () if there are none."""
    return (choice.get("logprobs") or {}).get("content") or ()


def _read_alternatives_or_raise(token: dict[str, Any]) -> Alternatives:
    try:
        return _read_alternatives(token)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise EngineUnavailable(
            f"an answer's alternatives cannot be read: {type(error).__name__}: {error}"
        ) from error


def _read_alternatives(token: dict[str, Any]) -> Alternatives:
    return tuple(
        (_read_bytes(alternative), _read_logprob(alternative["logprob"]))
        for alternative in token["top_logprobs"]
    )


def _read_bytes(token: dict[str, Any]) -> bytes:
    """Return a token as UTF-8 bytes.

    Only its `bytes` show a character that spans several tokens; its text does not.
    """
    raw = token.get("bytes")
    return bytes(raw) if raw is not None else str(token["token"]).encode("utf-8", "replace")


def _read_logprob(value: Any) -> float:
    logprob = float(value)
    if not logprob <= 1e-6:  # also true for NaN
        raise ValueError(f"{logprob} is no log-probability")
    return min(0.0, logprob)
