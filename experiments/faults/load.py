"""Load test with many clients: throughput, added latency, memory, exactly-once answers.

The engine is scripted and reports how long each answer took inside it. The rest of the latency
belongs to server, network and clients, which run on the same machine.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil  # type: ignore[import-untyped]
from pydantic import Field

from autoj_reward.config import Block, JudgeConfig
from experiments.faults.server import HEADERS, Server

MAX_MIB_PER_MINUTE = 5
"""Maximum growth of a server under load. It is 100 bytes per request at about 800
requests per second."""


class LoadConfig(Block):
    """Load on a server."""

    clients: int = Field(16, ge=1)
    """Number of client processes."""
    concurrent: int = Field(2000, ge=1)
    """Requests in flight, over all clients."""
    seconds: float = Field(300.0, gt=0)
    """Duration of the load."""
    latency_s: float = Field(3.0, ge=0)
    """Latency of the scripted engine; see `engine/fake.py`."""
    latency_spread: float = Field(0.5, ge=0)
    """Spread of that latency; see `engine/fake.py`."""

    def judge(self, log: Path) -> JudgeConfig:
        """Return a scripted judge with these latencies, which logs each response that it judges."""
        script = {
            "latency_s": self.latency_s,
            "latency_spread": self.latency_spread,
            "log": str(log),
        }
        serve = {"max_ongoing": 2 * self.concurrent}
        return JudgeConfig.model_validate({"kind": "fake", "script": script, "serve": serve})


@dataclass(frozen=True, slots=True)
class Request:
    """One request and its answer."""

    name: str
    """Its response text, which is unique."""
    status: int
    """HTTP status; 0 without an answer."""
    seconds: float
    """Seconds until the whole answer arrived."""
    inside: float
    """Seconds of these that the engine reports as its own."""


@dataclass(frozen=True, slots=True)
class Load:
    """Figures of one load test."""

    server: str
    requests: int
    per_second: float
    p50_s: float
    """Median of the seconds that were added to the engine's own."""
    p99_s: float
    """99th percentile of the same."""
    failed: int
    """Requests not answered with status 200."""
    lost: int
    """Requests answered by the engine but not by the server, or the other way round."""
    twice: int
    """Responses that the engine judged more than once."""
    rss_mib: tuple[float, float]
    """Resident memory of the server after a tenth of the time and at the end.

    With a scripted engine the server is one process.
    """
    mib_per_minute: float
    """Growth over the second half, by least squares. NaN for a load of less than a minute."""


def check_load(row: dict[str, Any]) -> list[str]:
    """Return the promised limits that a row breaks, one text each."""
    violations = [f"{row[name]} {name}" for name in ("failed", "lost", "twice") if row[name]]
    if (row["mib_per_minute"] or 0.0) > MAX_MIB_PER_MINUTE:  # None after a short load
        violations.append(f"{row['mib_per_minute']:.1f} MiB more each minute")
    return violations


def measure_load(name: str, server: Server, config: LoadConfig, log: Path) -> Load:
    """Put a server under load and return the figures."""
    base, extra = divmod(config.concurrent, config.clients)
    counts = [base + (n < extra) for n in range(config.clients)]
    memory: list[tuple[float, float]] = []
    context = multiprocessing.get_context("spawn")
    with _watch_memory(server.process, memory), ProcessPoolExecutor(len(counts), context) as pool:
        futures = [
            pool.submit(_run_client, n, server.address, count, config.seconds)
            for n, count in enumerate(counts)
        ]
        results = [future.result() for future in futures]
    samples = [sample for requests, _ in results for sample in requests]
    seconds = statistics.mean(client_s for _, client_s in results)
    return summarise_load(name, samples, _read_judged_texts(log), memory, seconds)


def summarise_load(
    name: str,
    samples: Sequence[Request],
    judged_texts: Sequence[str],
    memory: Sequence[tuple[float, float]],
    seconds: float,
) -> Load:
    """Compute the figures of a load test.

    `judged_texts` are the responses in the engine's log, `memory` holds (seconds, MiB) pairs, and
    `seconds` is the duration of a client's load.
    """
    answered_requests = [s for s in samples if s.status == 200]
    added_s = [s.seconds - s.inside for s in answered_requests] or [float("nan")]
    counts = Counter(judged_texts)
    answered_names = {s.name for s in answered_requests}
    p50, p99 = np.percentile(added_s, [50, 99])
    return Load(
        server=name,
        requests=len(samples),
        per_second=len(answered_requests) / seconds,
        p50_s=float(p50),
        p99_s=float(p99),
        failed=len(samples) - len(answered_requests),
        lost=len(answered_names ^ (set(counts) & {s.name for s in samples})),
        twice=sum(count > 1 for count in counts.values()),
        rss_mib=(memory[len(memory) // 10][1], memory[-1][1]),
        mib_per_minute=_fit_slope(memory),
    )


def _fit_slope(memory: Sequence[tuple[float, float]]) -> float:
    """Return the growth in MiB per minute over the second half of the time."""
    first, last = memory[0][0], memory[-1][0]
    half = [(at, mib) for at, mib in memory if at >= (first + last) / 2]
    if last - first < 60:
        return float("nan")
    at, mib = np.array(half).T
    return float(np.polyfit((at - first) / 60, mib, 1)[0])


def _read_judged_texts(log: Path) -> list[str]:
    return [json.loads(line)[0] for line in log.read_text(encoding="ascii").splitlines()]


@contextmanager
def _watch_memory(process: psutil.Process, memory: list[tuple[float, float]]) -> Iterator[None]:
    """Record (seconds, MiB of resident memory) of a process once a second."""
    ended = threading.Event()

    def watch() -> None:
        while True:
            memory.append((time.monotonic(), process.memory_info().rss / 2**20))
            if ended.wait(1.0):
                return

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _run_client(
    number: int, address: str, concurrent: int, seconds: float
) -> tuple[list[Request], float]:
    """Run one client. Return its requests, and how many seconds it ran."""
    started = time.monotonic()
    samples = asyncio.run(_send_requests(number, address, concurrent, seconds))
    return samples, time.monotonic() - started


async def _send_requests(
    number: int, address: str, concurrent: int, seconds: float
) -> list[Request]:
    samples: list[Request] = []
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=concurrent)
    async with httpx.AsyncClient(
        base_url=address, headers=HEADERS, limits=limits, timeout=120, trust_env=False
    ) as client:
        end = time.monotonic() + seconds

        async def run_worker(worker: int) -> None:
            count = 0
            while not count or time.monotonic() < end:  # at least once, even on a busy machine
                count += 1
                name = f"client {number} worker {worker} request {count}"
                samples.append(await _send_request(client, name))

        await asyncio.gather(*(run_worker(worker) for worker in range(concurrent)))
    return samples


async def _send_request(client: httpx.AsyncClient, name: str) -> Request:
    body = {"candidates": [{"query": f"Question of {name}?", "response": name}]}
    started = time.monotonic()
    try:
        answer = await client.post("/v1/score", json=body)
    except httpx.TransportError:
        return Request(name, 0, time.monotonic() - started, 0.0)
    seconds = time.monotonic() - started
    inside = 0.0
    if answer.status_code == 200:
        usage = answer.json()["judgements"][0]["usage"]
        inside = usage["latency_s"] + usage["queued_s"]
    return Request(name, answer.status_code, seconds, inside)
