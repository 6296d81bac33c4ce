"""Repeated kill -9 of a best-of-N job, compared with the same job left alone."""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import Field
from tqdm import tqdm

from autoj_reward.config import Block
from autoj_reward.io.files import write_jsonl
from experiments.speed.jobs import job_command, make_rows, start_command, wait_for_end


class JobsConfig(Block):
    """Size of the job, and when it is killed."""

    queries: int = Field(4000, ge=1)
    """Number of queries."""
    candidates: int = Field(32, ge=1)
    """Number of candidates for each query."""
    words: int = Field(50, ge=1)
    """Approximate number of words in a candidate."""
    latency_s: float = Field(0.0, ge=0)
    """Latency of the scripted judge."""
    every_s: float = Field(20.0, gt=0)
    """Time from a start of the job to its kill."""
    for_s: float = Field(300.0, gt=0)
    """Period in which the job is killed and restarted. After it the job may end."""


@dataclass(frozen=True, slots=True)
class KilledJobFigures:
    """Comparison of the killed job with the undisturbed one."""

    command: str
    kills: int
    candidates: int
    answered: int
    """Number of inputs that the killed job's judge answered, by the judge's own log."""
    twice: int
    """How many more inputs that is than in the undisturbed job."""
    identical: bool
    """Whether the selections of both jobs are identical byte for byte."""


def kill_job(config: JobsConfig) -> KilledJobFigures:
    """Run the killed and the undisturbed job and compare them.

    Raises EngineError if one fails by itself.
    """
    with TemporaryDirectory() as name:
        killed_folder, whole_folder = Path(name) / "killed", Path(name) / "whole"
        for folder in (killed_folder, whole_folder):
            folder.mkdir()
            rows = make_rows(config.queries, config.candidates, config.words)
            write_jsonl(folder / "in.jsonl", rows)
        kills = _kill_repeatedly(config, killed_folder)
        for folder in (killed_folder, whole_folder):
            wait_for_end(_start_job(config, folder), folder)
        texts = [
            (folder / "out" / "selections.jsonl").read_bytes()
            for folder in (killed_folder, whole_folder)
        ]
        answers, undisturbed_answers = map(_count_answers, (killed_folder, whole_folder))
    inputs = config.queries * config.candidates
    return KilledJobFigures(
        "best-of-n", kills, inputs, answers, answers - undisturbed_answers, texts[0] == texts[1]
    )


def _start_job(config: JobsConfig, folder: Path) -> subprocess.Popen[bytes]:
    script = {"latency_s": config.latency_s, "log": str(folder / "log")}
    return start_command(folder, *job_command(folder, judge={"kind": "fake", "script": script}))


def _kill_repeatedly(config: JobsConfig, folder: Path) -> int:
    """Kill the job as configured. Return the number of kills."""
    until, kills = time.monotonic() + config.for_s, 0
    with tqdm(desc="kills") as bar:
        while time.monotonic() < until:
            process = _start_job(config, folder)
            try:
                process.wait(config.every_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                kills += 1
                bar.update()
            else:
                wait_for_end(process, folder)
                break
    return kills


def _count_answers(folder: Path) -> int:
    with (folder / "log").open(encoding="ascii") as log:
        return sum(1 for _ in log)


def check_killed_job(row: dict[str, Any]) -> list[str]:
    """Return the promises about killed jobs that a row breaks, one text each."""
    violations = [] if row["identical"] else ["the selections are not those of the undisturbed job"]
    return violations if row["kills"] else [*violations, "the job was over before a kill"]
