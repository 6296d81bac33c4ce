from __future__ import annotations

import json
from pathlib import Path

from experiments.faults.kills import main


def test_a_killed_job_is_compared_with_one_undisturbed(tmp_path: Path) -> None:
    config = tmp_path / "job_kills.yaml"
    config.write_text(
        f"output: {tmp_path / 'out'}\nqueries: 40\ncandidates: 4\nwords: 4\nlatency_s: 0.5\n"
        "every_s: 0.5\nfor_s: 1\n"
    )
    assert main(["--config", str(config)]) == 0
    found = json.loads((tmp_path / "out" / "kills.json").read_text())["figures"]
    assert found["kills"] >= 1 and found["identical"] == "yes"
    assert found["answered"] >= found["candidates"] == 160
    assert "byte for byte" in (tmp_path / "out" / "kills.md").read_text()
