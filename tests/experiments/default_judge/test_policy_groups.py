from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest

from autoj_reward.config import PolicyConfig
from autoj_reward.data.graded import GRADER, Graded, GradedData, GradedOutput
from autoj_reward.data.labelled import JudgeData
from autoj_reward.journal import SampledResponses
from autoj_reward.training.groups import WORSE
from experiments.compare.checkers import KINDS, Checkable, parse_checks, read_checkable
from experiments.default_judge.made_rows import (
    LOWEST,
    PolicyGroupsConfig,
    make_group_below,
    make_spread_group,
    write_groups,
)

NAMES = ("made_questions", "checkable")
CHECKS = [{"kind": "number", "value": 7}]
QUESTION = {"query": "3 + 4?", "kind": "arithmetic", "checks": CHECKS}
ROW = Checkable(1, "3 + 4?", "arithmetic", parse_checks(QUESTION))


def make_samples(*responses: str) -> SampledResponses:
    return SampledResponses(responses, (None,) * len(responses), (True,) * len(responses), 1)


def test_the_made_questions_are_checkable_and_not_those_that_measure() -> None:
    made_questions, measuring = (read_checkable(f"experiments/data/{name}.jsonl") for name in NAMES)
    assert not made_questions.bad
    queries = {row.query for row in made_questions.rows}
    assert len(queries - {row.query for row in measuring.rows}) == len(made_questions.rows) == 320
    assert {row.kind for row in made_questions.rows} == set(KINDS)


def test_a_group_spreads_from_the_worst_response_to_the_best() -> None:
    group = make_spread_group(
        ROW, make_samples("7", "seven", "It is 8", "Is it 7?", "7", "It is 6"), 3
    )
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
    assert make_spread_group(ROW, make_samples(*responses), 3) is None


def test_the_policys_response_is_below_the_systems() -> None:
    outputs = tuple(GradedOutput(f"s{n}", f"Text {n}.", -float(n)) for n in range(5))
    group = make_group_below(
        Graded("f", 1, "Why?", outputs), make_samples(" ", "So so."), 4, random.Random(0)
    )
    assert group
    assert group["responses"][-1] == "So so."
    assert group["scores"][-1] == min(group["scores"][:-1]) - WORSE
    assert (
        make_group_below(
            Graded("f", 1, "Why?", outputs[:2]), make_samples("So."), 4, random.Random(0)
        )
        is None
    )
    assert (
        make_group_below(Graded("f", 1, "Why?", outputs), make_samples(" "), 4, random.Random(0))
        is None
    )


async def test_groups_of_both_kinds_are_written(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "preferences.jsonl.gz", "wt") as preferences:
        for n in range(3):
            preference = {
                "annotator": GRADER,
                "instruction": "Q",
                "second": f"s{n}",
                "preference": 0.1,
            }
            preferences.write(json.dumps(preference) + "\n")
    with gzip.open(tmp_path / "outputs.jsonl.gz", "wt") as texts:
        outputs = {f"s{n}": f"Output {n}." for n in range(3)}
        texts.write(json.dumps({"instruction": "Q", "outputs": outputs}) + "\n")
    # The scripted policy's answer k has 4 + k words and a slash.
    words = QUESTION | {"checks": [{"kind": "words", "low": 4, "high": 4}]}
    (tmp_path / "made.jsonl").write_text(json.dumps(words) + "\n")
    config = PolicyGroupsConfig(
        output=tmp_path / "out/groups.jsonl",
        policy=PolicyConfig(kind="fake", n=4),
        questions=str(tmp_path / "made.jsonl"),
    )
    graded = GradedData(folder=str(tmp_path), test=0, validation=0)
    assert (await write_groups(config, JudgeData(graded=graded))).startswith("2 groups: ")
    spread_group, below_systems = map(json.loads, config.output.read_text().splitlines())
    assert spread_group["query"] == "3 + 4?" and spread_group["scores"] == sorted(
        spread_group["scores"]
    )
    assert below_systems["query"] == "Q" and len(below_systems["responses"]) == 4
