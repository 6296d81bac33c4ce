"""Attacks that block a server without limits, and the service that others get meanwhile.

The service answers for itself where an attacker needs the token. nginx with the shipped
configuration stands before it where connections alone are the attack.
"""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from autoj_reward.config import JudgeConfig
from experiments.faults.proxy import nginx_before
from experiments.faults.server import HEADERS, TOKEN, Server, run_service

HEALTH_S, MEMORY_MIB, LOG_KIB, STOP_S, INPUTS = 1.0, 300.0, 1024.0, 30.0, 1024
"""Promised limits. HEALTH_S, MEMORY_MIB, LOG_KIB, STOP_S and INPUTS bound the fields of
`HoldupFigures`."""
HOLD_S = 20.0
"""Seconds for which an endless attack runs."""
SCORE = {"candidates": [{"query": "Why?", "response": "Because."}]}
"""Body of a legitimate call."""
HEAD = f"POST /v1/score HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
"""Start of an authorised request."""


@dataclass(frozen=True, slots=True)
class HoldupFigures:
    """Figures of one attack."""

    attack: str
    health_s: float
    """Slowest answer of /healthz in seconds, each on a new connection."""
    health_cpu_s: float
    """Most CPU seconds that the service used during one such call: its latency on an otherwise idle
    core."""
    scored: int
    """Calls with the token that were answered."""
    failed: int
    """Calls with the token and health probes that failed."""
    rss_mib: float
    """Peak resident memory of the service in MiB."""
    files: int
    """Peak number of open files, connections included."""
    log_kib: float
    """Growth of the service's log in KiB."""
    stop_s: float
    """Seconds from SIGTERM to the end of the process."""
    inputs: int
    """Number of judge inputs of the most expensive request."""


def check_holdup(row: dict[str, Any]) -> list[str]:
    """Return the promised limits that a row breaks, one text each."""
    bounds = {
        "health_cpu_s": HEALTH_S,
        "rss_mib": MEMORY_MIB,
        "log_kib": LOG_KIB,
        "stop_s": STOP_S,
        "inputs": INPUTS,
    }
    violations = [f"{name} {row[name]:.4g}" for name, limit in bounds.items() if row[name] > limit]
    return violations if row["scored"] else [*violations, "nobody was served"]


def attack_all(folder: Path) -> Sequence[HoldupFigures]:
    """Run every attack from a separate process, each against a new service."""
    return [run_attack(folder, name) for name in ATTACKS]


def run_attack(folder: Path, name: str) -> HoldupFigures:
    """Run one attack until it ends, or for HOLD_S seconds if it is endless."""
    log, (_, is_proxied, is_endless) = folder / "service.log", ATTACKS[name]
    with (
        run_service(JudgeConfig(kind="fake"), folder) as server,
        nginx_before(server.port, folder) if is_proxied else nullcontext() as proxy,
    ):
        address = proxy.http if proxy else server.address
        before = log.stat().st_size
        command = [sys.executable, "-m", __name__, name, address]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as attacker:
            assert attacker.stdout is not None
            try:
                attacker.stdout.readline()  # the attack has begun
                figures = asyncio.run(
                    _watch_service(server, address, None if is_endless else attacker)
                )
                started = time.monotonic()
                server.close()
                stop_s = time.monotonic() - started
            finally:
                attacker.kill()
            output, _ = attacker.communicate()
        log_kib = (log.stat().st_size - before) / 1024
    return HoldupFigures(name, *figures, log_kib, stop_s, int(output or 0))


Attack = Callable[[str], Coroutine[Any, Any, int]]
"""Function that attacks an address. Returns the number of judge inputs that it caused; some never
return."""


