"""What an evaluation holds while it runs, and who writes its result."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.cli import main as cli
from autoj_reward.client.in_flight import run_in_order
from autoj_reward.evaluate import ask
from autoj_reward.evaluate.ask import JudgementCost
from autoj_reward.evaluate.best_of_four import ChoiceRow
from autoj_reward.evaluate.pairs import LabelledPair
from autoj_reward.evaluate.results import load_result
from autoj_reward.evaluate.selection import Candidates
from autoj_reward.types import Judgement
from tests.evaluate_rows import pair, write

FAKE = ["--set", "judge.kind=fake", "--set", "bootstrap=5"]
GRADER = [
    *("--set", "grader.kind=fake", "--set", "grader.format=autoj-en"),
    *("--set", "grader.critique=true"),
]
ROWS = 300
HELD = {Judgement, LabelledPair, ChoiceRow, Candidates}


@pytest.fixture(scope="module", autouse=True)
def what_was_there_before() -> None:
    """The objects of other tests and modules are frozen, and so not among those counted below."""
    gc.collect()
    gc.freeze()


def write_inputs(task: str, folder: Path) -> list[str]:
    """The flags of a task with so many rows of two responses each."""
    return ["--data", write(folder / "rows.jsonl", (ROW_OF[task](n) for n in range(ROWS)))]


def make_choice(number: int) -> dict[str, Any]:
    row = {"id": number, "prompt": f"q {number}", "subset": "Math"}
    return row | {"chosen": ["a"], "rejected": ["bb"]}


def make_candidates(number: int) -> dict[str, Any]:
    return {"scenario": "planning", "prompt": f"q {number}", "outputs": ["a", "bb"]}


ROW_OF: dict[str, Callable[[int], dict[str, Any]]] = {
    "eval-p": partial(pair, "planning"),
    "best-of-four": make_choice,
    "eval-r": make_candidates,
}


@pytest.mark.parametrize(
    ("task", "sets", "cost"),
    [
        pytest.param("eval-p", [], [2], id="pairs compared"),
        pytest.param("eval-p", ["--set", "protocol=pointwise"], [2], id="pairs rated"),
        pytest.param("best-of-four", [], [2], id="best of four"),
        pytest.param(
            "eval-r", [*GRADER, "--set", "sizes=[2]", "--set", "grade=all"], [2, 2], id="selection"
        ),
    ],
)
def test_rows_that_are_done_and_their_judgements_are_not_held(
    task: str, sets: list[str], cost: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many rows there are, those alive and their judgements are the few under way.

    cost: judgements of a row, by the judge and by a grader.
    """
    monkeypatch.setattr(ask, "run_in_order", partial(run_in_order, at_once=16))
    adding, calls = JudgementCost.add, 0
    counts: list[int] = []

    def count_alive() -> int:
        return sum(type(item) in HELD for item in gc.get_objects())

    def add_and_count(self: JudgementCost, judgements: Iterable[Judgement]) -> None:
        nonlocal calls
        calls += 1
        if calls % 60 == 0:
            counts.append(count_alive())
        adding(self, judgements)

    monkeypatch.setattr(JudgementCost, "add", add_and_count)
    before, out = count_alive(), str(tmp_path / "out.json")
    flags = [*write_inputs(task, tmp_path), "--json", out, *FAKE, *sets]
    assert not cli.main(["evaluate", task, *flags])
    judging_cost = load_result(out)["cost"]
    parts = [judging_cost] if len(cost) == 1 else [judging_cost["judge"], judging_cost["grader"]]
    assert [part["judgements"] for part in parts] == [ROWS * n for n in cost]
    assert calls == ROWS * len(cost)
    assert max(counts) - before < ROWS / 2
