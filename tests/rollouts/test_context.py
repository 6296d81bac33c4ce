"""Rows with a reference and a rubric through the commands: read, judged, recorded, shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.cli import main as cli
from autoj_reward.config import BestOfNConfig, load_config
from autoj_reward.journal import Journal
from rollouts.train.rejection_sampling import chosen_rows
from tests.reference_format import write_reference_format
from tests.rollouts.test_job import Job, list_judged_texts, read_lines, write_rows

ROWS: list[Any] = [
    {"query": "2+2?", "responses": ["4", "five"], "answer": 4, "rubric": "<b>exact</b>"},
    {"query": "2+2?", "responses": ["4", "five"], "answer": "four"},
    {"query": "1+1?", "responses": ["2"], "answer": None},
    {"query": "1+1?", "responses": ["2"], "answer": ""},
    {"query": "1+1?", "responses": ["2"], "answer": ["2"]},
    {"query": "1+1?", "responses": ["2"]},
]
BAD = {3: "null", 4: "blank", 5: "not a string", 6: "missing"}


@pytest.fixture
def judge(tmp_path: Path) -> dict[str, Any]:
    return {"format": str(write_reference_format(tmp_path / "marks"))}


def read_journal_inputs(path: Path) -> list[Any]:
    journal = Journal(path)
    inputs = [(r["input"]["responses"], r["input"].get("context")) for r in journal.export()]
    journal.close()
    return sorted(inputs, key=json.dumps)


def test_best_of_n_by_reference(
    tmp_path: Path, judge: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    script = {"ratings": {"4": 9, "five": 3}}
    job = Job(tmp_path / "job", ROWS, script, judge=judge, columns={"reference": "answer"})
    assert job.run("--set", "tie_break=[first]") == 0
    output = capsys.readouterr().out
    for line, why in BAD.items():
        assert f"in.jsonl:{line}: field 'answer': {why}" in output
    assert [(s["line"], s["response"]) for s in job.selections()] == [(1, "4"), (2, "4")]
    # The same texts with another reference are another question; with the same one they are not.
    assert read_journal_inputs(job.output / "journal.sqlite") == [
        (["4"], {"reference": "4", "rubric": "<b>exact</b>"}),
        (["4"], {"reference": "four"}),
        (["five"], {"reference": "4", "rubric": "<b>exact</b>"}),
        (["five"], {"reference": "four"}),
    ]
    page = (job.output / "report.html").read_text()
    assert '"rubric":"\\u003cb\\u003eexact\\u003c/b\\u003e"' in page and '"reference":"4"' in page
    assert job.selections()[0]["extra"] == {"answer": 4, "rubric": "<b>exact</b>"}
    before = len(list_judged_texts(job.log))
    assert job.run("--set", "tie_break=[first]") == 0 and len(list_judged_texts(job.log)) == before


def test_comparisons_that_break_ties_ask_for_their_own_fields(
    tmp_path: Path, judge: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"query": "q", "responses": ["aa", "bb", "c"], "reference": "x", "criteria": "be short"},
        {"query": "q", "responses": ["aa", "bb", "c"], "reference": "x"},
    ]
    script = {"ratings": {"aa": 8, "bb": 8, "c": 2}, "verdicts": "first"}
    job = Job(tmp_path / "job", rows, script, judge=judge, tie_break=["pairwise", "first"])
    assert job.run() == 0
    assert "in.jsonl:2: field 'criteria': missing" in capsys.readouterr().out
    [selection] = job.selections()
    assert selection["rule"] == "first" and selection["tied"] == [0, 1]
    [first, second] = [
        c for r, c in read_journal_inputs(job.output / "journal.sqlite") if len(r) == 2
    ]
    assert first == second == {"criteria": "be short", "reference": "x"}


def test_score_and_compare_read_what_their_protocol_shows(
    tmp_path: Path, judge: dict[str, Any]
) -> None:
    row = {"query": "q", "response": "aa", "response_1": "aa", "response_2": "b", "text": "x"}
    row |= {"criteria": "brevity"}
    source = write_rows(tmp_path / "in.jsonl", [row, row | {"text": None}])
    sets = [f"judge.format={judge['format']}", "judge.kind=fake", "columns.reference=text"]
    flags = [part for setting in sets for part in ("--set", setting)]
    for command, count, context in [
        ("score", 1, {"reference": "x"}),
        ("compare", 2, {"criteria": "brevity"}),
    ]:
        output = tmp_path / f"{command}.jsonl"
        assert cli.main([command, "--input", str(source), "--output", str(output), *flags]) == 0
        assert [r["outcome"] for r in read_lines(output)] == ["ok"] * count
        assert {
            json.dumps(c) for _, c in read_journal_inputs(Path(f"{output}.journal.sqlite"))
        } == {json.dumps(context)}


def test_a_column_for_a_field_that_the_judge_does_not_show(
    tmp_path: Path, judge: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    columns = {"referense": "answer"}
    job = Job(tmp_path / "job", ROWS, {}, judge=judge, columns=columns)
    assert job.run() == 1
    errors = capsys.readouterr().err
    assert (
        "columns names 'referense'" in errors
        and "marks shows" in errors
        and "'reference'" in errors
    )


def test_a_judge_that_shows_no_context_reads_none(tmp_path: Path) -> None:
    job = Job(tmp_path / "job", ROWS, {"ratings": {"4": 9}})
    assert job.run() == 0
    assert {json.dumps(c) for _, c in read_journal_inputs(job.output / "journal.sqlite")} == {
        "null"
    }


TALK = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "2+2?"},
]
SHOWN = "User: Hi\n\nAssistant: Hello\n\nUser: 2+2?"


def test_best_of_n_of_conversations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[Any] = [
        {"messages": TALK, "responses": ["4", "five"]},
        {"prompt": TALK},
        {"query": SHOWN},
        {"messages": TALK[::2], "responses": ["4"]},
        {"messages": [TALK[0], {"role": "boss", "content": "Now!"}], "responses": ["4"]},
    ]
    policy = {"kind": "fake", "model": "policy", "n": 2, "system": "Be brief."}
    job = Job(tmp_path / "job", rows, {"ratings": {"4": 9, "five": 3}}, policy=policy)
    assert job.run("--set", "tie_break=[first]") == 0
    assert "in.jsonl:5: field 'messages[1].role': unknown role 'boss'" in capsys.readouterr().out
    first, second, third, two_of_the_user = job.selections()
    assert two_of_the_user["messages"] == TALK[::2]
    assert (first["response"], first["query"], first["messages"]) == ("4", SHOWN, TALK)
    assert second["messages"] == TALK and "messages" not in third and third["query"] == SHOWN
    assert "User: Hi" in (job.output / "report.html").read_text()
    rows_of = chosen_rows(load_config(BestOfNConfig, job.config, ["view=rating"]), 0.0, "p", 1)
    head = [{"role": "system", "content": "Be brief."}]
    assert [row["prompt"] for row in rows_of.sft[:2]] == [[*head, *TALK]] * 2
    journal = Journal(job.output / "journal.sqlite")
    inputs = [r["input"] for r in journal.export()]
    journal.close()
    asked = [item["messages"] for item in inputs if "query" not in item]
    assert all(messages in (TALK, TALK[::2]) for messages in asked)
    assert {"query" in item for item in inputs} == {True, False}


def test_score_and_compare_conversations(tmp_path: Path) -> None:
    reply = {"role": "assistant", "content": "4"}
    rows = [{"messages": [*TALK, reply]}, {"prompt": TALK, "completion": [reply]}]
    source = write_rows(tmp_path / "in.jsonl", rows)
    config = tmp_path / "c.json"
    script = {"ratings": {"4": 9}}
    config.write_text(json.dumps({"judge": {"kind": "fake", "script": script}}))
    out = tmp_path / "out.jsonl"
    where = ["--input", str(source), "--config", str(config), "--output", str(out)]
    assert cli.main(["score", *where]) == 0
    assert [row["rating"] for row in read_lines(out)] == [9, 9]
    assert [row.get("messages") for row in read_lines(out)] == [[*TALK, reply], None]
    pairs = write_rows(
        tmp_path / "p.jsonl", [{"prompt": TALK, "response_1": "4", "response_2": "44"}]
    )
    where[1], where[5] = str(pairs), str(tmp_path / "pairs.jsonl")
    assert cli.main(["compare", *where]) == 0
    [row] = read_lines(tmp_path / "pairs.jsonl")
    assert row["outcome"] == "ok" and row["prompt"] == TALK
