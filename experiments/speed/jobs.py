"""Memory, time and disk that a best-of-N job takes, by its size, on the scripted judge.

    python -m experiments.speed.jobs --config configs/experiments/job_speed.yaml

Each size is `autoj best-of-n` in a separate process. The system reports its peak memory at its end.
Processor time includes all processes that it starts. The judge answers at once, so only the job's
own work is measured. A bare loop (`bare_job`) does the same reads and writes. With `shards` each
size also runs on Ray Data. The ways take turns, and a row is the median over rounds. Results:
jobs.json, jobs.md.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import psutil  # type: ignore[import-untyped]
import yaml
from pydantic import Field
from tqdm import tqdm

from autoj_reward.errors import EngineError
from autoj_reward.io.files import write_jsonl
from autoj_reward.replicas.processes import with_descendants
from experiments.speed.work import ratio_by_round, turns
from experiments.study import Study, StudyConfig, study_command
from experiments.tables import report, tabled

WORDS = ("because", "air", "scatters", "blue", "light", "more", "than", "red", "the", "sky", "is")
"""Words of the responses."""


class JobSpeedConfig(StudyConfig):
    """Sizes of the jobs."""

    queries: tuple[int, ...] = (250, 4000, 20000)
    """Numbers of queries."""
    candidates: int = Field(32, ge=1)
    """Candidates for each query."""
    words: int = Field(50, ge=1)
    """Approximate number of words in a response."""
    rounds: int = Field(3, ge=1)
    """Number of rounds of each size."""
    shards: int | None = Field(None, ge=1)
    """Number of shards for a run on Ray Data with two workers. null for no such run."""


def make_rows(queries: int, candidates: int, words: int) -> Iterator[dict[str, Any]]:
    """Yield queries with responses of about `words` words, each different from all others.

    Log-probabilities break ties.
    """
    logprobs = [-float(n) for n in range(candidates)]
    for query in range(queries):
        responses = [
            f"{query}.{n} " + " ".join(WORDS[(query + n + k) % len(WORDS)] for k in range(words))
            for n in range(candidates)
        ]
        text = f"Query {query}: why is the sky blue?"
        yield {"query": text, "responses": responses, "logprobs": logprobs}


def job_command(folder: Path, **given: Any) -> tuple[str, ...]:
    """Write the config of a job that reads the folder's `in.jsonl` and writes to `out`.

    Return its command.
    """
    job = {"input": str(folder / "in.jsonl"), "output": str(folder / "out")} | given
    (folder / "job.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")
    return "best-of-n", "--config", str(folder / "job.yaml")


def start_command(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    """Start `autoj` with these arguments. Its output goes to the folder's file `output`."""
    return start_module(folder, "autoj_reward.cli", *words)


def start_module(folder: Path, module: str, *words: str) -> subprocess.Popen[bytes]:
    """Start `python -m` with a module. Its output goes to the folder's file `output`."""
    with (folder / "output").open("w") as output:
        return subprocess.Popen(
            [sys.executable, "-m", module, *words], stdout=output, stderr=output
        )


def start_job(folder: Path, **given: Any) -> subprocess.Popen[bytes]:
    """Start a best-of-N job on the scripted judge."""
    return start_command(folder, *job_command(folder, judge={"kind": "fake"}, **given))


def start_bare_loop(folder: Path) -> subprocess.Popen[bytes]:
    """Start the bare loop."""
    return start_module(folder, "experiments.speed.bare_job", str(folder))


StartWay = Callable[[Path], subprocess.Popen[bytes]]
"""Function that starts a way of judging a folder's `in.jsonl`; the results go to `out`."""
ALONE = "one process"
"""Way to which the others are compared."""


