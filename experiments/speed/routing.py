"""What routing costs: many scripted replicas, a long stream of candidates, bounded memory.

    python -m experiments.speed.routing --config configs/experiments/routing.yaml

The engines are scripted: a judgement takes a drawn time, and each engine has a fixed number under
way. So it is known how long the same times take without any overhead: each next candidate goes to
the place that is free first. What the run takes more is the client's and Ray Serve's. The
candidates come from a generator, a window of queries at a time. Results: routing.json, routing.md.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from heapq import heapreplace
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]
from pydantic import Field
from tqdm import tqdm

from autoj_reward.client.backend import Backend, LocalBackend
from autoj_reward.client.client import RewardClient
from autoj_reward.config import JudgeConfig
from autoj_reward.engine.fake import latency_s
from autoj_reward.errors import ConfigError
from autoj_reward.judge.make import make_judge
from autoj_reward.replicas.replica import JudgeReplica
from autoj_reward.types import Candidate, JudgeInput, Judgement
from experiments.study import Study, StudyConfig, command
from experiments.tables import lined, report


class RoutingConfig(StudyConfig):
    """The simulated cluster and its load.

    ray: scripted replicas behind Ray Serve, an actor each; false keeps all in this process.
    replicas, concurrent: replicas, and judgements that each has under way; max_ongoing: candidates
        that the client sends for each, of which the rest waits at the replica.
    candidates, group: in all, and of one query.
    latency_s, latency_spread: seconds of a judgement: median and sigma of a log-normal.
    """

    ray: bool = True
    replicas: int = Field(64, ge=1)
    concurrent: int = Field(64, ge=1)
    max_ongoing: int = Field(128, ge=1)
    candidates: int = Field(100_000, ge=1)
    group: int = Field(32, ge=1)
    latency_s: float = Field(5.5, gt=0)
    latency_spread: float = Field(0.3, ge=0)

    @property
    def judge(self) -> JudgeConfig:
        """The scripted judge."""
        script = {
            "latency_s": self.latency_s,
            "latency_spread": self.latency_spread,
            "concurrent": self.concurrent,
        }
        serve = {"replicas": self.replicas, "num_cpus": 0.01, "max_ongoing": self.max_ongoing}
        return JudgeConfig.model_validate({"kind": "fake", "script": script, "serve": serve})


class Pool(Backend):
    """Replicas in this process: a call goes to the less busy of two drawn ones, as in Ray Serve."""

    def __init__(self, backends: Sequence[LocalBackend]) -> None:
        self._backends, self._calls = backends, [0] * len(backends)
        self.judge = backends[0].judge

    async def stream(self, items: Sequence[JudgeInput]) -> AsyncGenerator[tuple[int, Judgement]]:
        drawn = random.sample(range(len(self._calls)), min(2, len(self._calls)))
        chosen = min(drawn, key=self._calls.__getitem__)
        self._calls[chosen] += 1
        try:
            async with aclosing(self._backends[chosen].stream(items)) as answers:
                async for answer in answers:
                    yield answer
        finally:
            self._calls[chosen] -= 1

    async def check(self) -> int:
        """They live in this process."""
        return len(self._calls)

    async def update(self, config: JudgeConfig) -> None:
        raise ConfigError("simulated replicas keep their judge")

    async def close(self) -> None:
        """Nothing was started."""


class Watched(Backend):
    """A backend that notes what it adds to the seconds that a judgement took inside its replica."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.judge = backend.judge
        self.added_s = array("f")

    async def check(self) -> int:
        return await self._backend.check()

    async def update(self, config: JudgeConfig) -> None:
        await self._backend.update(config)

    async def close(self) -> None:
        await self._backend.close()

    async def stream(self, items: Sequence[JudgeInput]) -> AsyncGenerator[tuple[int, Judgement]]:
        asked = time.monotonic()
        async with aclosing(self._backend.stream(items)) as answers:  # type: ignore[type-var]
            async for index, judgement in answers:
                inside = judgement.usage.latency_s + judgement.usage.queued_s
                self.added_s.append(time.monotonic() - asked - inside)
                yield index, judgement


@asynccontextmanager
async def opened(config: RoutingConfig) -> AsyncIterator[Backend]:
    """The replicas, ready."""
    if not config.ray:
        backends = [
            LocalBackend(JudgeReplica(make_judge(config.judge))) for _ in range(config.replicas)
        ]
        yield Pool(backends)
        return
    from autoj_reward.replicas.cluster import Cluster

    cluster = Cluster()
    try:
        yield cluster.deploy_judge(config.judge)
    finally:
        cluster.close()


def groups(config: RoutingConfig) -> Iterator[list[Candidate]]:
    """The candidates, a query at a time."""
    for start in range(0, config.candidates, config.group):
        query = f"Question {start // config.group}?"
        numbers = range(start, min(start + config.group, config.candidates))
        yield [Candidate(query, f"Answer {n}." + " more" * (n % 7)) for n in numbers]


@dataclass(slots=True)
class Seen:
    """What a run shows while it goes. wrong: judgements that are not the candidate's own.
    told: answers that the client has reported. rss_mib: memory at each hundredth of them."""

    answered: int = 0
    wrong: int = 0
    told: int = 0
    rss_mib: list[float] = field(default_factory=list)


