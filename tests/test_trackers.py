"""Metrics of jobs, trainings and services in real trackers, which keep them in local files."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import yaml

from tests.engine.server import server, wait_until_ready
from tests.support.ports import free_port

ROOT = Path(__file__).parents[1]
TRACKERS = Path(os.environ.get("AUTOJ_TRACKERS", ROOT / ".venv/trackers"))
Logged = dict[str, list[tuple[int, float]]]
"""Pairs of step and value by name of the metric."""


def read_mlflow(folder: Path) -> Logged:
    values_by_name: Logged = {}
    for metrics in folder.glob("mlruns/*/*/metrics"):
        for path in (path for path in metrics.rglob("*") if path.is_file()):
            lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
            values = [(int(step), float(value)) for _, value, step in lines]
            values_by_name[str(path.relative_to(metrics))] = values
    return values_by_name


def read_trackio(folder: Path) -> Logged:
    values_by_name: Logged = {}
    for path in folder.glob("trackio/*.db"):
        with sqlite3.connect(path) as base:
            for step, text in base.execute("select step, metrics from metrics order by id"):
                for name, value in json.loads(text).items():
                    values_by_name.setdefault(name, []).append((step, value))
        base.close()
    return values_by_name


class Local(NamedTuple):
    """A tracker that keeps its runs in files below a folder."""

    name: str
    folder: Path
    environment: dict[str, str]
    read: Callable[[Path], Logged]

    def autoj(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, which must be a success."""
        process = subprocess.run(
            [sys.executable, "-m", "autoj_reward.cli", *words],
            env=os.environ | self.environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert process.returncode == 0, process.stderr[-4000:]
        return process

    @property
    def logged(self) -> Logged:
        return self.read(self.folder)


def make_local(name: str, folder: Path) -> Local:
    if not (TRACKERS / name).is_dir():
        pytest.skip(f"no {name} in {TRACKERS}: make test-frameworks")
    environment = {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(TRACKERS)]),
        "MLFLOW_TRACKING_URI": f"file://{folder}/mlruns",
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "TRACKIO_DIR": str(folder / "trackio"),
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(folder),
    }
    return Local(name, folder, environment, read_mlflow if name == "mlflow" else read_trackio)


@pytest.fixture(params=["mlflow", "trackio"])
def tracker(request: pytest.FixtureRequest, tmp_path: Path) -> Local:
    return make_local(request.param, tmp_path)


