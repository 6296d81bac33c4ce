"""Readers of an OpenAI-compatible endpoint's JSON: texts, token alternatives and usage.

Every reader raises an exception of NO_COMPLETION if the JSON is not a completion. `describe_fault`
says in words what is wrong. What differs between endpoints is in tables: words for an end, kinds of
content, names of the fields of thinking.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any

from autoj_reward.engine.base import Alternatives, Generation, WrittenToken
from autoj_reward.errors import EngineUnavailable
from autoj_reward.types import Usage


class BadAnswer(ValueError):
    """An answer that is no completion, with the reason in words."""


class ErrorAnswer(BadAnswer):
    """An error in an answer with status 200."""

    def __init__(self, words: str, content: Any) -> None:
        super().__init__(words)
        self.content = content
        """The error, as JSON data."""
        code = content.get("code") if isinstance(content, dict) else None
        text = str(code) if isinstance(code, int | str) else ""
        self.status = int(text) if text.isascii() and text.isdigit() and len(text) == 3 else 0
        """HTTP status that the error names; 0 if it names none."""


NO_COMPLETION = (ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError)
"""Exceptions of the readers."""
JSON_KINDS: dict[type, str] = {
    type(None): "null",
    bool: "true or false",
    str: "a string",
    list: "a list",
    dict: "an object",
}


class End(Enum):
    """How a text ended."""

    NORMAL = "the model ended it"
    LIMIT = "it reached the limit of its tokens"
    STOPPED = "something else ended it"
    FAULT = "the endpoint failed"


_ENDS: Mapping[End, tuple[str, ...]] = {
    End.NORMAL: (
        "complete", "completed", "done", "end", "end_of_text", "end_of_turn", "end_turn", "eos",
        "eos_token", "eot", "finish", "finished", "function_call", "model_stop", "natural",
        "none", "normal", "null", "ok", "stop", "stop_sequence", "stop_token", "stopped",
        "success", "tool_call", "tool_calls", "tool_use", "unspecified",
        "finish_reason_unspecified", "finish_reason_stop", "endoftext", "",
    ),
    End.LIMIT: (
        "length", "max_tokens", "max_token", "max_output_tokens", "max_new_tokens", "max_length",
        "max_completion_tokens", "token_limit", "limit", "model_length", "truncated",
        "model_context_window_exceeded", "context_length_exceeded", "context_window_exceeded",
        "finish_reason_max_tokens", "incomplete",
    ),
    End.STOPPED: (
        "blocked", "blocklist", "content_filter", "content_filtered", "content_policy_violation",
        "error_toxic", "filtered", "guardrail_intervened", "guardrails", "harmful",
        "image_safety", "language", "malformed_function_call", "malformed_tool_call",
        "moderation", "other", "pause_turn", "prohibited_content", "recitation", "refusal",
        "refused", "repetition", "safety", "sensitive", "spii", "unexpected_tool_call",
    ),
    End.FAULT: (
        "abort", "aborted", "cancel", "canceled", "cancelled", "error", "failed", "failure",
        "insufficient_system_resource", "interrupted", "internal_error", "network_error",
        "overloaded", "rate_limit", "server_error", "timeout", "unavailable", "user_cancel",
    ),
}  # fmt: skip
"""Words for an end, in small letters. Other words are unknown."""
END_OF: Mapping[str, End] = {word: end for end, words in _ENDS.items() for word in words}
SILENT_ENDS = (End.NORMAL, End.LIMIT)
"""Ends that need no explanation."""
REFUSAL_CHARS = 500
"""Characters of a refusal that a reason quotes."""

TEXT, THINKING, REFUSAL, SKIPPED = "text", "thinking", "refusal", "skipped"
KIND_OF_PART: Mapping[str, str] = {
    "text": TEXT,
    "output_text": TEXT,
    "input_text": TEXT,
    "answer": TEXT,
    "thinking": THINKING,
    "thought": THINKING,
    "thoughts": THINKING,
    "reasoning": THINKING,
    "reasoning_content": THINKING,
    "reasoning_text": THINKING,
    "reasoning.text": THINKING,
    "reasoning.summary": THINKING,
    "summary_text": THINKING,
    "redacted_thinking": THINKING,
    "reasoning.encrypted": SKIPPED,
    "refusal": REFUSAL,
}
"""What a part of a content is, by its `type`. Others, such as tool calls, are no text."""
PART_FIELDS = (
    "text", "thinking", "reasoning", "refusal", "summary", "content", "reasoning_content", "parts",
)  # fmt: skip
"""Fields of a part that may hold its text, or parts inside it."""
THINKING_FIELDS = (
    "reasoning_content", "reasoning", "reasoning_details", "thinking", "thinking_blocks",
    "reasoning_text", "thought", "thoughts",
)  # fmt: skip
"""Fields of a message in which endpoints return the model's thinking. Some fill several with the
same text, so the first one with a text counts."""
MAX_DEPTH = 6
"""How deep parts may lie in parts."""


def describe_fault(error: BaseException) -> str:
    """Return what an exception of NO_COMPLETION says about the answer."""
    if isinstance(error, KeyError):
        return f"no `{error.args[0]}`"
    return str(error) if isinstance(error, BadAnswer) else "its shape is unknown"


def read_generations(
    answer: Any, queued_s: float, limit: int | None = None, needs_text: bool = False
) -> list[Generation]:
    """Return the answers of a completion, plain or chat.

    queued_s: seconds that the request waited for a free slot. limit: tokens that an answer may have
    at most, if known. needs_text: whether an answer without anything, not even thinking or a
    refusal, is a fault.
    """
    choices = _list_choices(answer)
    usage = read_usage(answer, queued_s, len(choices))
    return [_read_generation(choice, usage, limit, needs_text) for choice in choices]


def read_whole_generation(answer: Any, queued_s: float) -> Generation:
    """Return the one answer of a chat completion, after reading every token's alternatives once.

    An endpoint with unreadable alternatives is thus detected by its first answer.
    """
    generations = read_generations(answer, queued_s)
    if len(generations) != 1:
        raise BadAnswer(f"{len(generations)} answers in place of 1")
    for token in _list_tokens(_list_choices(answer)[0]):
        _read_alternatives(token)
    return generations[0]


def _list_choices(answer: Any) -> list[dict[str, Any]]:
    if not isinstance(answer, dict):
        raise BadAnswer(f"{_name_kind(answer)} in place of an object")
    choices = answer.get("choices")
    if not choices and (answer.get("error") or "choices" not in answer):
        raise ErrorAnswer("an error with status 200", answer.get("error") or answer)
    if choices == []:
        raise BadAnswer("`choices` is empty")
    if not isinstance(choices, list):
        raise BadAnswer(f"`choices` is {_name_kind(choices)}, and no list of answers")
    if odd_choices := [choice for choice in choices if not isinstance(choice, dict)]:
        raise BadAnswer(f"a choice is {_name_kind(odd_choices[0])}, and no object")
    return choices


def _name_kind(value: Any) -> str:
    """Return the JSON kind of a value. The value itself may hold a secret that it echoes."""
    return JSON_KINDS.get(type(value), "a number")


def read_parts(value: Any, name: str) -> dict[str, str]:
    """Return the texts of a content by their kind: TEXT, THINKING and REFUSAL.

    The content may be a text, an object, or a list of both. Raises BadAnswer naming `name` for
    another JSON value.
    """
    found = {TEXT: "", THINKING: "", REFUSAL: ""}
    if isinstance(value, str):
        found[TEXT] = value
    elif value is not None:
        if not isinstance(value, list | dict):
            raise BadAnswer(f"`{name}` is {_name_kind(value)}, and no text")
        _collect_parts(value, TEXT, found, MAX_DEPTH)
    return found


def _collect_parts(value: Any, kind: str, found: dict[str, str], depth: int) -> None:
    """Add the texts of a part to those of its kind.

    kind: that of the part around it. A thought's text is thinking, whatever its own type says.
    """
    if isinstance(value, str):
        found[kind] += value
    elif isinstance(value, list) and depth:
        for part in value:
            _collect_parts(part, kind, found, depth - 1)
    elif isinstance(value, dict) and depth:
        if kind == TEXT:
            own_type = str(value.get("type", TEXT)).lower()
            kind = KIND_OF_PART.get(own_type, SKIPPED)
            # Google marks a part that is a thought by a flag.
            kind = THINKING if value.get("thought") is True else kind
        name = next((name for name in PART_FIELDS if value.get(name)), None)
        if kind != SKIPPED and name:
            _collect_parts(value[name], kind, found, depth - 1)


def _read_thinking(message: dict[str, Any]) -> str:
    """Return the thinking that a message holds apart from its content. One of an unknown shape is
    left out: it is no verdict, and the content is."""
    for name in THINKING_FIELDS:
        value = message.get(name)
        if isinstance(value, str) and value:
            return value
        if isinstance(value, list | dict):
            found = {TEXT: "", THINKING: "", REFUSAL: "", SKIPPED: ""}
            _collect_parts(value, THINKING, found, MAX_DEPTH)
            if found[THINKING]:
                return found[THINKING]
    return ""


def _read_generation(
    choice: dict[str, Any], usage: Usage, limit: int | None, needs_text: bool
) -> Generation:
    is_chat = "message" in choice
    message = choice["message"] if is_chat else {"content": choice["text"]}
    if not isinstance(message, dict):
        raise BadAnswer(f"`message` is {_name_kind(message)}, and no object")
    parts = read_parts(message.get("content"), "content")
    text = parts[TEXT]
    refusal = parts[REFUSAL]
    if message.get("refusal"):
        refusal = read_parts(message["refusal"], "refusal")[TEXT]
    thought = "\n\n".join(filter(None, (_read_thinking(message), parts[THINKING])))
    tool = _find_called_tool(message)
    has_more = bool(refusal or thought or tool)
    if "content" not in message and not has_more:
        raise KeyError("content")
    reason = choice.get("finish_reason")
    word = "" if reason is None else str(reason)
    end = END_OF.get(word.rpartition(".")[2].lower())
    if end is End.FAULT or choice.get("error"):
        error = choice.get("error") or {}
        raise ErrorAnswer(f"an error in the choice, finish_reason {word:.40}", error)
    size = usage.tokens_out or len(text) // 3
    is_below_limit = limit is None or size < limit
    # Without a word, only the number of tokens tells whether the limit ended the text.
    finished = end is End.NORMAL and (bool(word) or is_below_limit)
    if needs_text and finished and not text.strip() and not has_more:
        raise BadAnswer("an empty text, without thinking and without a refusal")
    ended = "" if end in SILENT_ENDS else f"finish_reason {word:.40}"
    if refusal:
        # Only the reason gets the words: in the text, brackets in them could be read as a verdict.
        ended = f"a refusal: {refusal[:REFUSAL_CHARS]}"
    elif tool and not text.strip():
        ended = f"a call of the tool {tool[:40]!r}, and no text"
    return Generation(
        text,
        finished=finished,
        usage=usage,
        reasoning=thought,
        tokens=read_tokens(choice) if is_chat else (),
        ended=ended,
        unknown_end=word if end is None and is_below_limit else "",
    )


def _find_called_tool(message: dict[str, Any]) -> str:
    """Return the name of the first tool that a message calls; "" if it calls none."""
    calls = message.get("tool_calls") or message.get("function_call")
    call = calls[0] if isinstance(calls, list) and calls else calls
    if not isinstance(call, dict):
        return ""
    function = call.get("function")
    function = function if isinstance(function, dict) else call
    return str(function.get("name") or "without a name")


def read_tokens(choice: dict[str, Any]) -> tuple[WrittenToken, ...]:
    """Return the tokens of a choice with their alternatives; () if the endpoint sent none."""
    return tuple(
        WrittenToken(_read_bytes(token), partial(_read_alternatives_or_raise, token))
        for token in _list_tokens(choice)
    )


def read_next_tokens(
    answer: Any, queued_s: float
) -> tuple[list[tuple[bytes, Alternatives]], Usage]:
    """Return (each token of an answer with its alternatives, usage).

    The list is empty if the endpoint sent no tokens.
    """
    tokens = _list_tokens(_list_choices(answer)[0])
    return [(_read_bytes(t), _read_alternatives(t)) for t in tokens], read_usage(
        answer, queued_s, 1
    )


def read_top_logprobs(answer: Any, queued_s: float) -> tuple[dict[str, float] | None, Usage]:
    """Return (token name to log-probability at the first token of an answer, usage).

    The mapping is None if the endpoint sent no log-probabilities.
    """
    usage = read_usage(answer, queued_s, 1)
    tokens = _list_tokens(_list_choices(answer)[0])
    if not tokens:
        return None, usage
    return {
        _name_token(token): _read_logprob(token.get("logprob"))
        for token in _list_alternatives(tokens[0])
    }, usage


def _name_token(token: dict[str, Any]) -> str:
    """Return a token's name. One with an id is named as vLLM names ids."""
    return f"token_id:{token['id']}" if isinstance(token.get("id"), int) else str(token["token"])


