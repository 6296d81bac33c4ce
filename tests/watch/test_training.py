"""Trainers' logs, in files that TRL and this project's training commands write."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path

import pytest

from autoj_reward.watch.answers import Answers
from autoj_reward.watch.run import POINTS, Curves
from tests.watch.conftest import OpenRun


def test_tensorboard_files_are_read_as_they_grow(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="writes the files")
    from torch.utils.tensorboard import SummaryWriter

    curves = Curves(tmp_path)
    curves.read()
    assert (curves.step, curves.list_points()) == (0, {})
    writer = SummaryWriter(str(tmp_path / "logs"))
    writer.add_scalar("train/reward", 3.5, 1)
    writer.add_text("judge/sample", "<b>a text</b>", 1)
    writer.flush()
    curves.read()
    assert curves.list_points() == {"reward": [(1, 3.5)]}
    writer.add_scalar("train/reward", 4.5, 2)
    writer.add_scalar("judge/tie_rate", math.nan, 2)
    writer.flush()
    curves.read()
    assert curves.list_points() == {"reward": [(1, 3.5), (2, 4.5)]}
    assert curves.step == 2
    writer.close()
    again = SummaryWriter(str(tmp_path / "logs"))  # a run that went on from step 1
    again.add_scalar("train/reward", 5.5, 2)
    again.close()
    curves.read()
    assert curves.list_points() == {"reward": [(1, 3.5), (2, 5.5)]}


def test_a_trainers_checkpoint_where_nothing_else_is(tmp_path: Path) -> None:
    curves, state = Curves(tmp_path), tmp_path / "checkpoint-2" / "trainer_state.json"
    state.parent.mkdir()
    state.write_text('{"log_history": [{"step"')
    curves.read()
    assert curves.list_points() == {}
    history = [{"step": 1, "reward": 2.0, "note": "x"}, {"step": 2, "reward": math.nan, "kl": 0.1}]
    state.write_text(json.dumps({"log_history": history}))
    curves.read()
    assert curves.list_points() == {"kl": [(2, 0.1)], "reward": [(1, 2.0)]}


def test_a_long_training_keeps_its_shape_in_few_points(tmp_path: Path) -> None:
    curves, state = Curves(tmp_path), tmp_path / "checkpoint-9" / "trainer_state.json"
    state.parent.mkdir()
    steps = 20 * POINTS
    history = [{"step": n, "reward": n / steps} for n in range(1, steps + 1)]
    state.write_text(json.dumps({"log_history": history}))
    curves.read()
    points = curves.list_points()["reward"]
    assert POINTS / 2 <= len(points) <= POINTS
    assert points[-1] == (steps, 1.0)
    assert all(value == step / steps for step, value in points)
    assert max(b - a for (a, _), (b, _) in pairwise([(0, 0.0), *points])) <= 4 * steps / POINTS


def test_a_training_is_told_with_its_steps(tmp_path: Path, open_run: OpenRun) -> None:
    (tmp_path / "config.json").write_text('{"steps": 40, "reward": {"journal": null}}')
    reply = Answers(open_run(tmp_path)).answer("run", {})
    assert reply["training"] == {"step": 0, "steps": 40, "without_events": False}
