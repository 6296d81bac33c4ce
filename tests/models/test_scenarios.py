from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autoj_reward.cli.main import main as autoj
from autoj_reward.errors import ModelError
from autoj_reward.formats.criteria import load_scenarios
from autoj_reward.models.scenarios import (
    CLASSIFIER_FILES,
    Calibration,
    Features,
    LinearClassifier,
    opening_terms,
    shipped_classifier,
    softmax,
    whole_terms,
    words_of,
)

KNOWN = load_scenarios()


def test_terms_of_a_query() -> None:
    words = words_of("Plan a trip!")
    assert words == ["plan", "a", "trip", "!"]
    assert list(whole_terms(words)) == [*words, "plan a", "a trip", "trip !"]
    assert set(opening_terms(words[:2])) == {"^plan", "^a", "^plan a", "^^plan", "^^plan a"}


def test_features_by_hand() -> None:
    """The query has two terms with frequencies 2 and 1, one opening term and an unknown word."""
    features = Features({"a": 0, "b": 1, "^b": 2}, np.array([1.0, 2.0, 9.0], np.float32))
    columns, values = features.row("a b x a")
    first, second = (1 + math.log(2)) * 1, 1 * 2
    length = math.hypot(first, second)
    assert columns.tolist() == [0, 1, 2]
    assert values == pytest.approx([first / length, second / length, 1.0], rel=1e-6)
    assert [part.size for part in features.row("")] == [0, 0]


def test_very_long_queries_are_read_at_both_ends() -> None:
    words = words_of("start " + "x " * 9000 + "end")
    assert (words[0], words[-1]) == ("start", "end")
    assert len(words) == 1998 + 999


def make_tiny_classifier(**more: Any) -> LinearClassifier:
    features = Features({"plan": 0, "code": 1}, np.ones(2, np.float32))
    weights = np.array([[1, 0], [0, 1]], np.float16)
    fields: dict[str, Any] = {"calibration": Calibration(0.5, 2.0, -1.0), "others_below": 0.0}
    return LinearClassifier(
        features,
        ("planning", "code_generation"),
        weights,
        np.zeros(2, np.float32),
        **(fields | more),
    )


def test_confidence_by_hand() -> None:
    """Scores 1 and 0 at temperature 0.5 have log-odds 2. Slope 2 and offset -1 turn them into 3."""
    [choice] = make_tiny_classifier().classify(["plan"])
    assert (choice.scenario, choice.best) == ("planning", "planning")
    assert choice.confidence == pytest.approx(1 / (1 + math.exp(-3)), abs=1e-6)
    assert softmax(np.array([[1, 0]], np.float32), 0.5)[0, 0] == pytest.approx(
        1 / (1 + math.exp(-2))
    )


@pytest.mark.parametrize(
    ("default_threshold", "threshold", "scenario"),
    [(0.96, None, "others"), (0.9, None, "planning"), (0.96, 0.5, "planning"), (0, 1, "others")],
)
def test_low_confidence_means_others(
    default_threshold: float, threshold: float | None, scenario: str
) -> None:
    [choice] = make_tiny_classifier(others_below=default_threshold).classify(["plan"], threshold)
    assert (choice.scenario, choice.best) == (scenario, "planning")


def test_files_come_back_as_they_were(tmp_path: Path) -> None:
    make_tiny_classifier().save(tmp_path)
    assert LinearClassifier.load(tmp_path).classify(
        ["code", ""]
    ) == make_tiny_classifier().classify(["code", ""])


@pytest.mark.parametrize(
    ("name", "change"),
    [
        pytest.param("weights.npz", b"PK", id="no archive"),
        pytest.param("weights.npz", None, id="missing"),
        pytest.param("vocabulary.json", b"{}", id="no facts"),
        pytest.param("vocabulary.json", b"\xff", id="no text"),
    ],
)
def test_broken_files_are_said(tmp_path: Path, name: str, change: bytes | None) -> None:
    make_tiny_classifier().save(tmp_path)
    (tmp_path / name).unlink() if change is None else (tmp_path / name).write_bytes(change)
    with pytest.raises(ModelError, match="no scenario classifier can be read there"):
        LinearClassifier.load(tmp_path)


def test_weights_of_another_vocabulary_are_said(tmp_path: Path) -> None:
    make_tiny_classifier().save(tmp_path)
    path = tmp_path / "vocabulary.json"
    path.write_text(path.read_text().replace('"code",\n', "").replace('"plan",\n"code"', '"plan"'))
    with pytest.raises(ModelError, match=r"weights \(2, 2\) where \(1, 2\) is needed"):
        LinearClassifier.load(tmp_path)


def test_the_shipped_classifier_is_small_and_knows_every_scenario() -> None:
    classifier = shipped_classifier()
    assert set(classifier.labels) == set(KNOWN.names)
    assert sum(path.stat().st_size for path in CLASSIFIER_FILES.iterdir()) < 3e6
    queries = ["Write a python function that reverses a string.", "Translate 'bread' into French."]
    assert [c.scenario for c in classifier.classify(queries)] == [
        "code_generation",
        "text_to_text_translation",
    ]


def test_the_shipped_classifier_on_eval_p(released: Any) -> None:
    """Its card states 0.45 on Eval-P's development half, which it was not trained on."""
    rows = released("autoj/testdata_pairwise.jsonl")
    choices = shipped_classifier().classify([row["prompt"] for row in rows])
    right = [
        KNOWN[row["scenario"]].name == c.scenario for row, c in zip(rows, choices, strict=True)
    ]
    assert 0.40 < sum(right) / len(right) < 0.50


def test_the_classifier_needs_numpy_alone() -> None:
    code = (
        "import sys; from autoj_reward.models.scenarios import shipped_classifier\n"
        "shipped_classifier().classify(['Plan a party.'])\n"
        "print(*{m.split('.')[0] for m in sys.modules})"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert {"torch", "transformers", "sklearn", "scipy"} & set(result.stdout.split()) == set()


def test_classify_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    rows = [{"query": "Write a python function that sorts.", "id": 7}, {"q": 1}]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    base = ["classify", "--input", str(source), "--output", str(output)]
    assert autoj(base) == 0
    [record] = map(json.loads, output.read_text().splitlines())
    assert (record["id"], record["scenario"], record["best"]) == (7, *["code_generation"] * 2)
    assert 0 < record["confidence"] < 1
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["scenarios"] == {
        "code_generation": 1
    }
    assert autoj([*base, "--others-below", "1"]) == 0
    assert json.loads(output.read_text())["scenario"] == "others"
    assert autoj([*base, "--others-below", "2"]) == 1
    assert autoj([*base, "--strict"]) == 1


def test_scenarios_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert autoj(["scenarios"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 58
    (tmp_path / "triage.yaml").write_text(
        "scenario: {group: code, description: Sort tickets.}\n"
        "own: {team: {type: content, content: The right team.}}\n"
    )
    assert autoj(["scenarios", "--show", "triage", "--folder", str(tmp_path)]) == 0
    assert "1. team: The right team." in capsys.readouterr().out
    assert autoj(["scenarios", "--show", "triage"]) == 1
    assert "no scenario 'triage'" in capsys.readouterr().err
