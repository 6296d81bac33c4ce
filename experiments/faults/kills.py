"""A best-of-N job that is killed again and again, against the same job undisturbed.

    python -m experiments.faults.kills --config configs/job_kills.yaml

`autoj best-of-n` on the scripted judge gets SIGKILL every `every_s` seconds for `for_s` seconds and
is started again each time; then it may end. Its selections are compared byte for byte with those of
a job that nobody disturbs, and the judge's own log tells what it was asked twice. Results:
kills.json, kills.md.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from pydantic import Field
from tqdm import tqdm

from autoj_reward.errors import EngineError
from autoj_reward.io.files import write_jsonl
from experiments.speed.jobs import JobSpeedConfig, rows
from experiments.study import Study, StudyConfig, command
from experiments.tables import report, tabled


class JobKillsConfig(StudyConfig):
    """queries, candidates, words: the job. latency_s: of an answer. every_s, for_s: the kills."""

    queries: int = Field(4000, ge=1)
    candidates: int = Field(32, ge=1)
    words: int = Field(50, ge=1)
    latency_s: float = Field(0.0, ge=0)
    every_s: float = Field(20.0, gt=0)
    for_s: float = Field(300.0, gt=0)


def start(config: JobKillsConfig, source: Path, folder: Path) -> subprocess.Popen[bytes]:
    """The job in a process, its results in a folder `out`."""
    folder.mkdir(exist_ok=True)
    script = {"latency_s": config.latency_s, "log": str(folder / "log")}
    judge = {"kind": "fake", "script": script}
    job = {"input": str(source), "output": str(folder / "out"), "judge": judge}
    (folder / "job.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")
    typed = [sys.executable, "-m", "autoj_reward.cli", "best-of-n"]
    with (folder / "told").open("w") as told:
        return subprocess.Popen(
            [*typed, "--config", str(folder / "job.yaml")], stdout=told, stderr=told
        )


def ended(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Wait for a job's end. EngineError if it failed."""
    if process.wait():
        raise EngineError(f"the job failed: {(folder / 'told').read_text()[-2000:]}")


def killed(config: JobKillsConfig, source: Path, folder: Path) -> int:
    """Kill the job as the config says, then let it end. How often it was killed."""
    until, kills = time.monotonic() + config.for_s, 0
    with tqdm(desc="kills") as bar:
        while time.monotonic() < until:
            process = start(config, source, folder)
            try:
                ended_with = process.wait(config.every_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                kills += 1
                bar.update()
            else:
                if ended_with:
                    ended(process, folder)
                return kills
    ended(start(config, source, folder), folder)
    return kills


def asked(folder: Path) -> tuple[int, int]:
    """Inputs that the judge answered, and how many of them were another's repeat."""
    seen: set[int] = set()
    count = 0
    with (folder / "log").open(encoding="ascii") as log:
        for count, line in enumerate(log, 1):  # noqa: B007, read below
            seen.add(hash(line))
    return count, count - len(seen)


def study(run: Study[JobKillsConfig]) -> str:
    """Measure and write."""
    config = run.config
    with TemporaryDirectory() as name:
        folder = Path(name)
        whole, other, source = folder / "whole", folder / "killed", folder / "in.jsonl"
        job = JobSpeedConfig(
            output=folder, candidates=config.candidates, words=config.words, queries=()
        )
        write_jsonl(source, rows(job, config.queries))
        kills = killed(config, source, other)
        ended(start(config, source, whole), whole)
        texts = [(path / "out" / "selections.jsonl").read_bytes() for path in (whole, other)]
        answered, twice = asked(other)
    found = {
        "kills": kills,
        "candidates": config.queries * config.candidates,
        "answered": answered,
        "twice": twice,
        "twice_share": twice / answered,
        "identical": "yes" if texts[0] == texts[1] else "no",
    }
    return run.write("kills", {"figures": found}, render)


COLUMNS = {
    "kills": "{kills}",
    "candidates": "{candidates:,}",
    "answers of the judge": "{answered:,}",
    "asked twice": "{twice:,}",
    "share": "{twice_share:.3%}",
    "selections byte for byte the same": "{identical}",
}


def render(found: dict[str, Any]) -> str:
    """The figures as a table in Markdown."""
    config = found["config"]
    note = f"SIGKILL every {config['every_s']:g} s for {config['for_s']:g} s, then to the end."
    return report(
        "A job that is killed", found, [("Kills", tabled([found["figures"]], COLUMNS), note)]
    )


main = command(JobKillsConfig, study)

if __name__ == "__main__":
    sys.exit(main())
