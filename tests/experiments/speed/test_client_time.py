from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.speed.client_time import figures, main


def test_figures_by_hand() -> None:
    found = figures(
        {
            "one": [0.004, 0.002, 0.003],
            "cpu": [0.002, 0.002, 0.001],
            "bare": [0.001, 0.001, 0.002],
            "call": [0.01, 0.02, 0.01],
            "threads": [0.03, 0.02, 0.02],
        }
    )
    assert found["one_ms"] == pytest.approx(3) and found["bare_ms"] == pytest.approx(1)
    assert found["added_ms"] == pytest.approx(2) and found["cpu_ms"] == pytest.approx(2)
    assert found["ratio"] == pytest.approx(2)


def test_the_whole_command(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps({"output": str(tmp_path / "out"), "rounds": 2, "rows": 4}))
    assert main(["--config", str(config)]) == 0
    found = json.loads((tmp_path / "out/client_time.json").read_text())
    assert all(found["figures"][name] > 0 for name in ("one_ms", "bare_ms", "ratio"))
    assert "added by the client" in (tmp_path / "out/client_time.md").read_text()
