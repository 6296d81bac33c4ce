"""Messages as chat APIs and datasets have them, those that are no conversation, and contexts."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from autoj_reward.conversation import (
    EMPTY_CONTEXT,
    MAX_TURNS,
    Context,
    Prompt,
    Response,
    Turn,
    before_response,
    messages_of,
    to_plain_text,
    turns_of,
)
from autoj_reward.errors import BadMessages
from autoj_reward.journal import judgement_key
from autoj_reward.types import Candidate, JudgeInput, Pair


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


SYSTEM = {"role": "developer", "content": "Be brief."}
CALL = {"type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}
TOOLS = [
    user("2+2?"),
    assistant(None, tool_calls=[CALL, {"name": "log", "arguments": {"to": "ü"}}]),
    {"role": "tool", "name": "add", "content": [{"type": "text", "text": "4"}]},
]


def test_tools_and_parts_are_read() -> None:
    prompt, response = before_response([SYSTEM, *TOOLS, assistant("4")], answered=False)
    assert response == Response("4")
    assert prompt.turns == (
        Turn("system", "Be brief."),
        Turn("user", "2+2?"),
        Turn("assistant", '[calls add {"a": 2}]\n[calls log {"to": "ü"}]'),
        Turn("tool", "4"),
    )
    assert Prompt.of(messages_of(prompt.turns)) == prompt
    assert to_plain_text(prompt.turns[1:]).startswith("User: 2+2?\n\nAssistant: [calls add")


ENDS: dict[str, tuple[list[Any], bool, int, str | None]] = {
    "the last turn is rated": ([user("a"), assistant("b")], False, 1, "b"),
    "the last of several": (
        [user("a"), assistant("b"), user("c"), assistant("d")], False, 3, "d"
    ),
    "what follows it is not shown": ([user("a"), assistant("b"), user("c")], False, 1, "b"),
    "an empty answer is an answer": ([user("a"), assistant("")], False, 1, ""),
    "a response from elsewhere": ([user("a"), assistant("b"), user("c")], True, 3, None),
    "in place of the last turn": ([user("a"), assistant("b")], True, 1, "b"),
}  # fmt: skip


@pytest.mark.parametrize("case", ENDS)
def test_what_is_rated(case: str) -> None:
    messages, answered, count, response = ENDS[case]
    prompt, last_turn = before_response(messages, answered)
    assert len(prompt.as_turns) == count
    assert last_turn == (None if response is None else Response(response))


BAD: dict[str, tuple[Any, str, str]] = {
    "no assistant": ([user("a")], "", "no turn of the assistant"),
    "nothing": ([], "", "no turn of the assistant"),
    "no user": ([SYSTEM, assistant("a")], "[1].role", "the assistant's after one of the system's"),
    "assistant first": ([assistant("a")], "[0].role", "the assistant's at the start, not system"),
    "two users": ([user("a"), user("b")], "[1].role", "not assistant"),
    "a late system turn": ([user("a"), SYSTEM], "[1].role", "out of order"),
    "a tool nobody called": ([user("a"), TOOLS[2]], "[1].role", "out of order"),
    "unknown role": ([user("a"), {"role": "bot", "content": "b"}], "[1].role", "role 'bot'"),
    "no role": ([{"role": "", "content": "b"}], "[0].role", "unknown role ''"),
    "blank": ([user(" \n"), assistant("b")], "[0].content", "blank"),
    "nothing said": (
        [user("a"), assistant(None), user("c"), assistant("b")], "[1].content", "blank"
    ),
    "content": ([user(5)], "[0].content", "not 5"),
    "calls": ([user("a"), assistant("", tool_calls="add")], "[1].tool_calls", "not a list"),
    "a call": ([user("a"), assistant("", tool_calls=[{}])], "[1].tool_calls[0]", "with a name"),
    "a text": ("abc", "[0]", "not a message with a role"),
    "too many": ([user("a"), assistant("b")] * MAX_TURNS, "", "2048 messages"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_conversation_is_named(case: str) -> None:
    messages, where, reason = BAD[case]
    with pytest.raises(BadMessages, match=reason.replace("[", r"\[")) as caught:
        before_response(messages, answered=False)
    assert caught.value.where == where


def test_a_candidate_of_messages() -> None:
    candidate = Candidate.of([user("a"), assistant("b")])
    assert candidate == Candidate("a", "b")
    several = Candidate.of(
        [user("a"), assistant("b"), user("c"), assistant("d")], {"reference": "e"}
    )
    assert several.prompt.text == "User: a\n\nAssistant: b\n\nUser: c"
    assert (several.response.text, several.context["reference"]) == ("d", "e")
    [item, _] = Pair(several.prompt, "d", "e", several.context).inputs()
    assert item.prompt.text == several.prompt.text
    assert item.record()["messages"] == [user("a"), assistant("b"), user("c")]
    assert "query" not in item.record()


def test_what_is_asked_last() -> None:
    prompt = Prompt.of([user("a"), assistant("b"), user("c"), assistant("d")])
    assert prompt.last_user_text == "c" and Prompt("all").last_user_text == "all"


def test_a_text_that_reads_like_a_conversation_is_another_input() -> None:
    turns = turns_of([user("a"), assistant("b"), user("c")])
    conversation = JudgeInput("single", Prompt.of(turns), ("r",))
    forged = JudgeInput("single", to_plain_text(turns), ("r",))
    assert conversation.prompt.text == forged.prompt.text and conversation != forged
    assert judgement_key("j", conversation) != judgement_key("j", forged)
    assert judgement_key("j", JudgeInput("single", Prompt.of(turns[:1]), ("r",))) == (
        judgement_key("j", JudgeInput("single", "a", ("r",)))
    )


def test_a_context_is_a_frozen_mapping_whatever_its_order() -> None:
    context, reordered = (
        Context({"rubric": "b", "reference": "a"}),
        Context({"reference": "a", "rubric": "b"}),
    )
    assert (
        context == reordered
        and hash(context) == hash(reordered)
        and dict(context) == {"reference": "a", "rubric": "b"}
    )
    assert (
        context != Context({"reference": "a"})
        and context["rubric"] == "b"
        and list(reordered) == list(context)
    )
    assert pickle.loads(pickle.dumps(context)) == context
    assert not EMPTY_CONTEXT and len(context) == 2
    with pytest.raises(AttributeError):
        context.texts = ()  # type: ignore[misc]
    with pytest.raises(KeyError):
        context["criteria"]


@pytest.mark.parametrize(
    ("context", "error", "words"),
    [
        pytest.param({"query": "x"}, ValueError, "query", id="a part of the input itself"),
        pytest.param({"the answer": "x"}, ValueError, "the answer", id="no name"),
        pytest.param({"": "x"}, ValueError, "''", id="empty name"),
        pytest.param({"reference": 42}, TypeError, "42", id="a number"),
        pytest.param({"reference": None}, TypeError, "None", id="nothing"),
    ],
)
def test_what_is_no_context(context: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Candidate("q", "r", context=context)


def test_records_freeze_what_they_are_given() -> None:
    context = {"reference": "a"}
    candidate, item = (
        Candidate("q", "r", context=context),
        JudgeInput("single", "q", ("r",), context=context),
    )
    context["reference"] = "b"
    assert candidate.context == item.context == Context({"reference": "a"})
    assert len({item, JudgeInput("single", "q", ("r",), context={"reference": "a"})}) == 1
    assert item != JudgeInput("single", "q", ("r",))
    assert item.untrusted == ("q", "r", "a")
    pair = Pair("q", "a", "b")
    assert pair == Pair(Prompt("q"), Response("a"), Response("b"), EMPTY_CONTEXT)


def test_a_record_tells_only_what_there_is() -> None:
    assert JudgeInput("single", "q", ("r",)).record() == {
        "protocol": "single",
        "query": "q",
        "responses": ["r"],
        "sample": 0,
    }
    whole = JudgeInput("single", "q", ("r",), 1, True, {"reference": "a"}).record()
    assert json.loads(json.dumps(whole)) == {
        "protocol": "single",
        "query": "q",
        "responses": ["r"],
        "sample": 1,
        "direct": True,
        "context": {"reference": "a"},
    }
