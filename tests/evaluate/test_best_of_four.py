"""RewardBench 2's form, by hand and from end to end."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.cli import main as cli
from autoj_reward.evaluate.best_of_four import Spread, credit, spread_of, ties_score
from autoj_reward.evaluate.results import load_result
from tests.evaluate_rows import write
from tests.reference_format import write_reference_format

FAKE = ["--set", "judge.kind=fake", "--set", "bootstrap=50"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param([9, 1, 2, 3], 1.0, id="alone"),
        pytest.param([3, 3, 2, 1], 0.5, id="two equals"),
        pytest.param([3, 3, 3, 3], 0.25, id="all equal"),
        pytest.param([1, 3, 2, 1], 0.0, id="another"),
        pytest.param([None, 3, 2, 1], 0.0, id="not rated"),
        pytest.param([2, None, None, None], 1.0, id="the others not rated"),
        pytest.param([None] * 4, 0.0, id="nothing rated"),
    ],
)
def test_credit(values: Any, expected: float) -> None:
    assert credit(values, 1) == expected


def test_spread_of_several_correct_answers() -> None:
    assert spread_of((7, 9, 4, 2), 2) == Spread(True, 2, 3)
    assert spread_of((7, 9, 7), 2) == Spread(False, 2, 0)
    assert spread_of((7, None, 1), 2) is None


def test_the_score_of_ties_by_hand() -> None:
    ref, tied = Spread(True, 0, 4), Spread(True, 2, 3)
    assert ties_score([(ref, tied)]) == pytest.approx(1 + 0.01 * math.tanh(0.5))
    near = Spread(True, 0, 1)  # the reference's own distance is under the spread of the others
    assert ties_score([(near, tied)]) == pytest.approx(0.8 + 0.01 * math.tanh(-0.5))
    assert ties_score([(ref, None)]) == pytest.approx(0.3 - 0.01)
    assert ties_score([]) is None


def make_row(
    name: str | int, subset: str, chosen: list[str], rejected: list[str]
) -> dict[str, Any]:
    return {
        "id": name,
        "prompt": f"q {name}",
        "subset": subset,
        "chosen": chosen,
        "rejected": rejected,
    }


def test_from_end_to_end(tmp_path: Path) -> None:
    """The script rates by length, 1 to 10; the expected rating follows it."""
    rows = [
        make_row(1, "Math", ["xxxxx"], ["x", "xx", "xxx"]),
        make_row(2, "Math", ["x"], ["xxxxx", "x", "x"]),
        make_row("ref:0", "Ties", ["xxxxxxx"], ["x"]),
        make_row("tied:0", "Ties", ["xxxxxxx", "xxxxxx"], ["x", "xx"]),
    ]
    out = str(tmp_path / "o.json")
    data = write(tmp_path / "r.jsonl", rows)
    sets = [*FAKE, "--set", "view=rating"]
    assert cli.main(["evaluate", "best-of-four", "--data", data, "--json", out, *sets]) == 0
    result = load_result(out)
    assert result["groups"]["Math"]["accuracy"] == 50.0
    ties = round(100 * (1 + 0.01 * math.tanh(4 / 1 - 1)), 2)
    assert result["groups"]["Ties"]["accuracy"] == ties
    assert result["overall"]["accuracy"] == round((50 + ties) / 2, 2)


def test_a_judge_is_shown_the_rows_reference(tmp_path: Path, capsys: Any) -> None:
    marks = write_reference_format(tmp_path / "marks")
    complete_row = make_row(1, "Math", ["xxxxx"], ["x"]) | {"answer": 5}
    out = str(tmp_path / "o.json")
    sets = [*FAKE, "--set", f"judge.format={marks}", "--set", "columns.reference=answer"]
    command = ["evaluate", "best-of-four", "--data", write(tmp_path / "r.jsonl", [complete_row])]
    assert cli.main([*command, "--json", out, *sets, "--set", "view=rating"]) == 0
    assert load_result(out)["groups"]["Math"]["accuracy"] == 100.0
    lacks = write(tmp_path / "lacks.jsonl", [complete_row, make_row(2, "Math", ["a"], ["b"])])
    command[3] = lacks
    assert cli.main([*command, "--json", str(tmp_path / "p.json"), *sets]) == 1
    assert "lacks.jsonl:2: field 'answer': missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        pytest.param(make_row(1, "Math", ["a"], ["b"]), "1 is also the id of row 1", id="twice"),
        pytest.param(make_row(2, "Math", [], ["b"]), "field 'chosen'", id="nothing chosen"),
        pytest.param(make_row(2, "Ties", ["a"], ["b"]), "write ref:NUMBER or tied:NUMBER", id="id"),
    ],
)
def test_bad_rows_are_named(bad: Any, message: str, tmp_path: Path, capsys: Any) -> None:
    data = write(tmp_path / "r.jsonl", [make_row(1, "Math", ["a"], ["b"]), bad])
    flags = ["--data", data, "--json", str(tmp_path / "o.json"), *FAKE]
    assert cli.main(["evaluate", "best-of-four", *flags]) == 1
    errors = capsys.readouterr().err
    assert "r.jsonl:2: " in errors
    assert message in errors