def read_usage(answer: dict[str, Any], queued_s: float, share: int) -> Usage:
    """Return one answer's share of a request's usage. A count that is none is 0.

    share: the number of answers in the request.
    """
    usage = answer.get("usage") or {}
    if not isinstance(usage, dict):
        raise BadAnswer(f"`usage` is {_name_kind(usage)}, and no object")
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else 0
    return Usage(
        _read_count(usage.get("prompt_tokens")) // share,
        _read_count(cached) // share,
        _read_count(usage.get("completion_tokens")) // share,
        queued_s=queued_s,
    )


def _read_count(value: Any) -> int:
    is_count = type(value) in (int, float) and 0 <= value < 2**53
    return int(value) if is_count else 0


def _list_tokens(choice: dict[str, Any]) -> Sequence[dict[str, Any]]:
    """Return the tokens of a choice as chat answers list them; () if there are none.

    Both layouts are read from any answer: some servers give one for the other.
    """
    logprobs = choice.get("logprobs")
    if not isinstance(logprobs, dict):
        return ()
    content = logprobs.get("content")
    if isinstance(content, list):
        return [token for token in content if isinstance(token, dict)]
    tables = logprobs.get("top_logprobs")
    if not isinstance(tables, list):
        return ()
    texts = logprobs.get("tokens")
    texts = texts if isinstance(texts, list) else []
    tokens = []
    for place, table in enumerate(tables):
        pairs = table.items() if isinstance(table, dict) else ()
        alternatives = [{"token": name, "logprob": logprob} for name, logprob in pairs]
        text = texts[place] if place < len(texts) else ""
        tokens.append({"token": text, "top_logprobs": alternatives})
    # An empty table is what an endpoint sends that tells nothing.
    return tokens if tables and tables[0] else ()


