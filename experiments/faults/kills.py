"""kill -9 of each process of a service in the middle of a job, and what the job saw of it."""

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

from autoj_reward.client.client import RewardClient
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
"""What the command line or name of each target's process holds; `service` is the server itself,
which is the HTTP proxy and Ray's driver in one."""
RECOVERY_S = 600.0
ORPHANS_S = 30.0
"""How long what a dead process had started may take to end."""


class KillsConfig(Block):
    """judge: the served judge. targets: whose processes are killed, one job each. candidates: of a
    job. deadline_s: until a candidate is given up."""

    judge: JudgeConfig
    targets: tuple[str, ...] = ("replica", "engine", "controller", "service")
    candidates: int = Field(64, ge=8)
    deadline_s: float = Field(600.0, gt=0)


@dataclass(frozen=True, slots=True)
class Killed:
    """One job. left: candidates that had no answer yet when the process was killed. answered: those
    with a judgement at the end, of which `ok` are ok. told: how many answers were reported; each
    candidate exactly once is told == answered == candidates. pause_s: longest time without an
    answer after the kill. recovered_s: from the kill until as many processes of its kind run and
    as many replicas could judge as before. orphans: processes that it had started and that run on.
    """

    target: str
    candidates: int
    left: int
    answered: int
    told: int
    ok: int
    pause_s: float
    recovered_s: float
    orphans: int


def find_processes(server: Server, target: str) -> list[psutil.Process]:
    """Return the live processes of a target, oldest first."""
    try:
        if target == "service":
            return [server.process]
        below = server.process.children(recursive=True)
    except psutil.NoSuchProcess:  # the service itself is being started again
        return []
    return [p for p in below if _is(p, TARGETS[target])]


def _is(process: psutil.Process, sign: str) -> bool:
    try:
        return sign in process.name() or sign in " ".join(process.cmdline())
    except psutil.Error:
        return False


async def judge_and_kill(server: Server, target: str, config: KillsConfig) -> Killed:
    """Judge while one process of the target is killed after a quarter of the answers."""
    asked = [
        Candidate(f"Question {n % 4} of the {target} job?", f"Answer {n}: " + "word " * (n % 7))
        for n in range(config.candidates)
    ]
    times: list[float] = []
    quarter = asyncio.Event()

    def progress(judgement: Judgement, reused: bool) -> None:
        times.append(time.monotonic())
        if len(times) >= config.candidates // 4:
            quarter.set()

    backend = await HttpBackend.connect(server.address, TOKEN, 60)
    client = RewardClient(
        backend, deadline_s=config.deadline_s, chunk=8, max_in_flight=32, progress=progress
    )
    try:
        rating = asyncio.create_task(client.rate(asked))
        waiting = asyncio.create_task(quarter.wait())
        await asyncio.wait({rating, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        left, killed = len(asked) - len(times), time.monotonic()
        recovering = asyncio.create_task(asyncio.to_thread(_kill, server, target))
        judgements = await rating
        recovered, orphans = await recovering
    finally:
        await backend.close()
    after = [killed, *(t for t in times if t > killed)]
    return Killed(
        target=target,
        candidates=len(asked),
        left=left,
        answered=sum(j is not None for j in judgements),
        told=len(times),
        ok=sum(j.ok for j in judgements),
        pause_s=max((b - a for a, b in pairwise(after)), default=0.0),
        recovered_s=recovered,
        orphans=orphans,
    )


def _kill(server: Server, target: str) -> tuple[float, int]:
    """Kill the oldest process of a target. Seconds until others have taken its place, and how many
    of those that it had started run on."""
    before, replicas = find_processes(server, target), server.replicas()
    if not before:
        raise ConfigError(f"kills.targets: no process of {target!r} runs here")
    victim, below = before[0], before[0].children(recursive=True)
    started = time.monotonic()
    os.kill(victim.pid, signal.SIGKILL)
    while time.monotonic() < started + RECOVERY_S:
        now = find_processes(server, target)
        if len(now) >= len(before) and victim not in now and server.replicas() >= replicas:
            seconds = time.monotonic() - started
            return seconds, _orphans(below)
        time.sleep(0.1)
    raise ConfigError(f"no new process of {target!r} within {RECOVERY_S:g} s")


def _orphans(processes: Sequence[psutil.Process]) -> int:
    """How many of them run on, though they have had time to end."""
    deadline = time.monotonic() + ORPHANS_S
    while (left := sum(map(_runs, processes))) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def kill_each(server: Server, config: KillsConfig) -> list[Killed]:
    """Run one job a target."""
    return [await judge_and_kill(server, target, config) for target in config.targets]


def broken_by_kill(row: dict[str, Any]) -> list[str]:
    """Return the promises that a row breaks."""
    wrong = []
    if not row["candidates"] == row["answered"] == row["told"] == row["ok"]:
        wrong.append("not every candidate was answered once and ok")
    if not row["left"]:
        wrong.append("the job was over before the kill")
    if row["orphans"]:
        wrong.append(f"{row['orphans']} orphans run on")
    return wrong
