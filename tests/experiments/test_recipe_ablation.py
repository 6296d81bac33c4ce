from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from experiments.recipe_ablation import main


def write(folder: Path, variants: dict[str, list[str]]) -> str:
    base = {"model": str(folder / "none"), "output": "x", "data": {"folder": str(folder)}}
    (folder / "base.yaml").write_text(yaml.safe_dump(base))
    config = {
        "base": str(folder / "base.yaml"),
        "output": str(folder / "out"),
        "common": ["epochs=1"],
        "variants": variants,
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(config))
    return str(folder / "run.yaml")


def done(folder: Path, name: str, value: float) -> None:
    record = {
        "config": {},
        "examples": {},
        "steps": 7,
        "validation": {"eval_spearman_direct": value},
        "seconds_since_last_start": 3,
        "machine": "m",
    }
    (folder / "out" / name).mkdir(parents=True)
    (folder / "out" / name / "training.json").write_text(json.dumps(record))


def test_trained_variants_are_not_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done(tmp_path, "plain", 0.25)
    done(tmp_path, "slots", 0.5)
    config = write(tmp_path, {"plain": [], "slots": ["losses.slot_direct=1"]})
    assert main(["--config", config]) == 0
    said = capsys.readouterr().out
    assert "| plain | none | 7 | 0.250 | - | - | - | - |" in said
    assert "| slots | `losses.slot_direct=1` | 7 | 0.500 |" in said
    assert (tmp_path / "out/ablation.md").read_text() in said
    kept = json.loads((tmp_path / "out/ablation.json").read_text())
    assert kept["slots"]["validation"] == {"eval_spearman_direct": 0.5}


def test_a_wrong_override_stops_before_anything_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write(tmp_path, {"first": [], "second": ["losses.slot=1"]})
    assert main(["--config", config]) == 1
    assert "unknown key 'losses.slot'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_training_that_fails_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", write(tmp_path, {"only": []})]) == 1
    said = capfd.readouterr().err
    assert "no model" in said
    assert "the training of 'only' failed" in said
