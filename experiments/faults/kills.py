"""kill -9 of each process of a service during a job, and the effect on the job."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import psutil  # type: ignore[import-untyped]
from pydantic import Field

from autoj_reward.client.client import ClientLimits, JudgeClient
from autoj_reward.client.remote import HttpBackend
from autoj_reward.config import Block, JudgeConfig
from autoj_reward.errors import ConfigError
from autoj_reward.types import Candidate, Judgement
from experiments.faults.server import TOKEN, Server

TARGETS = {
    "replica": "ServeReplica:judge",
    "engine": "EngineCore",
    "controller": "ServeController",
}
"""Text in the name or command line of each target's processes.

The target `service` is the server itself, which is both the HTTP proxy and Ray's driver.
"""
RECOVERY_S = 600.0
"""Maximum seconds until a killed process is replaced."""
ORPHANS_S = 30.0
"""Seconds in which the children of a killed process must end."""


class KillsConfig(Block):
    """Judge, jobs and targets of the kills."""

    judge: JudgeConfig
    """Served judge."""
    targets: tuple[str, ...] = ("replica", "engine", "controller", "service")
    """Kinds of processes to kill. Each gets one job."""
    candidates: int = Field(64, ge=8)
    """Number of candidates in a job."""
    deadline_s: float = Field(600.0, gt=0)
    """Seconds after which a candidate is given up."""


@dataclass(frozen=True, slots=True)
class KillFigures:
    """Figures of one job with a kill."""

    target: str
    candidates: int
    left: int
    """Candidates without an answer at the time of the kill."""
    answered: int
    """Candidates with a judgement at the end."""
    told: int
    """Number of answers that the client reported.

    It equals `answered` and `candidates` if each candidate was answered exactly once.
    """
    ok: int
    """Candidates whose judgement is OK."""
    pause_s: float
    """Longest time without an answer after the kill."""
    recovered_s: float
    """Seconds from the kill until as many processes of this kind run and as many replicas are ready
    as before."""
    orphans: int
    """Processes started by the killed one that still run."""


def find_processes(server: Server, target: str) -> list[psutil.Process]:
    """Return the live processes of a target, oldest first."""
    try:
        if target == "service":
            return [server.process]
        descendants = server.process.children(recursive=True)
    except psutil.NoSuchProcess:  # the service itself is restarting
        return []
    return [process for process in descendants if _matches(process, TARGETS[target])]


def _matches(process: psutil.Process, text: str) -> bool:
    try:
        return text in process.name() or text in " ".join(process.cmdline())
    except psutil.Error:
        return False


async def judge_and_kill(server: Server, target: str, config: KillsConfig) -> KillFigures:
    """Run a job, and kill one process of the target after a quarter of the answers."""
    candidates = [
        Candidate(f"Question {n % 4} of the {target} job?", f"Answer {n}: " + "word " * (n % 7))
        for n in range(config.candidates)
    ]
    times: list[float] = []
    quarter = asyncio.Event()

    def note_answer(judgement: Judgement, reused: bool) -> None:
        times.append(time.monotonic())
        if len(times) >= config.candidates // 4:
            quarter.set()

    backend = await HttpBackend.connect(server.address, TOKEN, 60)
    client = JudgeClient(
        backend,
        progress=note_answer,
        limits=ClientLimits(deadline_s=config.deadline_s, chunk=8, max_in_flight=32),
    )
    try:
        rating = asyncio.create_task(client.rate(candidates))
        waiting = asyncio.create_task(quarter.wait())
        await asyncio.wait({rating, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        remaining, killed_at = len(candidates) - len(times), time.monotonic()
        recovering = asyncio.create_task(asyncio.to_thread(_kill_oldest, server, target))
        judgements = await rating
        recovered_s, orphans = await recovering
    finally:
        await backend.close()
    after = [killed_at, *(t for t in times if t > killed_at)]
    return KillFigures(
        target=target,
        candidates=len(candidates),
        left=remaining,
        answered=sum(judgement is not None for judgement in judgements),
        told=len(times),
        ok=sum(judgement.ok for judgement in judgements),
        pause_s=max((b - a for a, b in pairwise(after)), default=0.0),
        recovered_s=recovered_s,
        orphans=orphans,
    )


def _kill_oldest(server: Server, target: str) -> tuple[float, int]:
    """Kill the oldest process of a target.

    Returns the seconds until it was replaced, and the number of its children that still run.
    """
    before, replicas = find_processes(server, target), server.count_replicas()
    if not before:
        raise ConfigError(f"kills.targets: no process of {target!r} runs here")
    victim, descendants = before[0], before[0].children(recursive=True)
    started = time.monotonic()
    os.kill(victim.pid, signal.SIGKILL)
    while time.monotonic() < started + RECOVERY_S:
        processes = find_processes(server, target)
        if (
            len(processes) >= len(before)
            and victim not in processes
            and server.count_replicas() >= replicas
        ):
            seconds = time.monotonic() - started
            return seconds, _count_orphans(descendants)
        time.sleep(0.1)
    raise ConfigError(f"no new process of {target!r} within {RECOVERY_S:g} s")


def _count_orphans(processes: Sequence[psutil.Process]) -> int:
    """Return how many of the processes still run after ORPHANS_S seconds."""
    deadline = time.monotonic() + ORPHANS_S
    while (running := sum(map(_runs, processes))) and time.monotonic() < deadline:
        time.sleep(0.1)
    return running


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def kill_each(server: Server, config: KillsConfig) -> list[KillFigures]:
    """Run one job for each target."""
    return [await judge_and_kill(server, target, config) for target in config.targets]


def check_kill(row: dict[str, Any]) -> list[str]:
    """Return the promises about kills that a row breaks, one text each."""
    violations = []
    if not row["candidates"] == row["answered"] == row["told"] == row["ok"]:
        violations.append("not every candidate was answered once and ok")
    if not row["left"]:
        violations.append("the job was over before the kill")
    if row["orphans"]:
        violations.append(f"{row['orphans']} orphans run on")
    return violations
