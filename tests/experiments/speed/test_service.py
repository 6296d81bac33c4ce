"""Cost of the service: two servers under a small load, and figures computed by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from experiments.speed.service import BARE, SERVICE, compute_ratios, main


def make_row(server: str, per_second: float, p50_s: float, cpu_ms: float) -> dict[str, Any]:
    return {"server": server, "per_second": per_second, "p50_s": p50_s, "cpu_ms": cpu_ms}


def test_ratios_are_of_the_same_round() -> None:
    rows = [
        make_row(SERVICE, 90, 0.2, 1.1),
        make_row(BARE, 100, 0.1, 1.0),
        make_row(SERVICE, 40, 0.3, 1.2),
        make_row(BARE, 50, 0.2, 1.0),
        make_row(SERVICE, 100, 0.1, 0.9),
        make_row(BARE, 100, 0.1, 1.0),
    ]
    assert compute_ratios(rows) == {
        "per_second": pytest.approx(0.9),
        "p50_s": pytest.approx(1.5),
        "cpu_ms": pytest.approx(1.1),
    }


def test_both_servers_are_measured(tmp_path: Path) -> None:
    load = {"clients": 1, "concurrent": 4, "seconds": 0.5, "latency_s": 0.05}
    config = {"output": str(tmp_path / "out"), "rounds": 1, "load": load}
    path = tmp_path / "service.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    assert main(["--config", str(path)]) == 0
    record = json.loads((tmp_path / "out" / "service.json").read_text())
    assert [server_round["server"] for server_round in record["rounds"]] == [SERVICE, BARE]
    for server_round in record["rounds"]:
        assert (
            server_round["requests"] > 0
            and server_round["failed"] == 0
            and server_round["cpu_ms"] > 0
        )
    assert "| bare FastAPI |" in (tmp_path / "out" / "service.md").read_text()
