"""Stages of the recipe: they run in order, each once, and only under one config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from autoj_reward.errors import EngineError
from experiments.default_judge import __main__ as recipe

ROOT = Path(__file__).parents[3]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Return the package's recipe with a scripted judge and policy, in its own folder."""
    settings: dict[str, Any] = yaml.safe_load(
        (ROOT / "configs/experiments/default_judge.yaml").read_text()
    )
    row = {"query": "q", "response": "r", "rating": 3}
    (tmp_path / "rated.jsonl").write_text(json.dumps(row) + "\n")
    settings["output"] = str(tmp_path / "out")
    settings["data"] = {"folder": str(tmp_path), "rated": ["rated.jsonl"]}
    script = {"ratings": {"r": 3}, "log": str(tmp_path / "log")}
    settings["critiques"] = {
        "output": str(tmp_path / "own.jsonl"),
        "judge": {"kind": "fake", "temperature": 0.8, "script": script},
    }
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def run(config: Path, *more: str) -> int:
    return recipe.main(["--config", str(config), *more])


def test_a_stage_that_is_done_is_not_repeated(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(config, "--parts", "critiques") == 0
    assert "| critiques | 1 of 1 rows with a usable critique" in capsys.readouterr().out
    (tmp_path / "own.jsonl").unlink()
    assert run(config, "--parts", "critiques") == 0
    assert "| critiques | 1 of 1 rows with a usable critique" in capsys.readouterr().out
    assert not (tmp_path / "own.jsonl").exists()
    assert run(config, "--parts", "critiques", "--set", "critiques.samples=3") == 1
    assert "a run of another config" in capsys.readouterr().err


def test_what_fails_is_tried_again_and_what_came_before_is_not(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trained: list[tuple[str, str, str]] = []
    fails = ["brief"]

    def train(name: str, kind: str, base: Path) -> None:
        trained.append((name, kind, base.name))
        if name in fails:
            fails.remove(name)
            raise EngineError("the training of 'brief' failed")

    monkeypatch.setattr(recipe, "run_training", train)
    stages = "ratings,brief,own,ranking,scalar"
    assert run(config, "--parts", stages) == 1
    assert "the training of 'brief' failed" in capsys.readouterr().err
    assert run(config, "--parts", stages) == 0
    assert trained == [
        ("ratings", "judge", "default_judge.yaml"),
        *[("brief", "judge", "default_judge_brief.yaml")] * 2,
        ("own", "judge", "default_judge_own.yaml"),
        ("ranking", "judge", "default_judge_ranking.yaml"),
        ("scalar", "scalar", "default_scalar.yaml"),
    ]


def test_the_weights_of_the_mean_sum_to_1(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(config, "--set", "mean={a: 0.3, b: 0.6}") == 1
    assert "the weights sum to 0.9, not to 1" in capsys.readouterr().err
