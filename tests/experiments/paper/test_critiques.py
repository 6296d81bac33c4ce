"""Eval-C: published win rates out of published votes, and a scripted judge and grader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.evaluate.results import load_result, load_rows
from autoj_reward.formats.render import render
from autoj_reward.formats.schema import load_format
from experiments.paper.__main__ import main
from experiments.paper.critiques import (
    CritiqueCase,
    graded_pair,
    is_exchanged,
    read_cases,
)
from tests.engine.test_openai_engine import Endpoint, chat
from tests.evaluate_rows import AGAINST_CHATGPT, released_scenarios, write

SAID = {"win": "A: Feedback 1 is significantly better.", "tie": "C: Neither.", "lose": "B: ..."}
OTHER_WAY = {"win": SAID["lose"], "tie": SAID["tie"], "lose": SAID["win"]}
FAKE = [
    *("--set", "judge.kind=fake", "--set", "grader.kind=fake"),
    *("--set", "grader.format=autoj-en", "--set", "grader.critique=true", "--set", "bootstrap=50"),
]


def make_case(number: int, scenario: str = "planning", **critiques: str) -> dict[str, Any]:
    return {
        "scenario": scenario,
        "prompt": f"query {number}",
        "response": f"response {number}",
        "critiques": critiques,
    }


def read_gpt4_votes() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """232 rows with as many votes of each kind as were published, every other one exchanged."""
    for group, counts in AGAINST_CHATGPT.items():
        kinds = [k for k, n in zip(("win", "tie", "lose"), counts, strict=True) for _ in range(n)]
        for n, kind in enumerate(kinds):
            texts = OTHER_WAY if n % 2 else SAID
            vote = {
                "output": texts[kind] + "\nA: B: reasons",
                "cost": 0.03,
                "finish_reason": "stop",
            }
            scenarios = released_scenarios(group)
            row = make_case(n, scenarios[n % len(scenarios)])
            yield row, vote | {"meta": {"exchange": bool(n % 2)}}


def evaluate(*arguments: str) -> int:
    return main(["eval-c", *arguments])


def test_the_published_win_rates_come_out(tmp_path: Path) -> None:
    rows, votes = zip(*read_gpt4_votes(), strict=True)
    out = str(tmp_path / "out.json")
    assert not evaluate(
        *("--data", write(tmp_path / "c.jsonl", rows), "--json", out, "--set", "bootstrap=200"),
        *("--votes", write(tmp_path / "v.jsonl", votes)),
    )
    result = load_result(out)
    overall = result["overall"]
    assert (overall["n"], overall["failed"]) == (232, 0)
    assert [overall[k] for k in ("win", "tie", "lose")] == [73.71, 2.16, 24.14]
    assert [round(overall[k], 1) for k in ("win", "tie", "lose")] == [73.7, 2.2, 24.1]
    groups = [g["win"] for g in result["groups"].values()]
    assert groups == [100.0, 83.33, 80.0, 70.0, 72.22, 55.0, 75.0, 79.55]
    assert result["groups"]["NLP Tasks"]["votes"] == {"win": 35, "tie": 1, "lose": 8}
    low, high = overall["win_95"]
    assert 65 < low < 73.71 < high < 82


def test_a_judge_and_a_grader(tmp_path: Path) -> None:
    """The scripted grader prefers the longer critique, wherever it stands."""
    rows = [make_case(n, chatgpt="x" * (500 if n < 2 else 3)) for n in range(8)]
    data, out = write(tmp_path / "c.jsonl", rows), str(tmp_path / "out.json")
    assert evaluate("--data", data, "--json", out, *FAKE) == 0
    result = load_result(out)
    assert result["overall"]["votes"] == {"win": 6, "tie": 0, "lose": 2}
    assert result["cost"]["judge"]["judgements"] == result["cost"]["grader"]["judgements"] == 8
    rows = load_rows(out)
    assert {row["exchanged"] for row in rows} == {True, False}
    assert rows[0]["responses"][0].startswith("Scripted critique of 10 characters")


def test_critiques_and_references_of_files(tmp_path: Path) -> None:
    data = write(tmp_path / "c.jsonl", [make_case(n) for n in range(3)])
    mine = write(tmp_path / "m.jsonl", [{"output": text} for text in ("longer", "s", " ")])
    other = write(tmp_path / "o.jsonl", [{"output": "medi"}] * 3)
    out = str(tmp_path / "out.json")
    assert not evaluate(
        "--data", data, "--json", out, *FAKE, "--critiques", mine, "--reference", other
    )
    result = load_result(out)
    assert result["overall"]["votes"] == {"win": 1, "tie": 0, "lose": 1}
    assert (result["overall"]["failed"], result["overall"]["win"]) == (1, 33.33)
    assert result["judge"] == mine


def test_the_graders_question_is_the_papers() -> None:
    pair = graded_pair(CritiqueCase(1, "How?", "So.", "Code", {}, {}), "good", "bad")
    [item] = pair.inputs(swap=False)
    [message] = render(item, load_format("critique-grader"))
    head, _, rest = message.text.partition("[User's query]\n")
    assert head.startswith("You are a helpful and precise assistant for checking the quality of")
    assert rest.startswith(
        "How?\n\n[The Assistant's Response]\nSo.\n\n[Feedback 1]\ngood\n\n[Feedback 2]\nbad\n\n"
        "Please choose from the following options, and give out your reason in the next line.\n"
        "A: Feedback 1 is significantly better.\n"
    )
    assert [part.text for part in message.parts if part.response] == ["good", "bad"]


def test_the_order_is_drawn_by_seed_and_row() -> None:
    cases = [CritiqueCase(n, "", "", "", {}, {}) for n in range(100)]
    drawn = [[is_exchanged(c, seed) for c in cases] for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert 30 < sum(drawn[0]) < 70


@pytest.mark.parametrize(
    ("vote", "message"),
    [
        pytest.param({}, "field 'output': missing", id="no answer"),
        pytest.param({"output": "A:", "meta": {"exchange": 1}}, "field 'meta'", id="exchange"),
        pytest.param({"output": "A:", "meta": {"idx": 4}}, "another order", id="order"),
    ],
)
def test_bad_votes_are_named(vote: Any, message: str, tmp_path: Path, capsys: Any) -> None:
    data = write(tmp_path / "c.jsonl", [make_case(n) for n in range(2)])
    votes = write(tmp_path / "v.jsonl", [{"output": "A:"}, vote])
    assert evaluate("--data", data, "--json", str(tmp_path / "o.json"), "--votes", votes) == 1
    errors = capsys.readouterr().err
    assert "v.jsonl:2: " in errors
    assert message in errors


def test_an_unreadable_vote_counts_as_failed(tmp_path: Path) -> None:
    data = write(tmp_path / "c.jsonl", [make_case(n) for n in range(4)])
    outputs = ["A: yes", "Failed!", "A: or B: both", "B: no"]
    votes = write(tmp_path / "v.jsonl", [{"output": text} for text in outputs])
    out = str(tmp_path / "o.json")
    assert evaluate("--data", data, "--json", out, "--votes", votes) == 0
    overall = load_result(out)["overall"]
    assert (overall["failed"], overall["win"], overall["lose"]) == (2, 25.0, 25.0)


@pytest.mark.parametrize(
    ("row", "flags", "message"),
    [
        pytest.param(
            make_case(1, autoj=""), ["judge.critique=false"], "no critique", id="no critic"
        ),
        pytest.param(
            make_case(1, gpt4="x"), [], "no critique by 'chatgpt' (there: gpt4)", id="author"
        ),
        pytest.param(make_case(1, autoj="x"), ["grader.format=auto"], "grader.format", id="format"),
        pytest.param(
            make_case(1, "golf", autoj="x"), [], "c.jsonl:1: field 'scenario'", id="scenario"
        ),
        pytest.param(make_case(1) | {"critiques": [1]}, [], "field 'critiques'", id="critiques"),
    ],
)
def test_bad_input(row: Any, flags: list[str], message: str, tmp_path: Path, capsys: Any) -> None:
    sets = [text for flag in flags for text in ("--set", flag)]
    data = write(tmp_path / "c.jsonl", [row])
    assert evaluate("--data", data, "--json", str(tmp_path / "o.json"), *FAKE, *sets) == 1
    assert message in capsys.readouterr().err


def test_votes_stand_alone(tmp_path: Path, capsys: Any) -> None:
    data = write(tmp_path / "c.jsonl", [make_case(1)])
    flags = ["--data", data, "--json", str(tmp_path / "o.json"), "--votes", data]
    assert evaluate(*flags, "--critiques", data) == 1
    assert "drop --critiques" in capsys.readouterr().err


def test_the_released_half_is_read(released: Any, tmp_path: Path) -> None:
    rows = released("autoj/testdata_critique.jsonl")
    cases = read_cases(write(tmp_path / "c.jsonl", rows))
    assert len(cases) == 113
    assert all(case.critiques["autoj"] for case in cases)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    server = Endpoint()
    server.greets = True
    yield server
    server.close()


def test_a_grader_of_critiques(endpoint: Endpoint, tmp_path: Path) -> None:
    """The grader prefers the critique that says GOOD, which is the judge's, in either order."""

    def answer(path: str, body: dict[str, Any]) -> Any:
        text = body["messages"][-1]["content"]
        best = "A" if text.index("GOOD") < text.index("[Feedback 2]") else "B"
        return chat(f"{best}: Feedback is significantly better.\nBecause.")

    endpoint.answer = answer
    rows = [{"scenario": "planning", "prompt": f"q{n}", "response": "r"} for n in range(8)]
    data = write(tmp_path / "c.jsonl", rows)
    mine = write(tmp_path / "m.jsonl", [{"output": "GOOD"}] * 8)
    other = write(tmp_path / "o.jsonl", [{"output": "poor"}] * 8)
    out = str(tmp_path / "o.json")
    grader = f"{{kind: openai, base_url: '{endpoint.url}', model: m, format: critique-grader}}"
    flags = ["--data", data, "--json", out, "--critiques", mine, "--reference", other]
    flags += ["--set", f"grader={grader}", "--set", "bootstrap=20"]
    assert evaluate(*flags) == 0
    result = load_result(out)
    assert result["overall"]["win"] == 100.0
    assert 0 < result["shown_first_wins"] < 100
