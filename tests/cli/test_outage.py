"""`autoj score` on an endpoint that is down in the middle of the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.cli import main as cli
from tests.engine.outage import Interrupted, graded, interrupted

ROWS = [{"query": f"Name {n} rivers.", "response": f"Here are {n} of them."} for n in range(40)]


def score(folder: Path, endpoint: Interrupted, *sets: str) -> list[dict[str, Any]]:
    """Run `autoj score`, always with the same command, and return the rows that it writes."""
    source, out = folder / "in.jsonl", folder / "out.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    judge = [f"judge={{kind: openai, model: served, base_url: '{endpoint.url}'}}", *sets]
    flags = [flag for setting in judge for flag in ("--set", setting)]
    assert cli.main(["score", "--input", str(source), "--output", str(out), *flags]) == 0
    return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]


def find_likeliest(endpoint: Interrupted) -> list[float]:
    """Return the most probable rating of each row that the endpoint answered."""
    ratings = {}
    for _, body, _ in endpoint.requests:
        for row in ROWS:
            if row["response"] in body["messages"][-1]["content"]:
                ratings[row["response"]] = float(max(graded(body), key=graded(body).__getitem__))
    return [ratings[row["response"]] for row in ROWS]


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param({"goes_on": True}, id="goes on"),
        pytest.param({}, id="alternatives"),
        pytest.param({"most": None}, id="no log-probabilities"),
    ],
)
def test_an_outage_costs_no_row(
    kind: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with interrupted(monkeypatch, last=10, **kind) as (endpoint, errors):
        rows = score(tmp_path, endpoint)
    assert len(errors) >= 8
    assert [row["response"] for row in rows] == [row["response"] for row in ROWS]
    assert {row["outcome"] for row in rows} == {"ok"}
    assert [row["rating"] for row in rows] == find_likeliest(endpoint)
    assert len({row["rating"] for row in rows}) > 2


def test_what_an_outage_beyond_the_deadline_costs_is_asked_again_by_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadline = "judge.serve.deadline_s=1"
    with interrupted(monkeypatch, missed=None, last=10, goes_on=True) as (endpoint, errors):
        rows = score(tmp_path, endpoint, deadline, "judge.serve.max_ongoing=4")
        lost = [row for row in rows if row["outcome"] == "unavailable"]
        answered = [row for row in rows if row["outcome"] == "ok"]
        assert errors and lost and answered and len(lost) + len(answered) == len(ROWS)
        assert all("no answer within 1 s" in row["reason"] for row in lost)
        assert {row["rating"] for row in lost} == {None}
        before = endpoint.judged
        endpoint.start()
        again = score(tmp_path, endpoint, "judge.serve.max_ongoing=4")
    assert {row["outcome"] for row in again} == {"ok"}
    assert [row["rating"] for row in again] == find_likeliest(endpoint)
    assert endpoint.judged - before == len(lost)