def _read_alternatives_or_raise(token: dict[str, Any]) -> Alternatives:
    try:
        return _read_alternatives(token)
    except NO_COMPLETION as error:
        raise EngineUnavailable(
            f"an answer's alternatives cannot be read: {describe_fault(error)}"
        ) from error


def _read_alternatives(token: dict[str, Any]) -> Alternatives:
    return tuple(
        (_read_bytes(alternative), _read_logprob(alternative.get("logprob")))
        for alternative in _list_alternatives(token)
    )


def _list_alternatives(token: dict[str, Any]) -> Sequence[dict[str, Any]]:
    """Return the alternatives at a token; the token alone where no others are told."""
    alternatives = token.get("top_logprobs") or [token]
    if not isinstance(alternatives, list):
        raise BadAnswer(f"`top_logprobs` is {_name_kind(alternatives)}, and no list")
    if odd := [one for one in alternatives if not isinstance(one, dict)]:
        raise BadAnswer(f"an alternative is {_name_kind(odd[0])}, and no object")
    return alternatives


def _read_bytes(token: dict[str, Any]) -> bytes:
    """Return a token as UTF-8 bytes.

    Only its `bytes` show a character that spans several tokens; its text does not.
    """
    raw = token.get("bytes")
    if raw is None:
        return str(token["token"]).encode("utf-8", "replace")
    try:
        return bytes(raw)
    except (TypeError, ValueError):
        raise BadAnswer("the bytes of a token are none") from None


def _read_logprob(value: Any) -> float:
    if value is None:  # JSON has no infinity
        return -math.inf
    if not isinstance(value, int | float):
        raise BadAnswer(f"a log-probability is {_name_kind(value)}")
    if not value <= 1e-6:  # also true for NaN
        raise BadAnswer(f"{value} is no log-probability")
    return min(0.0, float(value))
