"""The study of how judging overlaps with generation, with scripted trainers and verl's own code."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from autoj_reward.reward import judge_reward
from autoj_reward.trainer.rows import REWARD_MODELS, VARIABLE
from experiments.speed import overlap
from experiments.speed.overlap import main, measure_hidden_share
from experiments.speed.overlap_trainers import TRAINERS, MeasuredTrainer, OverlapWork
from tests.trainer.conftest import FRAMEWORKS, ROOT

SMALL = {"groups": 1, "generations": 2, "steps": 1, "judgement_s": 0.01}
SMALL |= {"shortest_s": 0.0, "longest_s": 0.01}


@contextmanager
def one_by_one(work: OverlapWork, judged: int) -> Iterator[Callable[[], None]]:
    """Open a trainer that generates and judges one rollout at a time, and only `judged` of them."""

    async def rollouts() -> None:
        for _ in range(judged):
            text = await work.policy.generate()
            assert await judge_reward(["Why?"], [text])

    yield lambda: asyncio.run(rollouts())


@pytest.fixture
def run_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Return a function that runs the study with trainers of its own, and returns the result."""
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(trainers: dict[str, MeasuredTrainer]) -> tuple[int, dict[str, Any]]:
        monkeypatch.setattr(overlap, "TRAINERS", trainers)
        (tmp_path / "trl/trl").mkdir(parents=True)
        places = {"trl": str(tmp_path / "trl"), "frameworks": str(tmp_path / "none")}
        config = {"output": str(tmp_path / "out"), **places, **SMALL}
        path = tmp_path / "run.yaml"
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        code = main(["--config", str(path)])
        record = json.loads((tmp_path / "out/overlap.json").read_text(encoding="utf-8"))
        return code, record["steps"]

    yield run
    for model in REWARD_MODELS.values():
        model.close()
    REWARD_MODELS.clear()


def test_a_trainer_that_is_not_installed_has_no_figures(
    run_study: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = MeasuredTrainer("one by one", "trl", partial(one_by_one, judged=2))
    missing = MeasuredTrainer("missing", "verl", partial(one_by_one, judged=2))
    code, steps = run_study({"alone": alone, "missing": missing})
    assert code == 0
    assert steps["alone"]["in_flight"] == 1 and steps["alone"]["both_s"] > 0
    assert steps["missing"]["both_s"] is None
    page = (tmp_path / "out/overlap.md").read_text(encoding="utf-8")
    assert "| missing not installed |  |" in page
    assert "make test-frameworks" in capsys.readouterr().err


def test_a_rollout_that_is_not_judged_is_an_error(
    run_study: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = MeasuredTrainer("forgets one", "trl", partial(one_by_one, judged=1))
    code, _ = run_study({"forgets": trainer})
    assert code == 1
    assert "1 judgements of 2 rollouts" in capsys.readouterr().err


@pytest.mark.parametrize(("both_s", "hidden"), [(11.0, 0.0), (7.0, 1.0), (8.0, 0.75)])
def test_the_hidden_share(both_s: float, hidden: float) -> None:
    seconds = {"neither_s": 1.0, "generation_s": 7.0, "judging_s": 5.0, "both_s": both_s}
    assert measure_hidden_share(seconds) == hidden


def test_verl_and_openrlhf_judge_each_rollout_once(tmp_path: Path) -> None:
    """In a process of its own, since the study changes the import path."""
    if any(not (FRAMEWORKS / name).is_dir() for name in ("verl", "openrlhf")):
        pytest.skip(f"verl and openrlhf not in {FRAMEWORKS}: make test-frameworks")
    config = {"output": str(tmp_path), "frameworks": str(FRAMEWORKS), "trl": "none", **SMALL}
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    parts = [name for name, trainer in TRAINERS.items() if trainer.package != "trl"]
    command = [sys.executable, "-m", "experiments.speed.overlap", "--config", str(path)]
    subprocess.run([*command, "--parts", ",".join(parts)], check=True, cwd=ROOT)
    steps = json.loads((tmp_path / "overlap.json").read_text(encoding="utf-8"))["steps"]
    assert list(steps) == parts and all(step["in_flight"] >= 1 for step in steps.values())
