"""What the HTTP edge costs, and what several of them behind one port would do on more cores.

    python -m experiments.speed.edge --config configs/edge.yaml [--parts beside,scaling]

beside: the service beside a bare FastAPI server on the same scripted engine. Both run all the time
and are put under the same load in turn. Where clients and servers share cores with others, requests
a second say little, and CPU milliseconds a request still hold.
scaling: the service with several edges over one scripted judge on Ray. What edges, replica and the
rest of Ray spend on a request says how many requests a second they could do on cores of their own.
Results: edge.json and edge.md.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import psutil  # type: ignore[import-untyped]
from pydantic import Field

from autoj_reward.config import Block
from experiments.faults.chaos import server
from experiments.faults.chaos.load import LoadConfig, measure
from experiments.study import Study, StudyConfig, command
from experiments.tables import report, tabled

SERVICE, BARE = "service", "bare FastAPI"
COLUMNS = {
    "server": "{server}",
    "requests": "{requests}",
    "a second": "{per_second:.0f}",
    "added p50, s": "{p50_s:.3f}",
    "CPU ms a request": "{cpu_ms:.3f}",
    "not answered": "{failed}",
}
SPENT = {
    "edges": "{edges}",
    "requests": "{requests}",
    "a second": "{per_second:.0f}",
    "added p50, s": "{p50_s:.3f}",
    "CPU ms a request: edges": "{edge_ms:.3f}",
    "the replica": "{replica_ms:.3f}",
    "the rest of Ray": "{shared_ms:.3f}",
    "not answered": "{failed}",
}
POSSIBLE = {
    "edges, a core each": "{edges}",
    "requests a second": "{per_second:.0f}",
    "replicas that these keep busy": "{replicas:.1f}",
}
EDGES, REPLICA, SHARED = "edge_ms", "replica_ms", "shared_ms"


class ScalingConfig(Block):
    """edges: how many, of each run. foreseen: how many the model foresees. load: of each run."""

    edges: tuple[int, ...] = (1, 2)
    foreseen: tuple[int, ...] = (1, 2, 4, 8, 16)
    load: LoadConfig = LoadConfig(seconds=60.0)


class EdgeSpeedConfig(StudyConfig):
    """load: of each round. rounds: of both servers, whose medians are reported."""

    load: LoadConfig = LoadConfig(seconds=60.0)
    rounds: int = Field(3, ge=1)
    scaling: ScalingConfig = ScalingConfig()

    def possible(self) -> Sequence[str]:
        return tuple(PARTS)


def beside(config: EdgeSpeedConfig) -> dict[str, Any]:
    """Load the two in turn."""
    rows = list[dict[str, Any]]()
    logs = {name: config.output / f"{name.split()[0]}.judged.jsonl" for name in (SERVICE, BARE)}
    for log in logs.values():
        log.write_text("")
    with (
        server.service(config.load.judge(logs[SERVICE]), config.output) as ours,
        server.bare(config.load.judge(logs[BARE]), config.output) as bare,
    ):
        for _ in range(config.rounds):
            for name, running in ((SERVICE, ours), (BARE, bare)):
                logs[name].write_text("")
                before = running.cpu_s
                found = measure(name, running, config.load, logs[name])
                spent = running.cpu_s - before
                rows.append(asdict(found) | {"cpu_ms": 1000 * spent / found.requests})
    return {"rounds": rows, "ratios": ratios(rows)}


def ratios(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Medians over the rounds of what the service has for one of the bare server."""

    def each(name: str, field: str) -> list[float]:
        return [row[field] for row in rows if row["server"] == name]

    return {
        field: statistics.median(
            own / other for own, other in zip(each(SERVICE, field), each(BARE, field), strict=True)
        )
        for field in ("per_second", "p50_s", "cpu_ms")
    }


def scaling(config: EdgeSpeedConfig) -> dict[str, Any]:
    """Load services of so many edges, one after the other."""
    rows, load = list[dict[str, Any]](), config.scaling.load
    log = config.output / "ray.judged.jsonl"
    for count in config.scaling.edges:
        log.write_text("")
        judge = load.judge(log)
        with server.service(judge, config.output, edges=count, on_ray=True) as running:
            before = spent(running.process)
            found = measure(f"{count} edges", running, load, log)
            after = spent(running.process)
        cost = {k: 1000 * (after[k] - before[k]) / found.requests for k in after}
        rows.append(asdict(found) | {"edges": count} | cost)
    return {"spent": rows, "foreseen": foreseen(rows, config.scaling.foreseen)}


def spent(service: psutil.Process) -> Mapping[str, float]:
    """CPU seconds so far of a service on a Ray of its own: its edges, its judge's replica, and the
    rest, of which there is one however many edges there are."""
    seconds, titles = dict[psutil.Process, float](), dict[psutil.Process, str]()
    for process in (service, *service.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            titles[process] = " ".join(process.cmdline())
            seconds[process] = sum(process.cpu_times()[:2])
    edges = {process for process, title in titles.items() if "spawn_main" in title} or {service}
    replicas = {process for process, title in titles.items() if "ServeReplica:" in title}

    def of(some: set[psutil.Process]) -> float:
        return sum(seconds.get(process, 0.0) for process in some)

    return {
        EDGES: of(edges),
        REPLICA: of(replicas),
        SHARED: of(set(seconds) - edges - replicas),
    }


def foreseen(rows: Sequence[dict[str, Any]], edges: Sequence[int]) -> list[dict[str, float]]:
    """Requests a second of N edges, at most: min(N / an edge's CPU seconds a request, 1 / those of
    what all share). Of edges and replica the dearest run counts; of what is shared the cheapest,
    where what Ray does without any request weighs least. replicas: how many scripted ones that
    takes; a model needs far more than its replica's own Python."""
    edge_ms, replica_ms = (max(row[kind] for row in rows) for kind in (EDGES, REPLICA))
    shared_ms = min(row[SHARED] for row in rows)
    found = []
    for count in edges:
        bounds = [1000 * count / edge_ms, 1000 / shared_ms if shared_ms else float("inf")]
        found.append(
            {
                "edges": count,
                "per_second": min(bounds),
                "replicas": min(bounds) * replica_ms / 1000,
            }
        )
    return found


def render(found: dict[str, Any]) -> str:
    """The rounds and their ratios, and the runs with what they foresee, as Markdown."""
    about, sections = [], []
    if "ratios" in found:
        own = found["ratios"]
        about.append(
            f"Median ratios to the bare server of the same round: {own['per_second']:.2f} of its "
            f"requests a second, {own['p50_s']:.2f} of its added median, {own['cpu_ms']:.2f} of "
            "its CPU."
        )
        sections.append(("Rounds", tabled(found["rounds"], COLUMNS), ""))
    if "spent" in found:
        first, last = found["spent"][0], found["spent"][-1]
        ratio = last["per_second"] / first["per_second"]
        shared = (
            f"{last['edges']} edges do {ratio:.2f} of the requests of {first['edges']}, with the "
            "clients, the replica and Ray on the same cores."
        )
        sections.append(("Several edges", tabled(found["spent"], SPENT), shared))
        sections.append(("On cores of their own", tabled(found["foreseen"], POSSIBLE), ""))
    return report("Edge", found, sections, *about)


PARTS = {"beside": beside, "scaling": scaling}


def study(run: Study[EdgeSpeedConfig]) -> str:
    """Run the parts."""
    run.config.output.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {}
    for name in run.parts:
        found |= PARTS[name](run.config)
    return run.write("edge", found, render)


main = command(EdgeSpeedConfig, study, tuple(PARTS))

if __name__ == "__main__":
    sys.exit(main())
