from __future__ import annotations

import json
from pathlib import Path

from experiments.speed.jobs import main


def test_the_figures_of_jobs_by_size(tmp_path: Path) -> None:
    config = tmp_path / "job_speed.yaml"
    config.write_text(f"output: {tmp_path / 'out'}\nqueries: [2, 5]\ncandidates: 3\nwords: 4\n")
    assert main(["--config", str(config)]) == 0
    found = json.loads((tmp_path / "out" / "jobs.json").read_text())["jobs"]
    assert [job["queries"] for job in found] == [2, 5]
    for job in found:
        assert 20 < job["peak_mb"] < 500 and job["cpu_us"] > 0 and job["comparisons"] == 0
    assert "| 5 |" in (tmp_path / "out" / "jobs.md").read_text()
