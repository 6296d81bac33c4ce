from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autoj_reward.data.filters import measured_queries
from autoj_reward.data.labelled import JudgeData
from autoj_reward.errors import InputError
from autoj_reward.evaluate.agreement import calibration_bins, calibration_error
from autoj_reward.formats.criteria import load_scenarios
from autoj_reward.models.scenarios import LinearClassifier
from experiments.default_judge.scenarios import (
    LabelledQuery,
    ScenarioRows,
    ScenariosConfig,
    accuracy,
    assign_folds,
    calibrate,
    choose_threshold,
    drop_measured,
    fit_classifier,
    macro_f1,
    read_scenario_rows,
    split_rows,
    train_classifier,
)

KNOWN = load_scenarios()
OWN = Path(__file__).parents[3] / "experiments/data/scenario_queries.jsonl"
ROWS = [
    LabelledQuery(n, f"{verb} {thing} number {n} please", name)
    for n, (verb, thing, name) in enumerate(
        [("plan", "a party", "planning"), ("sort", "this list", "ranking")] * 10
        + [("tell me", "a joke", "chitchat")] * 6
    )
]


def test_labelled_rows(tmp_path: Path) -> None:
    rows: list[Any] = [
        {"category": "default", "instruction": "Say ok.", "input": ""},
        {"category": "value_judgement", "instruction": "Is it", "input": "right? "},
        {"category": "rejecting", "instruction": "x", "input": ""},
        {"category": "nonsense", "instruction": "x", "input": ""},
        {"scenario": "planning", "prompt": "Plan."},
        {"category": "planning"},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    file_rows = read_scenario_rows(str(path), KNOWN)
    assert file_rows.rows == (
        LabelledQuery(1, "Say ok.", "others"),
        LabelledQuery(2, "Is it right?", "value_judgment"),
        LabelledQuery(5, "Plan.", "planning"),
    )
    assert [(bad.line, bad.field) for bad in file_rows.bad] == [
        (3, "category"),
        (4, "category"),
        (6, "scenario"),
    ]
    path.write_text('{"category": "rejecting", "instruction": "x"}\n')
    with pytest.raises(InputError, match="no usable row; 1 left out"):
        read_scenario_rows(str(path), KNOWN)


def test_measured_queries_are_not_trained_on() -> None:
    long = "Summarize the following article about the harbour"
    rows = [
        LabelledQuery(1, "Plan  a party", "planning"),
        LabelledQuery(2, long + " and its text", "text_summarization"),
        LabelledQuery(3, long[:-2], "text_summarization"),
        LabelledQuery(4, "Plan a party now", "planning"),
        LabelledQuery(5, "Summarize the following article about the hills", "text_summarization"),
    ]
    assert [row.line for row in drop_measured(rows, ["Plan a party", long])] == [4, 5]


def test_the_split_takes_its_share_of_every_scenario() -> None:
    parts = split_rows([*ROWS, LabelledQuery(99, "alone", "others")], 0.2)
    validation_scenarios = [row.scenario for row in parts.validation]
    assert {name: validation_scenarios.count(name) for name in set(validation_scenarios)} == {
        "planning": 2,
        "ranking": 2,
        "chitchat": 1,
    }
    assert len(parts.training) == 27 - 5
    assert split_rows(ROWS, 0.2) == split_rows(ROWS, 0.2)


def test_folds_spread_every_scenario() -> None:
    folds = assign_folds(ROWS, 5)
    for name, most in (("planning", 2), ("chitchat", 2)):
        counts = np.bincount(
            [f for f, row in zip(folds, ROWS, strict=True) if row.scenario == name]
        )
        assert counts.min() >= 1 and counts.max() <= most


def test_a_classifier_learns_what_can_be_learned() -> None:
    config = ScenariosConfig(rows=ScenarioRows(training="x"), strengths=(1.0,), folds=3)
    fitted = fit_classifier(ROWS, config)
    assert fitted.cross_validated == {1.0: 1.0}
    queries = ["plan a party number 77 please", "sort this list number 78 please"]
    assert [c.best for c in fitted.classifier.classify(queries)] == ["planning", "ranking"]


def test_calibration_and_threshold() -> None:
    rng = np.random.default_rng(0)
    true_labels = rng.integers(3, size=600)
    scores = rng.normal(0, 1, (600, 3)).astype(np.float32)
    scores[np.arange(600), true_labels] += 1.5
    calibration = calibrate(10 * scores, true_labels)
    right = scores.argmax(axis=1) == true_labels
    error = calibration_error(calibration_bins(calibration.confidence(10 * scores), right))
    assert error is not None and error < 0.05
    # Three sure and right, one unsure whose truth is others.
    truth = ["a", "b", "a", "others"]
    four = np.array([[9, 0], [0, 9], [9, 0], [1, 0]], np.float32)
    assert choose_threshold(four, np.array([0.9, 0.9, 0.8, 0.25]), truth, ["a", "b"]) == 0.26


def test_figures_by_hand() -> None:
    """a has precision 1 and recall 1/2, b precision 1/2 and recall 1. Both have an F1 of 2/3."""
    truth, predictions = ["a", "a", "b"], ["a", "b", "b"]
    everything = np.arange(3)
    assert macro_f1(truth, predictions)(everything) == pytest.approx(2 / 3)
    assert accuracy(truth, predictions)(everything) == pytest.approx(2 / 3)
    # An answer outside the true scenarios counts against recall, but is no scenario of its own.
    assert macro_f1(["a", "a"], ["a", "z"])(np.arange(2)) == pytest.approx(2 / 3)
    right, sure = np.array([1.0, 0.0, 1.0]), np.array([0.85, 0.85, 1.0])
    assert calibration_error(calibration_bins(sure, right)) == pytest.approx(2 / 3 * 0.35)


def test_own_queries_measure_nothing_and_cover_the_gap() -> None:
    rows = read_scenario_rows(str(OWN), KNOWN)
    assert not rows.bad
    assert "post_summarization" in {row.scenario for row in rows.rows}


def test_own_queries_are_in_no_released_test_set(release_folder: Path) -> None:
    rows = read_scenario_rows(str(OWN), KNOWN).rows
    measured = measured_queries([str(release_folder / "autoj/testdata_pairwise.jsonl")])
    assert measured and len(drop_measured(rows, measured)) == len(rows)


def test_a_classifier_is_trained_saved_and_measured(tmp_path: Path) -> None:
    rows = [{"category": r.scenario, "instruction": r.query, "input": ""} for r in ROWS]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pair = {"scenario": "planning", "prompt": "plan a party number 3 please"}
    (tmp_path / "measure.jsonl").write_text(json.dumps(pair) + "\n")
    files = ScenarioRows(training="train.jsonl", measure="measure.jsonl")
    config = ScenariosConfig(rows=files, strengths=(1.0,), bootstrap=20)
    summary = train_classifier(config, JudgeData(folder=tmp_path), tmp_path / "out")
    assert "held out, 5 rows: accuracy 1.000 [1.000, 1.000], macro-F1 1.000" in summary
    assert "measured besides, 1 rows: accuracy 1.000" in summary
    assert LinearClassifier.load(tmp_path / "out").labels == ("chitchat", "planning", "ranking")
