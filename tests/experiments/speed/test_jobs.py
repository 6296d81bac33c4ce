from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_the_figures_of_jobs_by_size(tmp_path: Path) -> None:
    config = tmp_path / "job_speed.yaml"
    config.write_text(
        f"output: {tmp_path / 'out'}\nqueries: [5]\ncandidates: 3\nwords: 4\nrounds: 1\n"
    )
    # A child's peak counts that of the process it came of, and this one may hold gigabytes.
    study = [sys.executable, "-m", "experiments.speed.jobs", "--config", str(config)]
    subprocess.run(study, check=True, capture_output=True)
    record = json.loads((tmp_path / "out" / "jobs.json").read_text())
    jobs = record["jobs"]
    assert [(job["queries"], job["way"]) for job in jobs] == [(5, "one process"), (5, "bare loop")]
    assert jobs[0]["times_cpu_us"] == 1 > jobs[1]["times_cpu_us"]
    for job in jobs:
        assert 10 < job["peak_mb"] < 500 and job["cpu_us"] > 0
    assert "| 5 |" in (tmp_path / "out" / "jobs.md").read_text()
