"""The worked example of docs/judges/formats.md: answers judged beside references, by endpoint."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.cli import main as cli
from tests.engine.test_openai_engine import Answer, Endpoint, chat

ROOT = Path(__file__).parents[2]


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    server = Endpoint()
    server.greets = True
    yield server
    server.close()


def compare_answers(path: str, body: dict[str, Any]) -> Answer:
    """What a judge that can read says: whether the response comes to the reference at last."""
    prompt = body["messages"][1]["content"]
    reference, response = re.findall(
        r"\[Reference answer\]\n(.*?)\n\n\[Response\]\n(.*?)\n\[End", prompt, re.S
    )[0]
    verdict = "correct" if find_last_number(response) == reference else "incorrect"
    return chat(f"It comes to {find_last_number(response)}.\n\nVerdict: {verdict}")


def find_last_number(text: str) -> str | None:
    return (re.findall(r"\d+", text) or [None])[-1]


def test_answers_are_judged_by_their_references(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    endpoint.answer = compare_answers
    output = tmp_path / "run"
    sets = [f"judge.base_url={endpoint.url}", f"output={output}"]
    command = ["best-of-n", "--config", "configs/jobs/math_endpoint.yaml"]
    assert cli.main([*command, *(word for setting in sets for word in ("--set", setting))]) == 0
    lines = (output / "judgements.jsonl").read_text(encoding="utf-8").splitlines()
    judgements = [json.loads(line) for line in lines]
    assert {record["outcome"] for record in judgements} == {"ok"}
    assert [record["rating"] for record in judgements].count(1.0) == 9  # of 64
    lines = (output / "selections.jsonl").read_text(encoding="utf-8").splitlines()
    selections = [json.loads(line) for line in lines]
    right = [
        find_last_number(record["response"]) == record["extra"]["answer"] for record in selections
    ]
    assert [record["rating"] for record in selections] == [float(is_right) for is_right in right]
    assert (len(right), sum(right)) == (8, 4)  # no response to the other four is right
    page = (output / "report.html").read_text(encoding="utf-8")
    assert "reference" in page and "Verdict: correct" in page