def write_rows(path: Path, lines: Sequence[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return str(path)


def write_job(folder: Path) -> str:
    """Return the run file of a best-of-N job over three queries; one judgement fails."""
    queries = [{"query": f"SECRET {n}", "responses": ["good", "poor", "lost"]} for n in range(3)]
    script = {"ratings": {"good": 9, "poor": 2}, "fail": {"lost": "truncated"}}
    config = {
        "input": write_rows(folder / "queries.jsonl", queries),
        "output": str(folder / "run"),
        "judge": {"kind": "fake", "script": script},
    }
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return str(path)


def test_a_job_is_tracked_by_the_numbers_of_its_summary(tracker: Local) -> None:
    folder = tracker.folder
    tracker.autoj("best-of-n", "--config", write_job(folder), "--set", f"track={tracker.name}")
    summary = json.loads((folder / "run/summary.json").read_text(encoding="utf-8"))
    last = {name: values[-1] for name, values in tracker.logged.items()}
    for name in ("candidates", "ok_share", "pair_tie_rate", "spread", "judgements_per_second"):
        step, value = last[name]
        assert step == 3 and value == pytest.approx(summary[name])
    assert last["outcomes/truncated"] == (3, 3) and last["curve/2"] == (3, 9.0)
    assert last["usage/tokens_out"] == (3, summary["usage"]["tokens_out"])
    stored_bytes = b"".join(
        path.read_bytes() for path in folder.glob("[mt]*/**/*") if path.is_file()
    )
    assert b"SECRET" not in stored_bytes
    assert not [name for name in last if name.startswith("reasons")]


def test_weights_and_biases_gets_them_too(tmp_path: Path) -> None:
    tracker = make_local("wandb", tmp_path)
    tracker.autoj("best-of-n", "--config", write_job(tmp_path), "--set", "track=wandb")
    [run_file] = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert b"pair_tie_rate" in run_file.read_bytes()


def test_rows_and_an_evaluation(tracker: Local) -> None:
    folder = tracker.folder
    sets = ["--set", "judge.kind=fake", "--set", f"track={tracker.name}"]
    input_path = write_rows(
        folder / "rows.jsonl", [{"query": "q", "response": f"r{n}"} for n in range(4)]
    )
    tracker.autoj("score", "--input", input_path, "--output", str(folder / "scored.jsonl"), *sets)
    assert tracker.logged["outcomes/ok"][-1] == (4, 4)
    pairs = [
        {"prompt": f"q{n}", "chosen": "a", "rejected": "bb", "subset": "Math", "id": n}
        for n in range(3)
    ]
    result = folder / "pairs.json"
    files = ["--data", write_rows(folder / "pairs.jsonl", pairs), "--json", str(result)]
    form = ["--set", "bootstrap=5"]
    tracker.autoj("evaluate", "pairs", *files, *form, *sets)
    evaluation = json.loads(result.read_text(encoding="utf-8"))
    assert evaluation["settings"].keys() & {"track", "judge"} == set()
    assert tracker.logged["cost/judgements"] == [(3, evaluation["cost"]["judgements"])]


def test_a_service_is_tracked_by_its_metrics_page(tracker: Local) -> None:
    port, folder = free_port(), tracker.folder
    path = folder / "serve.yaml"
    config = {"reward": {"judge": {"kind": "fake"}}, "port": port, "track": tracker.name}
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    command = [sys.executable, "-m", "autoj_reward.cli", "serve", "--config", str(path)]
    environment = tracker.environment | {"AUTOJ_TOKEN": "secret"}
    address, log = f"http://127.0.0.1:{port}", folder / "log"
    with server(command, log, environment) as process:
        wait_until_ready(f"{address}/healthz", process, log)
        body = {"candidates": [{"query": "q", "response": "a"}, {"query": "q", "response": "b"}]}
        headers = {"Authorization": "Bearer secret"}
        assert httpx.post(f"{address}/v1/score", json=body, headers=headers).is_success
        process.send_signal(signal.SIGTERM)
        assert process.wait(600) == 0, log.read_text()
    last = {name: values[-1][1] for name, values in tracker.logged.items()}
    assert last["autoj_judgements_total/single/ok"] == 2
    assert last["autoj_requests_total/v1/score/200"] == 1
    assert last["autoj_judgement_seconds_count"] == 2
    assert not [name for name in last if "_bucket" in name or "secret" in name]


@pytest.mark.training
@pytest.mark.parametrize(("algorithm", "name"), [("grpo", "mlflow"), ("ppo", "trackio")])
def test_a_training_reports_the_judge_to_the_tracker_of_its_trainer(
    algorithm: str, name: str, tmp_path: Path, small: str
) -> None:
    tracker, folder = make_local(name, tmp_path), tmp_path
    config = {
        "input": write_rows(folder / "queries.jsonl", [{"query": f"Say {n}."} for n in range(4)]),
        "output": str(folder / "run"),
        "learner": {"model": small, "max_prompt_tokens": 64, "max_response_tokens": 8},
        "reward": {"judge": {"kind": "fake"}, "view": "rating"},
        "steps": 2,
        "batch_size": 4,
        "device_batch_size": 4,
        "group": 2,
        "trainer": {"report_to": [tracker.name]},
    }
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    tracker.autoj("train", algorithm, "--config", str(path))
    logged = tracker.logged
    prefix = "" if tracker.name == "mlflow" else "train/"
    for name in ("judge/ok", "judge/tokens_out", "judge/window_failure_rate", "judge/fallbacks"):
        assert len(logged[prefix + name]) == 2, sorted(logged)
