"""Attacks that hold up a server which bounds nothing, and what others see of one meanwhile."""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from autoj_reward.config import JudgeConfig
from experiments.faults.server import HEADERS, TOKEN, Server, service

HEALTH_S, MEMORY_MIB, LOG_KIB, STOP_S, INPUTS = 1.0, 300.0, 1024.0, 30.0, 1024
"""The promises."""
HOLD_S = 20.0
SCORE = {"candidates": [{"query": "Why?", "response": "Because."}]}
HEAD = f"POST /v1/score HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"


@dataclass(frozen=True, slots=True)
class Held:
    """One attack. health_s: the slowest answer of /healthz, on a connection of its own, and
    health_cpu_s: the most CPU that the service spent until one came, which is what it takes where
    nobody else wants the core. scored, failed: calls with the token that were answered, and those
    or probes that were not. rss_mib: most resident memory that it ever had.
    files: most that were open at a time, connections among them. log_kib: by how much the log grew.
    stop_s: from SIGTERM to the end. inputs: judge inputs of the costliest request."""

    attack: str
    health_s: float
    health_cpu_s: float
    scored: int
    failed: int
    rss_mib: float
    files: int
    log_kib: float
    stop_s: float
    inputs: int


def broken_by_holdup(row: dict[str, Any]) -> list[str]:
    """Return the promises that a row breaks."""
    bounds = {
        "health_cpu_s": HEALTH_S,
        "rss_mib": MEMORY_MIB,
        "log_kib": LOG_KIB,
        "stop_s": STOP_S,
        "inputs": INPUTS,
    }
    wrong = [f"{name} {row[name]:.4g}" for name, most in bounds.items() if row[name] > most]
    return wrong if row["scored"] else [*wrong, "nobody was served"]


def attack_all(folder: Path) -> Sequence[Held]:
    """Run every attack, each against a separate service and from a separate process."""
    return [attacked(folder, name) for name in ATTACKS]


def attacked(folder: Path, name: str) -> Held:
    """One attack: for a while, or as long as it lasts."""
    log, (_, files, lasts) = folder / "service.log", ATTACKS[name]
    with service(JudgeConfig(kind="fake"), folder, files=files) as server:
        before = log.stat().st_size
        command = [sys.executable, "-m", __name__, name, server.address]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as attacking:
            assert attacking.stdout is not None
            try:
                attacking.stdout.readline()  # it begins
                seen = asyncio.run(_watched(server, None if lasts else attacking))
                started = time.monotonic()
                server.close()
                stop_s = time.monotonic() - started
            finally:
                attacking.kill()
            told, _ = attacking.communicate()
        log_kib = (log.stat().st_size - before) / 1024
    return Held(name, *seen, log_kib, stop_s, int(told or 0))


Attack = Callable[[str], Coroutine[Any, Any, int]]
"""Attacks an address, some without end; the judge inputs that it cost."""


async def _watched(
    server: Server, attacking: subprocess.Popen[str] | None
) -> tuple[float, float, int, int, float, int]:
    """The slowest probe in seconds and in the service's CPU, calls that were served, what failed,
    the most memory and the most files, for a while or until an attacker is done."""
    slowest, busiest, scored, failed, files = 0.0, 0.0, 0, 0, 0
    end = time.monotonic() + HOLD_S
    async with httpx.AsyncClient(base_url=server.address, trust_env=False, timeout=30) as caller:
        while attacking.poll() is None if attacking else time.monotonic() < end:
            started, spent = time.monotonic(), server.cpu_s
            try:
                async with asyncio.timeout(30):
                    answer = await _alone(server.address)
                slowest = max(slowest, time.monotonic() - started)
                busiest = max(busiest, server.cpu_s - spent)
                failed += not answer.startswith(b"HTTP/1.1 200 ")
                given = await caller.post("/v1/score", json=SCORE, headers=HEADERS)
                scored, failed = scored + given.is_success, failed + given.is_error
            except (OSError, TimeoutError, httpx.TransportError):
                failed += 1
            files = max(files, server.process.num_fds())
            await asyncio.sleep(0.1)
    return slowest, busiest, scored, failed, server.peak_mib, files


async def _alone(address: str) -> bytes:
    """/healthz over a connection of its own."""
    reader, writer = await _connect(address)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    return answer


async def _connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.removeprefix("http://").rpartition(":")
    return await asyncio.open_connection(host, int(port))


def _holding(count: int, said: str) -> Attack:
    """So many connections that say this and no more, each opened anew when it is closed."""

    async def attack(address: str) -> int:
        async def one() -> None:
            while True:
                with suppress(OSError):
                    reader, writer = await _connect(address)
                    writer.write(said.encode())
                    await reader.read()
                    writer.close()
                await asyncio.sleep(1.0)

        await asyncio.gather(*(one() for _ in range(count)))
        return 0

    return attack


def _posting(body: Callable[[], bytes]) -> Attack:
    """A body, four times."""

    async def attack(address: str) -> int:
        async with httpx.AsyncClient(headers=HEADERS, trust_env=False, timeout=60) as caller:
            for _ in range(4):
                with suppress(httpx.TransportError):  # refused before its end
                    await caller.post(f"{address}/v1/score", content=body())
        return 0

    return attack


async def _flood(address: str) -> int:
    """Requests without the token, as fast as one caller can."""
    async with httpx.AsyncClient(trust_env=False, timeout=60) as caller:
        while True:
            with suppress(httpx.TransportError):
                await caller.post(f"{address}/v1/score", content=b"x")


async def _tie(address: str) -> int:
    """1,024 responses that are rated alike, and each of which loses to the next."""
    body = {"query": "Why?", "responses": ["x" * (10 * n + 5) for n in range(1024)]}
    async with httpx.AsyncClient(headers=HEADERS, trust_env=False, timeout=60) as caller:
        answer = await caller.post(f"{address}/v1/best_of_n", json=body)
        answer.raise_for_status()
        told = answer.json()
    return len(told["judgements"]) + 2 * len(told["selection"]["comparisons"])


def _text() -> bytes:
    """Read to its end and refused: what a scripted judge would do with it is not the edge's."""
    row = {"query": "Why?", "response": 'A text, with [marks] and "quotes". ' * 6000}
    return json.dumps({"candidates": [row] * 280, "unknown": 1}).encode()


ATTACKS: dict[str, tuple[Attack, int | None, bool]] = {
    "10,000 half-open connections": (_holding(10_000, "GET /healthz HTTP/1.1\r\nA: b"), None, True),
    "1,300 idle connections, 1,024 files": (_holding(1300, ""), 1024, True),
    "60 MiB of [],": (_posting(lambda: b"[" + b"[]," * (20 * 2**20)), None, False),
    "60 MiB of text": (_posting(_text), None, False),
    "half a body": (_holding(32, f"{HEAD}Content-Length: 100\r\n\r\n{{"), None, True),
    "no token": (_flood, None, True),
    "1,024 tied candidates": (_tie, None, False),
}
"""Each with the files that the service may have open, and whether it lasts."""

if __name__ == "__main__":
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a connection is a file
    print("begins", flush=True)
    print(asyncio.run(ATTACKS[sys.argv[1]][0](sys.argv[2])))
