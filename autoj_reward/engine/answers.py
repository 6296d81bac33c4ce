"""Readers of an OpenAI-compatible endpoint's JSON: texts, token alternatives and usage.

Every reader raises ValueError, KeyError, IndexError, TypeError or AttributeError if the JSON is not
a completion. `describe_fault` says in words what is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from autoj_reward.engine.base import Alternatives, Generation, WrittenToken
from autoj_reward.errors import EngineUnavailable
from autoj_reward.types import Usage

NO_COMPLETION = (ValueError, KeyError, IndexError, TypeError, AttributeError)
"""Exceptions of the readers."""
JSON_KINDS: dict[type, str] = {
    type(None): "null",
    bool: "true or false",
    str: "a string",
    list: "a list",
    dict: "an object",
}
NORMAL_FINISH_REASONS = {"stop": "", "length": ""}
"""Finish reasons that need no explanation: the model's own end, and `max_tokens`."""
REFUSAL_CHARS = 500
"""Characters of a refusal that a reason quotes."""


def describe_fault(error: BaseException) -> str:
    """Return what an exception of NO_COMPLETION says about the answer."""
    return f"no `{error.args[0]}`" if isinstance(error, KeyError) else str(error)


def read_generations(answer: dict[str, Any], queued_s: float) -> list[Generation]:
    """Return the answers of a completion, plain or chat.

    queued_s: seconds that the request waited for a free slot.
    """
    choices = _list_choices(answer)
    usage = read_usage(answer, queued_s, len(choices))
    return [_read_generation(choice, usage) for choice in choices]


def read_whole_generation(answer: dict[str, Any], queued_s: float) -> Generation:
    """Return the one answer of a chat completion, after reading every token's alternatives once.

    An endpoint with unreadable alternatives is thus detected by its first answer.
    """
    [generation] = read_generations(answer, queued_s)
    for token in _list_tokens(_list_choices(answer)[0]):
        _read_alternatives(token)
    return generation


def _list_choices(answer: Any) -> list[dict[str, Any]]:
    if not isinstance(answer, dict):
        raise ValueError(f"{_name_kind(answer)} in place of an object")
    choices = answer.get("choices")
    if not choices and answer.get("error"):
        raise ValueError("an error with status 200")
    if choices == []:
        raise ValueError("`choices` is empty")
    if not isinstance(choices, list):
        raise ValueError(f"`choices` is {_name_kind(choices)}, and no list of answers")
    if odd_choices := [choice for choice in choices if not isinstance(choice, dict)]:
        raise ValueError(f"a choice is {_name_kind(odd_choices[0])}, and no object")
    return choices


def _name_kind(value: Any) -> str:
    """Return the JSON kind of a value. The value itself may hold a secret that it echoes."""
    return JSON_KINDS.get(type(value), "a number")


def _read_text(message: dict[str, Any], name: str) -> str:
    """Return a text of a message; "" if it is null or missing."""
    value = message.get(name)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"`{name}` is {_name_kind(value)}, and no text")
    return value or ""


def _read_generation(choice: dict[str, Any], usage: Usage) -> Generation:
    message = choice["message"] if "message" in choice else {"content": choice["text"]}
    if not isinstance(message, dict):
        raise ValueError(f"`message` is {_name_kind(message)}, and no object")
    content = _read_text(message, "content")
    refusal = _read_text(message, "refusal")
    if "content" not in message and not refusal:
        raise KeyError("content")
    # Endpoints use two names for the model's thinking.
    thought = _read_text(message, "reasoning_content") or _read_text(message, "reasoning")
    finish_reason = str(choice.get("finish_reason"))
    ended = NORMAL_FINISH_REASONS.get(finish_reason, f"finish_reason {finish_reason:.40}")
    if refusal:
        # Only the reason gets the words: in the text, brackets in them could be read as a verdict.
        ended = f"a refusal: {refusal[:REFUSAL_CHARS]}"
    return Generation(
        content,
        finished=finish_reason == "stop",
        usage=usage,
        reasoning=thought,
        tokens=read_tokens(choice) if "message" in choice else (),
        ended=ended,
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
    tokens = _list_tokens(_list_choices(answer)[0])
    return [(_read_bytes(t), _read_alternatives(t)) for t in tokens], read_usage(
        answer, queued_s, 1
    )


def read_top_logprobs(
    answer: dict[str, Any], queued_s: float
) -> tuple[dict[str, float] | None, Usage]:
    """Return (token name to log-probability at the first token of a plain completion, usage).

    The mapping is None if the endpoint sent no log-probabilities.
    """
    logprobs = _list_choices(answer)[0].get("logprobs")
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
    if not isinstance(usage, dict):
        raise ValueError(f"`usage` is {_name_kind(usage)}, and no object")
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
    except NO_COMPLETION as error:
        raise EngineUnavailable(
            f"an answer's alternatives cannot be read: {describe_fault(error)}"
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
