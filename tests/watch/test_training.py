"""Trainers' logs, in files that TRL and this project's training commands write."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from autoj_reward.watch.answers import Answers
from autoj_reward.watch.run import POINTS, Curves
from tests.browser import Page, chromium
from tests.watch.conftest import OpenRun, wait_for
from tests.watch.test_service import Watch, read_text, read_texts

ROOT = Path(__file__).parents[2]


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


CLAIMING = """
import sys
from pathlib import Path
from autoj_reward.config import ScoreConfig
from autoj_reward.io.claims import claim, finish, judged_by
how, folder = sys.argv[1], Path(sys.argv[2])
if how == "training":
    claim(folder, ScoreConfig(), set())
    finish(folder)
elif how == "training that stops":
    claim(folder, ScoreConfig(), set())
elif how == "check":
    with judged_by("judge", folder, folder / "check.json", command="autoj check"):
        pass
else:
    with judged_by("judge", folder, folder / "check.json", command="autoj check"):
        raise KeyboardInterrupt
"""


@pytest.mark.parametrize(
    ("how", "state"),
    [
        pytest.param("training", "finished", id="training"),
        pytest.param("training that stops", "stopped", id="training that stops"),
        pytest.param("check", "finished", id="check"),
        pytest.param("check that stops", "stopped", id="check that stops"),
    ],
)
def test_a_run_is_finished_once_it_has_come_to_its_end(
    how: str, state: str, tmp_path: Path, open_run: OpenRun
) -> None:
    command = [sys.executable, "-c", CLAIMING, how, str(tmp_path)]
    subprocess.run(command, check=False, cwd=ROOT, capture_output=True)
    assert Answers(open_run(tmp_path)).answer("run", {})["state"] == state
    # The next run there has not come to its end yet.
    command[3] = "training that stops" if how.startswith("training") else "check that stops"
    subprocess.run(command, check=False, cwd=ROOT, capture_output=True)
    assert Answers(open_run(tmp_path)).answer("run", {})["state"] == "stopped"


@pytest.mark.skipif(chromium() is None, reason="no Chromium on this machine")
@pytest.mark.parametrize(
    ("metric", "notice"),
    [
        pytest.param("judge/ok", "This run keeps no journal, so its judgements", id="judged"),
        pytest.param("loss", "", id="not judged"),
    ],
)
def test_curves_without_a_journal_in_a_browser(metric: str, notice: str, tmp_path: Path) -> None:
    state = tmp_path / "run" / "checkpoint-2" / "trainer_state.json"
    state.parent.mkdir(parents=True)
    history = [{"step": n, metric: 1.0} for n in (1, 2)]
    state.write_text(json.dumps({"log_history": history}))
    watch = Watch(tmp_path / "run")
    page = Page(watch.address, tmp_path / "profile")
    try:
        wait_for(lambda: read_texts(page, "#curves h3") == [f"{metric}1"])
        assert read_text(page, "#notices").startswith(notice)
        assert bool(read_text(page, "#notices")) == bool(notice)
        for part in ("tiles", "plots", "queries"):
            assert page.run(f"document.getElementById('{part}').offsetParent") is None
        assert page.problems == []
    finally:
        page.close()
        assert watch.end() == (0, "")


def test_a_training_is_told_with_its_steps(tmp_path: Path, open_run: OpenRun) -> None:
    (tmp_path / "config.json").write_text('{"steps": 40, "reward": {"journal": null}}')
    reply = Answers(open_run(tmp_path)).answer("run", {})
    assert reply["training"] == {
        "step": 0, "steps": 40, "without_events": False, "judged": False
    }  # fmt: skip
