"""What a best-of-N job takes of memory, time and disk, by its size, on the scripted judge.

    python -m experiments.speed.jobs --config configs/job_speed.yaml

Each size is `autoj best-of-n` in a process of its own, whose peak memory and processor time the
system tells at its end. Nothing but the job's own work is measured: the judge answers at once.
Results: jobs.json, jobs.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from pydantic import Field
from tqdm import tqdm

from autoj_reward.errors import EngineError
from autoj_reward.io.files import write_jsonl
from experiments.study import Study, StudyConfig, command
from experiments.tables import report, tabled

WORDS = ("because", "air", "scatters", "blue", "light", "more", "than", "red", "the", "sky", "is")


class JobSpeedConfig(StudyConfig):
    """queries: sizes of the jobs. candidates: a query. words: of a response."""

    queries: tuple[int, ...] = (250, 4000, 20000)
    candidates: int = Field(32, ge=1)
    words: int = Field(50, ge=1)


def rows(config: JobSpeedConfig, queries: int) -> Iterator[dict[str, Any]]:
    """Queries whose responses differ, of about as many words; log-probabilities break ties."""
    for query in range(queries):
        responses = [
            f"{n} " + " ".join(WORDS[(query + n + k) % len(WORDS)] for k in range(config.words))
            for n in range(config.candidates)
        ]
        logprobs = [-float(n) for n in range(config.candidates)]
        text = f"Query {query}: why is the sky blue?"
        yield {"query": text, "responses": responses, "logprobs": logprobs}


def measure(config: JobSpeedConfig, queries: int, folder: Path) -> dict[str, float]:
    """The figures of one job. EngineError if it fails."""
    source, output = folder / "in.jsonl", folder / "out"
    write_jsonl(source, rows(config, queries))
    job = {"input": str(source), "output": str(output), "judge": {"kind": "fake"}}
    (folder / "job.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")
    typed = [sys.executable, "-m", "autoj_reward.cli", "best-of-n"]
    started = time.monotonic()
    with (folder / "told").open("w") as told:
        process = subprocess.Popen(
            [*typed, "--config", str(folder / "job.yaml")], stdout=told, stderr=told
        )
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise EngineError(f"the job failed: {(folder / 'told').read_text()[-2000:]}")
    summary = json.loads((output / "summary.json").read_text(encoding="utf-8"))
    candidates = queries * config.candidates
    cpu, wall = used.ru_utime + used.ru_stime, time.monotonic() - started
    return {
        "queries": queries,
        "peak_mb": used.ru_maxrss / 1024,
        "cpu_us": 1e6 * cpu / candidates,
        "per_second": candidates / wall,
        "per_cpu_second": candidates / cpu,
        "journal_bytes": (output / "journal.sqlite").stat().st_size / candidates,
        "comparisons": summary["comparisons"],
    }


COLUMNS = {
    "queries": "{queries:,}",
    "peak memory, MB": "{peak_mb:.0f}",
    "processor time a candidate, µs": "{cpu_us:.0f}",
    "candidates a second": "{per_second:,.0f}",
    "a processor second": "{per_cpu_second:,.0f}",
    "journal, bytes a candidate": "{journal_bytes:,.0f}",
    "tie-breaks": "{comparisons:,}",
}


def render(found: dict[str, Any]) -> str:
    """The figures as a table in Markdown."""
    config = found["config"]
    note = (
        f"{config['candidates']} candidates of {config['words']} words a query. Start of the "
        "process, tie-breaks and the writing of results are in all figures."
    )
    return report("Jobs by size", found, [("One process", tabled(found["jobs"], COLUMNS), note)])


def study(run: Study[JobSpeedConfig]) -> str:
    """Measure and write."""
    found = []
    for queries in tqdm(run.config.queries, desc="jobs"):
        with TemporaryDirectory() as folder:
            found.append(measure(run.config, queries, Path(folder)))
    return run.write("jobs", {"jobs": found}, render)


main = command(JobSpeedConfig, study)

if __name__ == "__main__":
    sys.exit(main())
