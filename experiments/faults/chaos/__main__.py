"""The chaos suite; `make chaos` runs all of it.

    python -m experiments.faults.chaos --config configs/experiments/chaos.yaml [--parts load,fuzz]

load: the service and a bare FastAPI server under the same load. fuzz: bodies that no caller should
send. holdups: what holds up a server that bounds nothing. kills: kill -9 of each process of a
service. jobs: kill -9 of a best-of-N job, again and again. Writes `chaos.json` and `chaos.md` into
the output folder, and ends with an error if a promise was broken.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import httpx
from pydantic import Field
from tqdm import tqdm

from autoj_reward.config import JudgeConfig
from autoj_reward.errors import EngineError
from autoj_reward.io.files import to_plain
from experiments.faults.chaos import fuzz, holdups, jobs, kills, server
from experiments.faults.chaos.jobs import JobsConfig
from experiments.faults.chaos.kills import Killed, KillsConfig
from experiments.faults.chaos.load import Load, LoadConfig, measure
from experiments.study import Study, StudyConfig, command
from experiments.tables import report

MAX_GROWN_MIB = 64
"""By how much a service may grow over the fuzz."""
MAX_MIB_PER_MINUTE = 5
"""By how much it may grow under load: 100 bytes a request, at some 800 a second."""


class ChaosConfig(StudyConfig):
    """output: folder of the figures. bodies: how many the fuzz sends."""

    load: LoadConfig = LoadConfig()
    bodies: int = Field(10_000, ge=1)
    kills: KillsConfig
    jobs: JobsConfig = JobsConfig()

    def possible(self) -> Sequence[str]:
        return tuple(PARTS)


def run_load(config: ChaosConfig) -> list[Load]:
    """The service, then the bare server."""
    rows = []
    for name, start in (("service", server.service), ("bare FastAPI", server.bare)):
        log = config.output / f"{name.split()[0]}.judged.jsonl"
        log.write_text("")
        with start(config.load.judge(log), config.output) as running:
            print(f"{name}: {config.load.seconds:g} s of load", file=sys.stderr)
            rows.append(measure(name, running, config.load, log))
    return rows


def run_fuzz(config: ChaosConfig) -> dict[str, Any]:
    """How many bodies had each status."""

    async def send(address: str) -> Counter[int]:
        async with httpx.AsyncClient(
            base_url=address, headers=server.HEADERS, timeout=60, trust_env=False
        ) as client:
            with tqdm(total=config.bodies, desc="bodies", unit="body") as bar:

                async def post(path: str, body: bytes) -> tuple[int, bytes]:
                    bar.update()
                    try:
                        answer = await client.post(path, content=body)
                    except httpx.TransportError as error:
                        raise ValueError(f"{path}: {error!r} to {body[:500]!r}") from error
                    return answer.status_code, answer.content

                return await fuzz.run(post, config.bodies)

    with server.service(JudgeConfig(kind="fake"), config.output) as running:
        before = running.process.memory_info().rss
        pid = running.process.pid
        statuses = asyncio.run(send(running.address))
        grown = (running.process.memory_info().rss - before) / 2**20
        return {
            "bodies": config.bodies,
            "statuses": {str(k): n for k, n in sorted(statuses.items())},
            "crashed": running.process.pid != pid,
            "grown_mib": grown,
        }


def run_kills(config: ChaosConfig) -> Sequence[Killed]:
    """One job for each kind of process."""
    with server.service(config.kills.judge, config.output, start_s=600) as running:
        return asyncio.run(kills.run(running, config.kills))


PARTS: dict[str, Callable[[ChaosConfig], Any]] = {
    "load": run_load,
    "fuzz": run_fuzz,
    "holdups": lambda config: holdups.run(config.output),
    "kills": run_kills,
    "jobs": lambda config: jobs.run(config.jobs),
}


def broken(found: dict[str, Any]) -> list[str]:
    """The promises that the figures break."""
    wrong = []
    for row in found.get("load", []):
        wrong += [
            f"load, {row['server']}: {n} {row[n]}" for n in ("failed", "lost", "twice") if row[n]
        ]
        if (row["mib_per_minute"] or 0.0) > MAX_MIB_PER_MINUTE:  # None of a short load
            wrong.append(f"load, {row['server']}: {row['mib_per_minute']:.1f} MiB more each minute")
    for row in found.get("kills", []):
        if not row["candidates"] == row["answered"] == row["told"] == row["ok"]:
            wrong.append(f"kills, {row['target']}: not every candidate was answered once and ok")
        if not row["left"]:
            wrong.append(f"kills, {row['target']}: the job was over before the kill")
        if row["orphans"]:
            wrong.append(f"kills, {row['target']}: {row['orphans']} orphans run on")
    for row in found.get("holdups", []):
        wrong += [f"holdups, {row['attack']}: {why}" for why in holdups.broken(row)]
    if sent := found.get("fuzz"):
        if sent["crashed"]:
            wrong.append("fuzz: the service crashed")
        if sent["grown_mib"] > MAX_GROWN_MIB:
            wrong.append(f"fuzz: the service grew by {sent['grown_mib']:.0f} MiB")
    if job := found.get("jobs"):
        if not job["identical"]:
            wrong.append("jobs: the selections are not those of the undisturbed job")
        if not job["kills"]:
            wrong.append("jobs: the job was over before a kill")
    return wrong


def render(found: dict[str, Any]) -> str:
    """The figures as Markdown tables."""
    sections = []
    for name in (name for name in PARTS if name in found):
        rows = found[name] if isinstance(found[name], list) else [found[name]]
        sections.append((name, [list(rows[0]), *([*map(_shown, r.values())] for r in rows)], ""))
    return report("Chaos", found, sections)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{n} x {key}" for key, n in value.items())
    if isinstance(value, list | tuple):
        return " to ".join(map(_shown, value))
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def study(run: Study[ChaosConfig]) -> str:
    """Run the parts and write their figures. EngineError for promises that they break."""
    run.config.output.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = to_plain({name: PARTS[name](run.config) for name in run.parts})
    text = run.write("chaos", found, render)
    if wrong := broken(found):
        raise EngineError("\n  ".join(["promises are broken:", *wrong, f"see {run.config.output}"]))
    return text


main = command(ChaosConfig, study, tuple(PARTS))

if __name__ == "__main__":
    sys.exit(main())
