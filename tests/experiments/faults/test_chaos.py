"""Chaos suite in a small size, on the scripted engine. `make chaos` runs the real one."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from experiments.faults import holdups
from experiments.faults.chaos import find_broken_promises, main, markdown
from experiments.faults.holdups import HoldupFigures
from experiments.faults.load import Request, summarise_load


def write_config(folder: Path, **more: Any) -> str:
    kills = {"judge": {"kind": "fake", "script": {"latency_s": 0.3}}, "targets": ["service"]}
    config = {
        "output": str(folder / "out"),
        "load": {"clients": 2, "concurrent": 6, "seconds": 0.3, "latency_s": 0.05},
        "kills": kills | {"candidates": 64},
        "jobs": {"queries": 40, "candidates": 4, "words": 4}
        | {"latency_s": 0.5, "every_s": 0.5, "for_s": 1},
    } | more
    path = folder / "chaos.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return str(path)


def test_figures_of_a_load_by_hand() -> None:
    samples = [Request(str(n), 200, 1.0 + n / 100, 1.0) for n in range(101)]
    samples += [Request("refused", 429, 0.1, 0), Request("cut", 0, 0.1, 0)]
    judged = [str(n) for n in range(1, 101)] + ["7", "cut"]
    # 40 MiB until a minute has passed, then 2 MiB more each half minute.
    memory = [(7.0 + 30 * n, 40.0 if n < 2 else 36.0 + 2 * n) for n in range(5)]
    figures = summarise_load("service", samples, judged, memory, 10.0)
    assert (figures.requests, figures.per_second, figures.failed) == (103, 10.1, 2)
    assert figures.p50_s == pytest.approx(0.5) and figures.p99_s == pytest.approx(0.99)
    assert (figures.lost, figures.twice) == (2, 1)  # "0" was never judged, "cut" never answered
    assert figures.rss_mib == (40.0, 44.0)
    assert figures.mib_per_minute == pytest.approx(4)
    short = summarise_load("service", samples, judged, memory[:2], 10.0)
    assert math.isnan(short.mib_per_minute)


def make_result(record: dict[str, Any]) -> dict[str, Any]:
    machine = {"processor": "P", "cores": 2, "memory_gib": 4, "gpus": []}
    return {"command": "c", "at": "today", "versions": {}, "machine": machine} | record


def test_broken_promises_are_named() -> None:
    load = {"server": "service", "failed": 0, "lost": 1, "twice": 0, "mib_per_minute": 5.5}
    kill = {"target": "replica", "candidates": 4, "answered": 4, "told": 5, "ok": 4}
    kill |= {"left": 0, "orphans": 1}
    holdup = HoldupFigures("a flood", 2.0, 1.5, 0, 3, 301.0, 20, 1025.0, 31.0, 1025)
    job = {"command": "best-of-n", "kills": 0, "identical": False}
    record = {"load": [load], "kills": [kill], "holdups": [asdict(holdup)], "jobs": [job]}
    assert find_broken_promises(record) == [
        "load, service: 1 lost",
        "load, service: 5.5 MiB more each minute",
        "holdups, a flood: health_cpu_s 1.5",
        "holdups, a flood: rss_mib 301",
        "holdups, a flood: log_kib 1025",
        "holdups, a flood: stop_s 31",
        "holdups, a flood: inputs 1025",
        "holdups, a flood: nobody was served",
        "kills, replica: not every candidate was answered once and ok",
        "kills, replica: the job was over before the kill",
        "kills, replica: 1 orphans run on",
        "jobs, best-of-n: the selections are not those of the undisturbed job",
        "jobs, best-of-n: the job was over before a kill",
    ]
    assert "| replica | 4 | 4 | 5 | 4 |" in markdown(make_result(record))


def test_load_and_kills(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = main(["--config", write_config(tmp_path), "--parts", "load,kills"])
    streams = capfd.readouterr()
    assert code == 0, streams.err[-2000:]
    record = json.loads((tmp_path / "out" / "chaos.json").read_text())
    [load] = record["load"]
    assert load["requests"] >= 6 and load["failed"] == load["lost"] == load["twice"] == 0
    assert 0 < load["p50_s"] <= load["p99_s"]
    [kill] = record["kills"]
    assert kill["candidates"] == kill["answered"] == kill["told"] == kill["ok"] == 64
    assert kill["pause_s"] > 0 and kill["recovered_s"] > 0
    assert 0 < kill["left"] < 64 and kill["orphans"] == 0
    assert "## kills" in streams.out


def test_half_bodies_hold_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holdups, "HOLD_S", 1.0)
    holdup = holdups.run_attack(tmp_path, "half a body")
    # How quick it is depends on the machine, which is what the whole attack is for.
    assert holdups.check_holdup(asdict(holdup) | {"health_cpu_s": 0.0, "stop_s": 0.0}) == []
    assert holdup.files > 32 and holdup.rss_mib > 20 and holdup.failed == 0


def test_a_killed_job_is_compared_with_one_undisturbed(tmp_path: Path) -> None:
    assert main(["--config", write_config(tmp_path), "--parts", "jobs"]) == 0
    job = json.loads((tmp_path / "out" / "chaos.json").read_text())["jobs"][0]
    assert job["kills"] >= 1 and job["identical"]
    assert job["candidates"] == 160
    assert job["answered"] == 160 + job["twice"] and 0 <= job["twice"] <= 160
