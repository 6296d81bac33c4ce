from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch.utils.tensorboard import SummaryWriter

from autoj_reward.config import load_config
from experiments.sweep import main
from experiments.sweep_readings import READINGS, logged
from rollouts.train.config import TrainConfig


def write(folder: Path, train: str, variants: dict[str, list[str]], **base: Any) -> list[str]:
    """The arguments of a sweep whose base names no model."""
    bases: dict[str, Any] = {
        "judge": {"model": str(folder / "none"), "output": "x", "data": {"folder": str(folder)}},
        "scalar": {
            "model": str(folder / "none"),
            "output": "x",
            "data": {"folder": str(folder), "compared": ["pairs.jsonl"], "held_out": 0.3},
            "epochs": 2,
        },
        "grpo": {"input": "q.jsonl", "output": "x", "reward": {"judge": {"kind": "fake"}}},
    }
    (folder / "base.yaml").write_text(yaml.safe_dump(bases[train] | base))
    common = [] if train == "grpo" else ["epochs=2"]
    config = {
        "train": train,
        "base": str(folder / "base.yaml"),
        "output": str(folder / "out"),
        "common": common,
        "variants": variants,
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    return ["--config", str(folder / "run.yaml")]


def done(folder: Path, name: str, **record: Any) -> None:
    (folder / "out" / name).mkdir(parents=True)
    (folder / "out" / name / "training.json").write_text(json.dumps(record))


def result(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "out/sweep.json").read_text())
    return found


def test_trained_variants_are_not_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("plain", 0.25), ("slots", 0.5)):
        done(
            tmp_path, name, config={}, examples={}, steps=7, seconds_since_last_start=3,
            machine="m", validation={"eval_spearman_direct": value},
        )  # fmt: skip
    asked = write(tmp_path, "judge", {"plain": [], "slots": ["losses.slot_direct=1"]})
    assert main(asked) == 0
    said = capsys.readouterr().out
    assert "| plain | none | 7 | 0.250 |  |  |  |  |" in said
    assert "| slots | `losses.slot_direct=1` | 7 | 0.500 |" in said
    assert "overrides of all: `epochs=2`" in said
    assert (tmp_path / "out/sweep.md").read_text() in said
    assert result(tmp_path)["rows"][1]["validation"] == {"eval_spearman_direct": 0.5}


def test_a_wrong_override_stops_before_anything_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(write(tmp_path, "judge", {"first": [], "second": ["losses.slot=1"]})) == 1
    assert "unknown key 'losses.slot'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.training
def test_a_training_that_fails_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(write(tmp_path, "judge", {"only": []})) == 1
    said = capfd.readouterr().err
    assert "no model" in said
    assert "the training of 'only' failed" in said


# A scalar model's epochs.


def finished(folder: Path, name: str, *readings: tuple[float, float]) -> None:
    history = [{"eval_accuracy": a, "eval_loss": b, "eval_margin": 0.1} for a, b in readings]
    longer = {"value": 0.5, "low": 0.25, "high": 0.75, "n": 7}
    done(
        folder, name, history=[{"loss": 1.0}, *history],
        validation={"length_accuracy": longer}, pairs={"training": 9, "validation": 7},
    )  # fmt: skip


RATES = {f"lr_{rate}": [f"learning_rate={rate}"] for rate in ("1e-05", "0.0001", "0.001")}


def test_the_search_chooses_by_accuracy_and_then_by_loss(tmp_path: Path) -> None:
    finished(tmp_path, "lr_1e-05", (0.6, 0.7), (0.7, 0.6))
    finished(tmp_path, "lr_0.0001", (0.7, 0.5), (0.7, 0.8))
    finished(tmp_path, "lr_0.001", (0.5, 0.1), (0.5, 0.1))
    assert main(write(tmp_path, "scalar", RATES)) == 0
    said = (tmp_path / "out/sweep.md").read_text()
    row = "| lr_0.0001 | `learning_rate=0.0001` | 1 | 0.700 | 0.5000 | 0.100 | 0.500 [0.250, 0.750]"
    assert f"{row} | 7 | chosen |" in said and said.count("chosen |") == 1
    assert "stop_after=EPOCH" in said
    assert [row["epoch"] for row in result(tmp_path)["rows"]] == [1, 2] * 3


def test_a_search_needs_held_out_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(write(tmp_path, "scalar", RATES, data={"compared": ["pairs.jsonl"]})) == 1
    assert "nothing to choose by" in capsys.readouterr().err
    done(tmp_path, "lr_1e-05", history=[{"loss": 1}])
    assert main(write(tmp_path, "scalar", RATES)) == 1
    assert "no pair was held out" in capsys.readouterr().err


@pytest.mark.training
def test_a_search_trains_its_runs(policy: str, tmp_path: Path) -> None:
    rows = [
        {"query": f"query {n}", "response_1": "good answer", "response_2": "bad", "label": 0}
        for n in range(12)
    ]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    small = {"model": policy, "max_length": 128, "lora": {"rank": 2, "alpha": 4, "first_layer": 1}}
    small |= {"batch_size": 4, "device_batch_size": 2, "save_steps": 2}
    assert main(write(tmp_path, "scalar", {"only": []}, **small)) == 0
    found = result(tmp_path)["rows"]
    assert [row["epoch"] for row in found] == [1, 2]
    assert all(isinstance(row["accuracy"]["value"], float) for row in found)


# What a judge costs a GRPO step.


def logs(folder: Path, **figures: list[float]) -> Path:
    with SummaryWriter(str(folder)) as writer:
        for name, values in figures.items():
            for step, value in enumerate(values, 1):
                writer.add_scalar(name.replace("__", "/"), value, step)
    return folder


def test_a_sweep_without_a_free_variant_has_nothing_to_compare_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(write(tmp_path, "grpo", {"a": [], "free": []})) == 1
    assert "first one named `free`" in capsys.readouterr().err


def test_overlap_of_hand_made_logs(tmp_path: Path) -> None:
    for name, step, wait, seconds in (
        ("free", [90.0, 6.0, 6.0, 6.0], [1.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]),
        ("judge", [90.0, 10.0, 14.0, 12.0], [80.0, 2.0, 4.0, 3.0], [9.0, 0.875, 1.875, 1.375]),
    ):
        own = {"train__step_time": step, "judge__wait_seconds": wait, "judge__seconds": seconds}
        own["judge__queued_seconds"] = [0.0, 0.125, 0.125, 0.125]
        logs(tmp_path / "out" / name / "logs", **own)
        (tmp_path / "out" / name / "policy").mkdir()
    asked = write(tmp_path, "grpo", {"free": [], "judge": []}, batch_size=8, group=4)
    config = load_config(TrainConfig, tmp_path / "base.yaml")
    [found] = READINGS["grpo"].read(tmp_path / "out/judge", config)
    assert found == {"step": 12.0, "wait": 3.0, "judged": 12.0, "steps": 3}
    assert main(asked) == 0
    said = (tmp_path / "out/sweep.md").read_text()
    assert "| judge | 12.0 | 2.00 | 3.0 s | 12.0 s | 75% | 3 |" in said
    assert "| free | 6.0 | 1.00 | 0.0 s | 1.0 s |  | 3 |" in said


def test_logged_figures_of_several_files_come_by_step(tmp_path: Path) -> None:
    logs(tmp_path / "a", judge__raw=[1.0, 2.0])
    with SummaryWriter(str(tmp_path / "b")) as writer:
        writer.add_scalar("judge/raw", 3.0, 3)
    assert logged(tmp_path, "judge/raw") == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert logged(tmp_path, "judge/none") == []
