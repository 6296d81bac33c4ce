"""The study of a real judge of rubric items, with scripted judges."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from autoj_reward.config import check
from autoj_reward.config.load import read_yaml
from autoj_reward.evaluate.agreement import calibration_bins, calibration_error
from autoj_reward.evaluate.statistics import Draws
from experiments.compare.rubric_judge import (
    PARTS,
    CheckedTasks,
    RubricJudgeConfig,
    compute_area_under_curve,
    main,
    make_calibration_rows,
    make_responses,
    measure_checklist_order,
    measure_verdicts,
)

TASKS = Path(__file__).parents[3] / "experiments/data/checked_items.yaml"
SMALL = {
    "tasks": [
        {
            "query": "Name an animal.",
            "items": [
                {
                    "criterion": f'Names a "{animal}"',
                    "points": points,
                    "pattern": animal,
                    "met": [f"I like a {animal}.", f"A {animal} it is."],
                    "unmet": ["I like none.", "It is a plant."],
                }
                for animal, points in (("cat", 2), ("dog", 1), ("wolf", -1))
            ],
        }
    ]
}


def write_config(folder: Path, **judge: Any) -> Path:
    """Write a config for tasks whose items a scripted judge decides as the program does."""
    tasks = folder / "tasks.yaml"
    tasks.write_text(yaml.safe_dump(SMALL))
    config = {
        "output": str(folder / "out"),
        "tasks": str(tasks),
        "judge": {"kind": "fake"} | judge,
        "responses": 12,
        "bootstrap": 20,
    }
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def test_a_judge_that_reads_items_is_right_about_all_of_them(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    assert main(["--config", str(config)]) == 0
    steps = json.loads((tmp_path / "out/rubric_judge.json").read_text())["steps"]
    assert list(steps) == list(PARTS)
    responses = make_responses(
        check(RubricJudgeConfig, yaml.safe_load(config.read_text()), "run.yaml")
    )
    for part in ("items", "checklist"):
        figures = measure_verdicts(steps[part]["shares"], responses, Draws(20))
        assert figures["accuracy"]["value"] == figures["area"]["value"] == 1
        assert figures["error"] < 0.06 and figures["brier"]["value"] < 0.01
        assert measure_checklist_order(steps[part]["scores"], responses, Draws(20))["value"] > 0.95
    assert [steps[part]["calls"] for part in PARTS] == [36, 12, 12]
    page = (tmp_path / "out/rubric_judge.md").read_text()
    assert "12 responses with 36 items" in page and "| `items`, without reasons | 1.000" in page


def test_items_without_a_verdict_are_counted_and_left_out() -> None:
    holds = np.array([1.0, 0.0])
    responses = [
        replace(response, holds=(True, False)) for response in make_responses(read_config())
    ]
    shares = [[0.9, None] if n else [0.9, 0.6] for n in range(len(responses))]
    figures = measure_verdicts(shares, responses, Draws(20))
    assert figures["abstained"] == len(responses) - 1
    assert figures["accuracy"]["n"] == len(responses) + 1
    assert figures["accuracy"]["value"] == pytest.approx(len(responses) / (len(responses) + 1))
    assert compute_area_under_curve(np.array([0.5, 0.5]), holds) == 0.5
    assert compute_area_under_curve(np.array([0.5]), holds[:1]) is None


def read_config() -> RubricJudgeConfig:
    return RubricJudgeConfig.model_validate({"output": "out", "judge": {}, "tasks": str(TASKS)})


def test_calibration_compares_probabilities_with_outcomes() -> None:
    shares, holds = np.array([0.81, 0.89, 0.2, 1.0]), np.array([1.0, 0.0, 0.0, 1.0])
    bins = calibration_bins(shares, holds)
    rows = make_calibration_rows(bins)
    assert [(row["range"], row["count"]) for row in rows] == [
        ("0.2 to 0.3", 1),
        ("0.8 to 0.9", 2),
        ("0.9 to 1.0", 1),
    ]
    assert rows[1]["share"] == pytest.approx(0.85) and rows[1]["holds"] == 0.5
    assert calibration_error(bins) == pytest.approx((0.2 + 2 * 0.35 + 0) / 4)


def test_each_item_of_the_study_is_met_by_its_own_sentences_alone() -> None:
    for task in check(CheckedTasks, read_yaml(TASKS), str(TASKS)).tasks:
        assert len(task.items) == 8
        for item in task.items:
            others = [other_item.met for other_item in task.items if other_item is not item]
            unmet = [other_item.unmet for other_item in task.items]
            assert all(map(item.holds, item.met)), item.criterion
            assert not any(item.holds(text) for texts in (*others, *unmet) for text in texts)


def test_the_same_config_makes_the_same_responses() -> None:
    responses = make_responses(read_config())
    assert responses == make_responses(read_config())
    assert len({response.candidate.response for response in responses}) == len(responses) == 40
    assert {response.score for response in responses} <= {n / 8 for n in range(9)}
