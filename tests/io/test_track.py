"""Metrics of a run in a tracker, with a stand-in for the tracker's package."""

from __future__ import annotations

import logging
import math
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from autoj_reward.config import BestOfNConfig, JudgeConfig
from autoj_reward.errors import ConfigError
from autoj_reward.io import track
from autoj_reward.io.track import flat_metrics
from rollouts.best_of_n import job

Made = list[tuple[Any, ...]]


def install_trackio(monkeypatch: pytest.MonkeyPatch, **fails: Exception) -> Made:
    """Install a package `trackio` that lists its calls. fails: error of a call, by its name."""
    calls: Made = []

    def call(name: str, *arguments: Any) -> None:
        calls.append((name, *arguments))
        if name in fails:
            raise fails[name]

    def init(project: str, name: str, config: dict[str, Any]) -> Any:
        call("init", project, name, config)
        return SimpleNamespace(
            log=lambda metrics, step: call("log", metrics, step), finish=lambda: call("finish")
        )

    module = ModuleType("trackio")
    module.init = init  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "trackio", module)
    return calls


def run(folder: Path) -> Any:
    """Run a job over three queries."""
    rows = [f'{{"query": "q{n}", "responses": ["a", "b"]}}\n' for n in range(3)]
    (folder / "in.jsonl").write_text("".join(rows), encoding="utf-8")
    where = {"input": str(folder / "in.jsonl"), "output": folder / "run"}
    return job.run_job(BestOfNConfig(**where, judge=JudgeConfig(kind="fake"), track="trackio"))


def test_a_job_reports_while_it_runs_and_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(track, "EVERY_S", 0.0)
    calls = install_trackio(monkeypatch)
    summary = run(tmp_path)
    assert [name for name, *_ in calls][:2] == ["init", "log"]
    _, project, name, config = calls[0]
    assert (project, name) == ("autoj-reward", str(tmp_path / "run"))
    assert config["judge"]["kind"] == "fake" and config["track"] == "trackio"
    (_, first, step), (_, last, end), finish = calls[1], calls[-2], calls[-1]
    assert step == first["queries"] == 1 and end == last["queries"] == 3
    assert last["judgements_per_second"] == summary.judgements_per_second
    assert finish == ("finish",)


def test_between_two_reports_nothing_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = install_trackio(monkeypatch)
    config = BestOfNConfig(input="in", output=tmp_path)
    with track.tracking("trackio", "run", config) as reports:
        reports.offer(1, lambda: pytest.fail("computed"))
    assert [name for name, *_ in calls] == ["init", "finish"]


def test_a_tracker_that_fails_meanwhile_stops_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(track, "EVERY_S", 0.0)
    calls = install_trackio(monkeypatch, log=ConnectionError("http://me:hunter2@there is gone"))
    with caplog.at_level(logging.WARNING, "autoj_reward"):
        assert run(tmp_path).queries == 3
    sent = [name for name, *_ in calls].count("log")
    assert caplog.messages == [
        "metrics were not sent to trackio: ConnectionError: http://there is gone",
        f"{sent} of {sent} reports were not sent to trackio",
    ]


def test_a_tracker_that_refuses_to_start_does_so_before_the_judge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_trackio(monkeypatch, init=PermissionError("no key"))
    with pytest.raises(ConfigError, match="track: trackio did not start: PermissionError: no key"):
        run(tmp_path)
    assert not (tmp_path / "run/journal.sqlite").exists()
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(ConfigError, match=r"pip install 'autoj-reward\[trackio\]'"):
        run(tmp_path)


def test_a_job_that_fails_ends_its_run_as_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []
    module = ModuleType("mlflow")
    vars(module).update(
        start_run=lambda run_name: None,
        log_params=lambda params: None,
        log_metrics=lambda metrics, step: None,
        end_run=ended.append,
    )
    monkeypatch.setitem(sys.modules, "mlflow", module)
    config = BestOfNConfig(input="in", output=Path("out"))
    with pytest.raises(KeyboardInterrupt), track.tracking("mlflow", "run", config):
        raise KeyboardInterrupt
    assert ended == ["FAILED"]


def test_settings_of_a_run_hide_the_secrets_of_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = install_trackio(monkeypatch)
    judge = JudgeConfig(
        kind="openai", model="m", base_url="http://me:hunter2@there:8000/v1?k=s3cret"
    )
    config = BestOfNConfig(input="in", output=Path("out"), judge=judge)
    with track.tracking("trackio", "run", config):
        pass
    assert "there:8000" in str(calls) and "hunter2" not in str(calls) and "s3cret" not in str(calls)


def test_finite_numbers_are_named_by_their_place() -> None:
    metrics = {
        "a": 1,
        "of": {"b": 0.5, "ü (x)": 2, 3: 4.0},
        "none": None,
        "nan": math.nan,
        "said": "text",
        "is": True,
        "list": [1, 2],
    }
    assert dict(flat_metrics(metrics)) == {"a": 1.0, "of/b": 0.5, "of/ü _x_": 2.0, "of/3": 4.0}
