"""What the edge costs: two servers under a small load, and the figures by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from experiments.speed import edge_alone
from experiments.speed.edge import BARE, SERVICE, foreseen, main, ratios


def row(server: str, per_second: float, p50_s: float, cpu_ms: float) -> dict[str, Any]:
    return {"server": server, "per_second": per_second, "p50_s": p50_s, "cpu_ms": cpu_ms}


def test_ratios_are_of_the_same_round() -> None:
    rows = [
        row(SERVICE, 90, 0.2, 1.1),
        row(BARE, 100, 0.1, 1.0),
        row(SERVICE, 40, 0.3, 1.2),
        row(BARE, 50, 0.2, 1.0),
        row(SERVICE, 100, 0.1, 0.9),
        row(BARE, 100, 0.1, 1.0),
    ]
    assert ratios(rows) == {
        "per_second": pytest.approx(0.9),
        "p50_s": pytest.approx(1.5),
        "cpu_ms": pytest.approx(1.1),
    }


def test_both_servers_are_measured(tmp_path: Path) -> None:
    load = {"clients": 1, "concurrent": 4, "seconds": 0.5, "latency_s": 0.05}
    config = {"output": str(tmp_path / "out"), "rounds": 1, "load": load}
    path = tmp_path / "edge.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    assert main(["--config", str(path), "--parts", "beside"]) == 0
    found = json.loads((tmp_path / "out" / "edge.json").read_text())
    assert [one["server"] for one in found["rounds"]] == [SERVICE, BARE]
    for one in found["rounds"]:
        assert one["requests"] > 0 and one["failed"] == 0 and one["cpu_ms"] > 0
    assert "| bare FastAPI |" in (tmp_path / "out" / "edge.md").read_text()


@pytest.mark.parametrize("server", ["service", "bare"])
async def test_requests_without_sockets_are_answered(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(edge_alone.SCRIPT, "latency_s", 0.01)
    await edge_alone.run(server, 5)


def test_more_edges_do_more_until_what_they_share_is_busy() -> None:
    rows = [
        {"edge_ms": 1.0, "replica_ms": 0.5, "shared_ms": 0.1},
        {"edge_ms": 2.0, "replica_ms": 0.4, "shared_ms": 0.2},
    ]
    assert foreseen(rows, (1, 4, 32)) == [
        {"edges": 1, "per_second": 500.0, "replicas": 0.25},
        {"edges": 4, "per_second": 2000.0, "replicas": 1.0},
        {"edges": 32, "per_second": 10000.0, "replicas": 5.0},
    ]


@pytest.mark.engine
@pytest.mark.timeout(600)
def test_edges_replica_and_ray_are_told_apart(tmp_path: Path) -> None:
    load = {"clients": 1, "concurrent": 8, "seconds": 3, "latency_s": 0.05}
    config = {"output": str(tmp_path / "out"), "scaling": {"edges": [1, 2], "load": load}}
    path = tmp_path / "edge.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    assert main(["--config", str(path), "--parts", "scaling"]) == 0
    found = json.loads((tmp_path / "out" / "edge.json").read_text())
    assert [row["edges"] for row in found["spent"]] == [1, 2]
    for row in found["spent"]:
        assert row["requests"] > 0 and row["failed"] == 0
        assert row["edge_ms"] > 0 and row["replica_ms"] > 0 and row["shared_ms"] > 0
    assert "2 edges do" in (tmp_path / "out" / "edge.md").read_text()
