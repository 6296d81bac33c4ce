"""kill -9 of a best-of-N job again and again, against the same job undisturbed."""

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
    """queries, candidates, words: the job. latency_s: of an answer of its scripted judge. every_s,
    for_s: the kills; the job is started again after each, and may end after the last."""

    queries: int = Field(4000, ge=1)
    candidates: int = Field(32, ge=1)
    words: int = Field(50, ge=1)
    latency_s: float = Field(0.0, ge=0)
    every_s: float = Field(20.0, gt=0)
    for_s: float = Field(300.0, gt=0)


@dataclass(frozen=True, slots=True)
class Disturbed:
    """answered: inputs that the killed job's judge has answered, by its own log. twice: by how many
    that is more than the undisturbed one's. identical: whether both jobs' selections are, byte for
    byte."""

    command: str
    kills: int
    candidates: int
    answered: int
    twice: int
    identical: bool


def kill_job(config: JobsConfig) -> Disturbed:
    """Compare the killed job with the same job left alone. EngineError if one fails by itself."""
    with TemporaryDirectory() as name:
        killed, whole = Path(name) / "killed", Path(name) / "whole"
        for folder in (killed, whole):
            folder.mkdir()
            asked = make_rows(config.queries, config.candidates, config.words)
            write_jsonl(folder / "in.jsonl", asked)
        kills = _kill(config, killed)
        for folder in (killed, whole):
            wait_for_end(_start(config, folder), folder)
        texts = [(folder / "out" / "selections.jsonl").read_bytes() for folder in (killed, whole)]
        said, once = map(_answered, (killed, whole))
    inputs = config.queries * config.candidates
    return Disturbed("best-of-n", kills, inputs, said, said - once, texts[0] == texts[1])


def _start(config: JobsConfig, folder: Path) -> subprocess.Popen[bytes]:
    script = {"latency_s": config.latency_s, "log": str(folder / "log")}
    return start_command(folder, *job_command(folder, judge={"kind": "fake", "script": script}))


def _kill(config: JobsConfig, folder: Path) -> int:
    """Kill the job as the config says. How often it was killed."""
    until, kills = time.monotonic() + config.for_s, 0
    with tqdm(desc="kills") as bar:
        while time.monotonic() < until:
            process = _start(config, folder)
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


def _answered(folder: Path) -> int:
    with (folder / "log").open(encoding="ascii") as log:
        return sum(1 for _ in log)


def broken_by_killed_job(row: dict[str, Any]) -> list[str]:
    """Return the promises that a row breaks."""
    wrong = [] if row["identical"] else ["the selections are not those of the undisturbed job"]
    return wrong if row["kills"] else [*wrong, "the job was over before a kill"]
