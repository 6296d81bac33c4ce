"""What an evaluation holds while it runs, and who writes its result."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import pytest

from autoj_reward import cli
from autoj_reward.client.in_order import in_order
from autoj_reward.evaluate import ask
from autoj_reward.evaluate.results import Cost, load
from autoj_reward.types import Judgement
from tests.evaluate_rows import pair, write

FAKE = ["--set", "judge.kind=fake", "--set", "bootstrap=5"]
ROWS = 300


@pytest.fixture(scope="module", autouse=True)
def what_was_there_before() -> None:
    """The objects of other tests and modules are frozen, and so not among those counted below."""
    gc.collect()
    gc.freeze()


def inputs(task: str, folder: Path) -> list[str]:
    """The flags of a task with so many rows of two responses each."""
    if task == "ranking":
        systems, board = folder / "systems", folder / "board.csv"
        systems.mkdir()
        board.write_text(",win_rate\na,50\nb,90\n", encoding="utf-8")
        for name in "ab":
            rows = [
                {"instruction": f"do {n}", "output": f"{name} {n}", "generator": name}
                for n in range(ROWS)
            ]
            write(systems / f"{name}.jsonl", rows)
        return ["--data", str(systems), "--leaderboard", str(board)]
    best = task == "best-of-four"
    four = [
        {"id": n, "prompt": f"q {n}", "subset": "Math", "chosen": ["a"], "rejected": ["bb"]}
        for n in range(ROWS)
    ]
    pairs = [pair("planning", n) for n in range(ROWS)]
    return ["--data", write(folder / "rows.jsonl", four if best else pairs)]


@pytest.mark.parametrize(
    ("task", "sets"),
    [
        pytest.param("eval-p", [], id="pairs compared"),
        pytest.param("eval-p", ["--set", "protocol=pointwise"], id="pairs rated"),
        pytest.param("best-of-four", [], id="best of four"),
        pytest.param("ranking", [], id="ranking"),
    ],
)
def test_judgements_of_rows_that_are_done_are_not_held(
    task: str, sets: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many rows there are, the judgements alive are of the few under way."""
    monkeypatch.setattr(ask, "in_order", partial(in_order, at_once=16))
    adding, calls = Cost.add, 0
    held: list[int] = []

    def alive() -> int:
        return sum(type(one) is Judgement for one in gc.get_objects())

    def counted(self: Cost, judgements: Iterable[Judgement]) -> None:
        nonlocal calls
        calls += 1
        if calls % 30 == 0:
            held.append(alive())
        adding(self, judgements)

    monkeypatch.setattr(Cost, "add", counted)
    before, out = alive(), str(tmp_path / "out.json")
    flags = [*inputs(task, tmp_path), "--json", out, *FAKE, *sets]
    assert not cli.main(["evaluate", task, *flags])
    assert (calls, load(out)["cost"]["judgements"]) == (ROWS, 2 * ROWS)
    assert max(held) - before < ROWS / 2