async def _watch_service(
    server: Server, address: str, attacker: subprocess.Popen[str] | None
) -> tuple[float, float, int, int, float, int]:
    """Call the service at an address until the attacker ends, or for HOLD_S seconds without one.

    Returns the slowest probe in seconds and in the service's CPU seconds, the number of calls
    served, the number that failed, the peak memory in MiB, and the peak number of files.
    """
    slowest, busiest, scored, failed, files = 0.0, 0.0, 0, 0, 0
    end = time.monotonic() + HOLD_S
    async with httpx.AsyncClient(base_url=address, trust_env=False, timeout=30) as caller:
        while attacker.poll() is None if attacker else time.monotonic() < end:
            started, spent = time.monotonic(), server.cpu_s
            try:
                async with asyncio.timeout(30):
                    answer = await _probe_health(address)
                slowest = max(slowest, time.monotonic() - started)
                busiest = max(busiest, server.cpu_s - spent)
                failed += not answer.startswith(b"HTTP/1.1 200 ")
                score_answer = await caller.post("/v1/score", json=SCORE, headers=HEADERS)
                scored, failed = scored + score_answer.is_success, failed + score_answer.is_error
            except (OSError, TimeoutError, httpx.TransportError):
                failed += 1
            files = max(files, server.process.num_fds())
            await asyncio.sleep(0.1)
    return slowest, busiest, scored, failed, server.peak_mib, files


async def _probe_health(address: str) -> bytes:
    """Return the answer of /healthz on a new connection."""
    reader, writer = await _connect(address)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    return answer


async def _connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.removeprefix("http://").rpartition(":")
    return await asyncio.open_connection(host, int(port))


def _make_holding_attack(count: int, text: str) -> Attack:
    """Return an attack of `count` connections that send one text and wait, reopened when closed."""

    async def attack(address: str) -> int:
        async def hold_connection() -> None:
            while True:
                with suppress(OSError):
                    reader, writer = await _connect(address)
                    writer.write(text.encode())
                    await reader.read()
                    writer.close()
                await asyncio.sleep(1.0)

        await asyncio.gather(*(hold_connection() for _ in range(count)))
        return 0

    return attack


def _make_posting_attack(body: Callable[[], bytes]) -> Attack:
    """Return an attack that posts a body four times."""

    async def attack(address: str) -> int:
        async with httpx.AsyncClient(headers=HEADERS, trust_env=False, timeout=60) as caller:
            for _ in range(4):
                with suppress(httpx.TransportError):  # the service may refuse before the body ends
                    await caller.post(f"{address}/v1/score", content=body())
        return 0

    return attack


async def _flood(address: str) -> int:
    """Send requests without the token, as fast as one caller at an address of its own can."""
    transport = httpx.AsyncHTTPTransport(local_address="127.0.0.9")
    async with httpx.AsyncClient(transport=transport, timeout=60) as caller:
        while True:
            with suppress(httpx.TransportError):
                await caller.post(f"{address}/v1/score", content=b"x")


async def _tie(address: str) -> int:
    """Ask to choose among 1,024 responses with equal ratings, each of which loses to the next."""
    body = {"query": "Why?", "responses": ["x" * (10 * n + 5) for n in range(1024)]}
    async with httpx.AsyncClient(headers=HEADERS, trust_env=False, timeout=60) as caller:
        answer = await caller.post(f"{address}/v1/best_of_n", json=body)
        answer.raise_for_status()
        result = answer.json()
    return len(result["judgements"]) + 2 * len(result["selection"]["comparisons"])


def _make_large_body() -> bytes:
    """Return a large body that is read to its end and then refused.

    The refusal keeps the scripted judge's own work out of the measurement.
    """
    row = {"query": "Why?", "response": 'A text, with [marks] and "quotes". ' * 6000}
    return json.dumps({"candidates": [row] * 280, "unknown": 1}).encode()


ATTACKS: dict[str, tuple[Attack, bool, bool]] = {
    "10,000 half-open connections": (
        _make_holding_attack(10_000, "GET /healthz HTTP/1.1\r\nA: b"),
        True,
        True,
    ),
    "no token": (_flood, True, True),
    "half a body": (_make_holding_attack(32, f"{HEAD}Content-Length: 100\r\n\r\n{{"), False, True),
    "60 MiB of [],": (_make_posting_attack(lambda: b"[" + b"[]," * (20 * 2**20)), False, False),
    "60 MiB of text": (_make_posting_attack(_make_large_body), False, False),
    "1,024 tied candidates": (_tie, False, False),
}
"""Attacks, each with whether nginx stands before the service and whether the attack is endless."""

if __name__ == "__main__":
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a connection is a file
    print("begins", flush=True)
    print(asyncio.run(ATTACKS[sys.argv[1]][0](sys.argv[2])))