def wait_for_end(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Wait for the command's end. Raises EngineError if it failed."""
    if process.wait():
        raise EngineError(f"the command failed: {(folder / 'output').read_text()[-2000:]}")


def measure_start(start: StartWay, folder: Path, candidates: int) -> dict[str, float]:
    """Run one way on the folder's input and return its figures.

    - `wall_s`: wall time in seconds.
    - `cpu_us`: processor time per candidate in microseconds, with all descendants.
    - `peak_mb`: peak memory of the process itself in MB.
    - `per_second`: candidates per second.
    - `journal_bytes`: journal bytes per candidate.
    """
    shutil.rmtree(folder / "out", ignore_errors=True)
    began, cpu = time.monotonic(), dict[psutil.Process, float]()
    process = start(folder)
    job = psutil.Process(process.pid)
    while (ended := os.wait4(process.pid, os.WNOHANG))[0] == 0:
        for descendant in with_descendants([job]) - {job}:
            with suppress(psutil.NoSuchProcess):
                cpu[descendant] = sum(descendant.cpu_times()[:2])
        time.sleep(0.2)
    wall_s, (_, status, resources) = time.monotonic() - began, ended
    process.returncode = os.waitstatus_to_exitcode(status)
    wait_for_end(process, folder)
    cpu_s = resources.ru_utime + resources.ru_stime + sum(cpu.values())
    journals = (folder / "out").rglob("journal.sqlite")
    return {
        "wall_s": wall_s,
        "peak_mb": resources.ru_maxrss / 1024,
        "cpu_us": 1e6 * cpu_s / candidates,
        "per_second": candidates / wall_s,
        "journal_bytes": sum(path.stat().st_size for path in journals) / candidates,
    }


def chosen_candidates(folder: Path) -> list[tuple[int, float, float]]:
    """Return index, rating and expected rating of each query's chosen candidate."""
    lines = (folder / "out" / "selections.jsonl").read_text().splitlines()
    rows = map(json.loads, lines)
    return [(row["index"], row["rating"], round(row["expected"], 6)) for row in rows]


COLUMNS = {
    "queries": "{queries:,}",
    "run": "{way}",
    "seconds": "{wall_s:.0f}",
    "times those of one process": "{times_wall_s:.2f}",
    "candidates a second": "{per_second:,.0f}",
    "processor time a candidate, µs": "{cpu_us:.0f}",
    "times that of one process": "{times_cpu_us:.2f}",
    "peak memory, MB": "{peak_mb:.0f}",
    "journal, bytes a candidate": "{journal_bytes:,.0f}",
}
"""Columns of the report."""


def markdown(result: dict[str, Any]) -> str:
    """Return the report as one Markdown table."""
    config = result["config"]
    note = (
        f"{config['candidates']} candidates of {config['words']} words a query; medians of "
        f"{config['rounds']} rounds. Start of the process, and of Ray for shards, and the writing "
        "of results are in all figures. Peak memory is that of the first process. The bare loop "
        "reads the rows, stores judgements in SQLite and writes the result files."
    )
    return report("Jobs by size", result, [("Jobs", tabled(result["jobs"], COLUMNS), note)])


def study(run: Study[JobSpeedConfig]) -> str:
    """Measure every size in each way, in turn. Return the report.

    Raises EngineError if two ways choose different candidates.
    """
    config, rows = run.config, list[dict[str, Any]]()
    ways: dict[str, StartWay] = {ALONE: start_job, "bare loop": start_bare_loop}
    if config.shards is not None:
        split = {"shards": config.shards, "concurrency": 2}
        ways[f"{config.shards} shards, two workers"] = partial(start_job, ray_data=split)
    for queries in tqdm(config.queries, desc="jobs"):
        figures = measure_in_turn(config, queries, ways)
        for way, rounds in figures.items():
            medians = {name: median(r[name] for r in rounds) for name in rounds[0]}
            times = {
                f"times_{name}": ratio_by_round(
                    [r[name] for r in rounds], [r[name] for r in figures[ALONE]]
                )
                for name in ("wall_s", "cpu_us")
            }
            rows.append({"queries": queries, "way": way} | medians | times)
    return run.write("jobs", {"jobs": rows}, markdown)


def measure_in_turn(
    config: JobSpeedConfig, queries: int, ways: Mapping[str, StartWay]
) -> dict[str, list[dict[str, float]]]:
    """Return the figures of each way in each round, on the same rows."""
    figures: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    choices = list[tuple[int, float, float]]()
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_jsonl(folder / "in.jsonl", make_rows(queries, config.candidates, config.words))
        for _, way in turns(ways, config.rounds):
            figures[way].append(measure_start(ways[way], folder, queries * config.candidates))
            choices = choices or chosen_candidates(folder)
            if chosen_candidates(folder) != choices:
                raise EngineError(f"{way} chose other candidates than the way before it")
    return figures


main = study_command(JobSpeedConfig, study)

if __name__ == "__main__":
    sys.exit(main())