async def feed(
    client: RewardClient, stream: Iterator[list[Candidate]], window: int, seen: Seen
) -> None:
    """Rate all groups of a stream, at most `window` of them under way."""
    turn = asyncio.Semaphore(window)

    async def rate(group: list[Candidate]) -> None:
        try:
            found = await client.rate(group)
        finally:
            turn.release()
        seen.answered += sum(j.ok for j in found)
        expected = (1 + len(c.response) % 10 for c in group)  # the script's rating
        seen.wrong += sum(
            j.view("rating") != value for j, value in zip(found, expected, strict=True)
        )

    async with asyncio.TaskGroup() as tasks:
        for group in stream:
            await turn.acquire()
            tasks.create_task(rate(group))


async def measure(config: RoutingConfig) -> dict[str, Any]:
    """Send everything through; the figures."""
    seen, process = Seen(), psutil.Process()
    every = max(1, config.candidates // 100)
    limit = config.max_ongoing * config.replicas
    async with AsyncExitStack() as stack:
        bar = stack.enter_context(tqdm(total=config.candidates, desc="judging", unit="judgement"))

        def progress(judgement: Judgement, reused: bool) -> None:
            seen.told += 1
            if seen.told % every == 0:
                bar.update(every)
                seen.rss_mib.append(process.memory_info().rss / 2**20)

        watched = Watched(await stack.enter_async_context(opened(config)))
        client = RewardClient(watched, max_in_flight=limit, progress=progress)
        await stack.enter_async_context(client)
        started, cpu = time.monotonic(), sum(process.cpu_times()[:2])
        await feed(client, groups(config), 2 * max(1, limit // config.group), seen)
        seconds = time.monotonic() - started
        cpu = sum(process.cpu_times()[:2]) - cpu
    return figures(config, seen, seconds, cpu, watched.added_s)


def makespan(seconds: Iterable[float], places: int) -> float:
    """Seconds of a list schedule (Graham, 1966): each next task to the place that is free first."""
    free = [0.0] * places
    for task in seconds:
        heapreplace(free, free[0] + task)
    return max(free)


def figures(
    config: RoutingConfig, seen: Seen, seconds: float, cpu_s: float, added_s: Sequence[float]
) -> dict[str, Any]:
    """The run in figures. scheduled_s: without overhead, `makespan` in the order of the stream.
    ideal_s: with every place taken until the end, which no schedule beats. ratio: seconds to
    scheduled_s. added: seconds that a judgement spent outside its replica. cpu_s: of this process.
    rss_mib: its memory after a tenth of the answers, and the most."""
    script, places = config.judge.script, config.concurrent * config.replicas
    drawn = [latency_s(script, c.response) for group in groups(config) for c in group]
    scheduled = makespan(drawn, places)
    p50, p99 = np.percentile(added_s, [50, 99])
    return {
        "where": "Ray Serve, an actor each" if config.ray else "this process",
        "replicas": config.replicas,
        "candidates": config.candidates,
        "answered": seen.answered,
        "told": seen.told,
        "wrong": seen.wrong,
        "seconds": seconds,
        "scheduled_s": scheduled,
        "ideal_s": sum(drawn) / places,
        "ratio": seconds / scheduled,
        "per_second": config.candidates / seconds,
        "added_p50_s": float(p50),
        "added_p99_s": float(p99),
        "cpu_s": cpu_s,
        "rss_mib": (seen.rss_mib[len(seen.rss_mib) // 10], max(seen.rss_mib)),
    }


COLUMNS = {
    "replicas": "{replicas}, {where}",
    "candidates; answered, reported": "{candidates}; {answered}, {told}",
    "judgements that are not the candidate's own": "{wrong}",
    "seconds; scheduled; ideal": "{seconds:.1f}; {scheduled_s:.1f}; {ideal_s:.1f}",
    "ratio, seconds to scheduled": "{ratio:.3f}",
    "candidates/s": "{per_second:.0f}",
    "seconds added to a judgement, median and 99th percentile": (
        "{added_p50_s:.4f}, {added_p99_s:.4f}"
    ),
    "CPU seconds of this process": "{cpu_s:.1f}",
    "its memory after a tenth of the answers, and the most": (
        "{rss_mib[0]:.0f}, {rss_mib[1]:.0f} MiB"
    ),
}


def render(found: dict[str, Any]) -> str:
    """The figures as a table in Markdown, a line each."""
    config = found["config"]
    note = (
        f"Scripted engines: {config['concurrent']} judgements under way each, of "
        f"{config['latency_s']:g} s by the median (log-normal, sigma "
        f"{config['latency_spread']:g}). Scheduled: the same seconds without overhead, each next "
        "candidate at the place that is free first; the ratio is to it. Ideal: the sum of their "
        "seconds over all places, a lower bound that leaves out the wait for the last candidates."
    )
    rows = lined(found["run"], COLUMNS)
    return report("Routing", found, [("A stream of candidates", rows, note)])


async def study(run: Study[RoutingConfig]) -> str:
    """Measure and write."""
    return run.write("routing", {"run": await measure(run.config)}, render)


main = command(RoutingConfig, study)

if __name__ == "__main__":
    sys.exit(main())
