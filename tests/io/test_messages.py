"""Rows whose query is a conversation, in the forms of TRL and the hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.conversation import ContextColumn, Prompt, Response
from autoj_reward.io.candidates import read_queries, text_rows
from autoj_reward.io.layouts import PAIR, SINGLE
from autoj_reward.io.rows import Rows, TextRow, read_all
from tests.judgements import texts_in

USER, SAID, MORE = (
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": [{"type": "text", "text": "Why?"}]},
)
QUERY = "User: Hi\n\nAssistant: Hello\n\nUser: Why?"


def read_texts(source: str, wanted: str = SINGLE, **options: Any) -> Rows[TextRow]:
    return read_all(text_rows(source, wanted, **options))


def write_rows(tmp_path: Path, *rows: Any) -> str:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


RATED: dict[str, tuple[dict[str, Any], str, str]] = {
    "messages": ({"messages": [USER, SAID, MORE, SAID]}, QUERY, "Hello"),
    "one turn": ({"messages": [USER, SAID]}, "Hi", "Hello"),
    "prompt and completion": ({"prompt": [USER, SAID, MORE], "completion": [SAID]}, QUERY, "Hello"),
    "a plain completion": ({"prompt": [USER], "completion": "Ho"}, "Hi", "Ho"),
    "a plain prompt": ({"prompt": "Hi", "response": "Ho"}, "Hi", "Ho"),
    "prompt and response": ({"prompt": [USER, SAID, MORE], "response": "Ho"}, QUERY, "Ho"),
    "in place of the last turn": ({"messages": [USER, SAID], "response": "Ho"}, "Hi", "Ho"),
    "a query goes first": ({"query": "q", "response": "r", "messages": [USER, SAID]}, "q", "r"),
}  # fmt: skip


@pytest.mark.parametrize("case", RATED)
def test_the_last_turn_is_rated(case: str, tmp_path: Path) -> None:
    row, query, response = RATED[case]
    source = write_rows(tmp_path, row | {"answer": 4})
    result = read_texts(source, asked=[ContextColumn("reference", "answer")])
    [text_row] = result.rows
    assert texts_in(text_row) == (query, response) and text_row.context["reference"] == "4"
    assert text_row.fields == row | {"answer": 4}
    assert len(text_row.prompt.turns) == (3 if query == QUERY else 0)


def test_pairs_and_prompts(tmp_path: Path) -> None:
    pair = {"prompt": [USER, SAID, MORE], "response_1": "a", "response_2": "b"}
    [text_row] = read_texts(write_rows(tmp_path, pair), PAIR).rows
    assert texts_in(text_row) == (QUERY, "a", "b") and len(text_row.prompt.turns) == 3
    rows = read_queries(
        write_rows(
            tmp_path, {"messages": [USER, SAID, MORE], "responses": ["a"]}, {"prompt": [USER]}
        )
    ).rows
    assert [row.prompt.text for row in rows] == [QUERY, "Hi"]
    assert [row.responses for row in rows] == [(Response("a"),), None]
    assert rows[0].prompt.turns and rows[1].prompt == Prompt("Hi")


ODD_ORDERS: dict[str, tuple[list[Any], int, str]] = {
    "the assistant first": ([SAID, USER, SAID], 2, "Hello"),
    "two turns of the user's": ([USER, USER, SAID], 2, "Hello"),
    "a system turn in the middle": ([USER, {"role": "system", "content": "s"}, SAID], 2, "Hello"),
}


@pytest.mark.parametrize("case", ODD_ORDERS)
def test_messages_are_read_in_the_order_in_which_they_come(case: str, tmp_path: Path) -> None:
    messages, turns, response = ODD_ORDERS[case]
    [row] = read_texts(write_rows(tmp_path, {"messages": messages})).rows
    assert len(row.prompt.turns) == turns and texts_in(row)[1] == response


BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "no assistant": ({"messages": [USER]}, "response", "missing"),
    "no prompt": ({"messages": [SAID]}, "messages", "no prompt before the response"),
    "role": ({"prompt": [{"role": "boss", "content": "a"}], "response": "r"}, "prompt[0].role",
             "unknown role 'boss'"),
    "blank": ({"messages": [USER, SAID, {"role": "user", "content": ""}, SAID]},
              "messages[2].content", "blank"),
    "NUL": ({"messages": [{"role": "user", "content": "a\0"}, SAID]}, "messages[0].content", "NUL"),
    "completion": ({"prompt": [USER], "completion": [USER]}, "completion", "the answer was left"),
    "its content": ({"prompt": [USER], "completion": [{"role": "assistant", "content": 5}]},
                    "completion[0].content", "not 5"),
    "nothing": ({"messages": None, "response": "r"}, "query", "missing"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_conversations_are_named(case: str, tmp_path: Path) -> None:
    row, field, reason = BAD[case]
    result = read_texts(write_rows(tmp_path, {"messages": [USER, SAID]}, row))
    assert len(result.rows) == 1
    [bad] = result.bad
    assert (bad.line, bad.field) == (2, field) and reason in bad.reason


def test_a_table_of_conversations(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    call = {"type": "function", "function": {"name": "add", "arguments": "{}"}}
    calls = {"role": "assistant", "content": None, "tool_calls": [call]}
    talk = [USER, calls, {"role": "tool", "content": "4"}, SAID]
    pq.write_table(pa.Table.from_pylist([{"messages": talk}]), tmp_path / "in.parquet")
    [row] = read_texts(str(tmp_path / "in.parquet")).rows
    assert isinstance(row, TextRow) and texts_in(row)[1] == "Hello"
    assert "[calls add {}]" in texts_in(row)[0]
    pq.write_table(pa.table({"messages": ["a"], "x": [1]}), tmp_path / "in.parquet")
    [bad] = read_texts(str(tmp_path / "in.parquet")).bad
    assert "no prompt before the response" in str(bad) and "layout messages" in str(bad)
