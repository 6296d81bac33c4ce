"""Chaos suite; `make chaos` runs all of it.

    python -m experiments.faults.chaos --config configs/experiments/chaos.yaml [--parts load,kills]

Parts:

- `load`: the service under load.
- `holdups`: attacks that block a server without limits.
- `kills`: kill -9 of each process of a service.
- `jobs`: repeated kill -9 of a best-of-N job.

Writes `chaos.json` and `chaos.md` to the output folder, and fails if a promise was broken.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from autoj_reward.errors import EngineError
from autoj_reward.io.files import to_plain
from experiments.faults import holdups, jobs, kills, load
from experiments.faults.jobs import JobsConfig
from experiments.faults.kills import KillsConfig
from experiments.faults.load import LoadConfig
from experiments.faults.server import run_service
from experiments.study import Study, StudyConfig, study_command
from experiments.tables import report


class ChaosConfig(StudyConfig):
    """Settings of the parts, each under the part's name."""

    load: LoadConfig = LoadConfig()
    kills: KillsConfig
    jobs: JobsConfig = JobsConfig()

    def possible(self) -> Sequence[str]:
        """Return all parts."""
        return tuple(PARTS)


@dataclass(frozen=True, slots=True)
class ChaosPart:
    """Part of the suite."""

    run: Callable[[ChaosConfig], Sequence[Any]]
    """Measures, and returns rows of figures."""
    broken: Callable[[dict[str, Any]], list[str]]
    """Returns the broken promises of a row."""
    name: str
    """Field of a row that names the measured server, attack, target or command."""


def run_load(config: ChaosConfig) -> list[load.Load]:
    """Put the service under load."""
    log = config.output / "service.judged.jsonl"
    log.write_text("")
    with run_service(config.load.judge(log), config.output) as server:
        return [load.measure_load("service", server, config.load, log)]


def run_kills(config: ChaosConfig) -> list[kills.KillFigures]:
    """Run one job for each kind of process, and kill a process of that kind during it."""
    with run_service(config.kills.judge, config.output, start_s=600) as server:
        return asyncio.run(kills.kill_each(server, config.kills))


PARTS = {
    "load": ChaosPart(run_load, load.check_load, "server"),
    "holdups": ChaosPart(
        lambda config: holdups.attack_all(config.output), holdups.check_holdup, "attack"
    ),
    "kills": ChaosPart(run_kills, kills.check_kill, "target"),
    "jobs": ChaosPart(
        lambda config: [jobs.kill_job(config.jobs)], jobs.check_killed_job, "command"
    ),
}


def find_broken_promises(results: dict[str, Any]) -> list[str]:
    """Return the promises of the service that the figures break, one text each."""
    return [
        f"{name}, {row[part.name]}: {reason}"
        for name, part in PARTS.items()
        for row in results.get(name, [])
        for reason in part.broken(row)
    ]


def markdown(result: dict[str, Any]) -> str:
    """Return the report: one table for each part."""
    sections = []
    for name in (name for name in PARTS if name in result):
        rows = [[*map(_format_value, row.values())] for row in result[name]]
        sections.append((name, [list(result[name][0]), *rows], ""))
    return report("Chaos", result, sections)


def _format_value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " to ".join(map(_format_value, value))
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def study(run: Study[ChaosConfig]) -> str:
    """Run the parts and write their figures. Raises EngineError for broken promises."""
    run.config.output.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {}
    for name in run.parts:
        print(f"== {name}", file=sys.stderr)
        results[name] = to_plain(PARTS[name].run(run.config))
    text = run.write("chaos", results, markdown)
    if violations := find_broken_promises(results):
        raise EngineError(
            "\n  ".join(["promises are broken:", *violations, f"see {run.config.output}"])
        )
    return text


main = study_command(ChaosConfig, study, tuple(PARTS))

if __name__ == "__main__":
    sys.exit(main())
