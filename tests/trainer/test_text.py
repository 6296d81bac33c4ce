"""Messages in the forms of trainers, and invalid ones."""

from __future__ import annotations

from typing import Any

import pytest

from autoj_reward.conversation import Response
from autoj_reward.errors import InputError
from autoj_reward.trainer.prompts import query_text


def make_messages(content: Any, role: str = "assistant") -> list[Any]:
    return [{"role": role, "content": content}]


TEXTS: dict[str, tuple[Any, str]] = {
    "text": ("Why?", "Why?"),
    "nothing": (None, ""),
    "parts": ([{"type": "text", "text": "Why"}, {"type": "text", "text": "so?"}], "Why\nso?"),
    "thoughts": (
        [{"type": "thinking", "thinking": "so"}, {"type": "text", "text": "Why?"}],
        "Why?",
    ),
    "tools": (
        [{"type": "text", "text": "Why?"}, {"type": "tool_use", "name": "f", "input": {}}],
        "Why?",
    ),
    "a refusal": ([{"type": "refusal", "refusal": "no"}], ""),
    "parts of the Responses API": (
        [{"type": "input_text", "text": "Why"}, {"type": "output_text", "text": "so?"}],
        "Why\nso?",
    ),
}


@pytest.mark.parametrize("case", TEXTS)
def test_what_a_message_says(case: str) -> None:
    content, text = TEXTS[case]
    assert query_text(make_messages(content, "user")) == text
    assert Response.of(make_messages(content), "assistant").text == text


WRONG: dict[str, tuple[Any, str]] = {
    "content is a number": (make_messages(5), "not 5"),
    "a part without text": (make_messages([{"type": "text"}]), "not {'type': 'text'}"),
    "a part whose text is none": (make_messages([{"type": "text", "text": 5}]), "'text': 5"),
    "a part that is no part": (make_messages(["Why?"]), "not 'Why\\?'"),
    "a part without a type": (make_messages([{"text": "Why?"}]), "not {'text': 'Why\\?'}"),
    "no role": ([{"content": "Why?"}], "not a message with a role"),
    "no message": (["Why?"], "not a message with a role"),
    "no messages": (5, "text or messages, not 5"),
    "none": (None, "text or messages, not None"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_message_is_named(case: str) -> None:
    turns, words = WRONG[case]
    with pytest.raises(InputError, match=words):
        query_text(turns)
    with pytest.raises(InputError, match=words):
        Response.of(turns, "assistant")
