from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest
import yaml

from autoj_reward.evaluate.graded import GRADER, Graded, Output
from autoj_reward.journal import Sampled
from autoj_reward.training.groups import WORSE
from experiments.compare.ablation.checkers import KINDS, read_checkable
from experiments.made_questions import made_questions
from experiments.policy_groups import LOWEST, below, main, spread

CHECKS = [{"kind": "number", "value": 7}]
ROW = {"query": "3 + 4?", "kind": "arithmetic", "checks": CHECKS}


def said(*responses: str) -> Sampled:
    return Sampled(responses, (None,) * len(responses), (True,) * len(responses), 1)


def test_made_questions_are_different_checkable_and_not_those_that_measure(tmp_path: Path) -> None:
    rows = made_questions(400, 0)
    assert rows == made_questions(400, 0)
    (tmp_path / "made.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    read = read_checkable(str(tmp_path / "made.jsonl"))
    assert not read.bad
    assert {row.kind for row in read.rows} == set(KINDS)
    measuring = {row.query for row in read_checkable("experiments/data/checkable.jsonl").rows}
    assert len({row["query"] for row in rows} - measuring) == 400


def test_a_group_spreads_from_the_worst_response_to_the_best() -> None:
    group = spread(ROW, said("7", "seven", "It is 8", "Is it 7?", "7", "It is 6"), 3)
    assert group
    assert group["query"] == "3 + 4?"
    assert group["responses"][0] == "seven" and group["scores"][0] == LOWEST
    assert group["responses"][2] in ("7", "Is it 7?") and group["scores"][2] == 0


@pytest.mark.parametrize(
    "responses",
    [
        pytest.param(("7", "7.", "It is 7"), id="all right"),
        pytest.param(("7", "8", "7"), id="too few different ones"),
    ],
)
def test_no_group_without_an_order(responses: tuple[str, ...]) -> None:
    assert spread(ROW, said(*responses), 3) is None


def test_the_policys_response_is_below_the_systems() -> None:
    outputs = tuple(Output(f"s{n}", f"Text {n}.", -float(n)) for n in range(5))
    group = below(Graded("f", 1, "Why?", outputs), said(" ", "So so."), 4, random.Random(0))
    assert group
    assert group["responses"][-1] == "So so."
    assert group["scores"][-1] == min(group["scores"][:-1]) - WORSE
    assert below(Graded("f", 1, "Why?", outputs[:2]), said("So."), 4, random.Random(0)) is None
    assert below(Graded("f", 1, "Why?", outputs), said(" "), 4, random.Random(0)) is None


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with gzip.open(tmp_path / "preferences.jsonl.gz", "wt") as preferences:
        for n in range(3):
            own = {"annotator": GRADER, "instruction": "Q", "second": f"s{n}", "preference": 0.1}
            preferences.write(json.dumps(own) + "\n")
    with gzip.open(tmp_path / "outputs.jsonl.gz", "wt") as texts:
        outputs = {f"s{n}": f"Output {n}." for n in range(3)}
        texts.write(json.dumps({"instruction": "Q", "outputs": outputs}) + "\n")
    config = {
        "data": {"graded": {"folder": str(tmp_path), "test": 0, "validation": 0}},
        "policy": {"kind": "fake", "n": 4, "script": {}},
        "questions": 8,
        "output": str(tmp_path / "out/groups.jsonl"),
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    assert main(["--config", str(tmp_path / "run.yaml")]) == 0
    rows = [json.loads(line) for line in (tmp_path / "out/groups.jsonl").read_text().splitlines()]
    assert f"{len(rows)} groups" in capsys.readouterr().out
    assert rows[-1]["query"] == "Q" and len(rows[-1]["responses"]) == 4
