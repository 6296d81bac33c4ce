"""The worked example of docs/formats.md: answers to questions with references, by an endpoint."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autoj_reward import cli
from tests.engine.test_openai_engine import Answer, Endpoint, chat

ROOT = Path(__file__).parents[2]


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    made = Endpoint()
    yield made
    made.server.shutdown()
    made.server.server_close()


def compares(path: str, body: dict[str, Any]) -> Answer:
    """What a judge that can read says: the numbers that a response ends with or hedges between."""
    shown = body["messages"][1]["content"]
    reference, response = re.findall(
        r"\[Reference answer\]\n(.*?)\n\n\[Response\]\n(.*?)\n\[End", shown, re.S
    )[0]
    said = re.findall(r"\d+", response)
    right = bool(said) and said[-1] == reference and "either" not in response
    right = right or (reference in said and said[-1] == "100")  # the check after the answer
    verdict = "correct" if right else "incorrect"
    return chat(f"It answers {said[-1:]}.\n\nVerdict: {verdict}")


def test_answers_are_judged_by_their_references(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    endpoint.answer = compares
    output = tmp_path / "run"
    sets = [f"judge.base_url={endpoint.url}", f"output={output}"]
    typed = ["best-of-n", "--config", "configs/math_endpoint.yaml"]
    assert cli.main([*typed, *(word for each in sets for word in ("--set", each))]) == 0
    lines = (output / "judgements.jsonl").read_text(encoding="utf-8").splitlines()
    judged = [json.loads(line) for line in lines]
    assert {record["outcome"] for record in judged} == {"ok"}
    assert [record["rating"] for record in judged].count(1.0) == 16  # two of four, each time
    lines = (output / "selections.jsonl").read_text(encoding="utf-8").splitlines()
    chosen = [json.loads(line) for line in lines]
    assert len(chosen) == 8
    for record in chosen:
        assert record["extra"]["answer"] in re.findall(r"\d+", record["response"])
        assert (record["rating"], record["rule"]) == (1.0, "first")
    page = (output / "report.html").read_text(encoding="utf-8")
    assert "reference" in page and "Verdict: correct" in page
