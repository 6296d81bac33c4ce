"""Load on the service, and on a bare FastAPI server with the same scripted engine.

    python -m experiments.speed.service --config configs/experiments/service_speed.yaml

Both servers run all the time and get the same load in turn. If clients and servers share cores,
requests per second say little, but CPU milliseconds per request remain comparable. Results:
service.json and service.md.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import Field

from experiments.faults.load import LoadConfig, measure_load
from experiments.faults.server import run_service
from experiments.speed.bare_server import run_bare_server
from experiments.speed.work import ratio_by_round, turns
from experiments.study import Study, StudyConfig, study_command
from experiments.tables import report, tabled

SERVICE, BARE = "service", "bare FastAPI"
"""Names of the two servers."""
COLUMNS = {
    "server": "{server}",
    "requests": "{requests}",
    "a second": "{per_second:.0f}",
    "added p50, s": "{p50_s:.3f}",
    "CPU ms a request": "{cpu_ms:.3f}",
    "not answered": "{failed}",
}
"""Columns of the report."""


class ServiceSpeedConfig(StudyConfig):
    """Load of the comparison."""

    load: LoadConfig = LoadConfig(seconds=60.0)
    """Load of one round."""
    rounds: int = Field(3, ge=1)
    """Number of rounds of each server. Medians are reported."""


def load_in_turn(config: ServiceSpeedConfig) -> dict[str, Any]:
    """Put both servers under load in turn. Return the rounds and their ratios."""
    rows = list[dict[str, Any]]()
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(
                start(config.load.judge(_locate_log(config, name)), config.output)
            )
            for name, start in ((SERVICE, run_service), (BARE, run_bare_server))
        }
        for _, name in turns(servers, config.rounds):
            _locate_log(config, name).write_text("")
            before = servers[name].cpu_s
            load = measure_load(name, servers[name], config.load, _locate_log(config, name))
            cpu_s = servers[name].cpu_s - before
            rows.append(asdict(load) | {"cpu_ms": 1000 * cpu_s / load.requests})
    return {"rounds": rows, "ratios": compute_ratios(rows)}


def _locate_log(config: ServiceSpeedConfig, name: str) -> Path:
    """Return the file where a server's engine logs the responses that it judged."""
    return config.output / f"{name.split()[0]}.judged.jsonl"


def compute_ratios(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the medians over the rounds of the service's figures divided by the bare server's."""

    def select_values(name: str, field: str) -> list[float]:
        return [row[field] for row in rows if row["server"] == name]

    fields = ("per_second", "p50_s", "cpu_ms")
    return {
        field: ratio_by_round(select_values(SERVICE, field), select_values(BARE, field))
        for field in fields
    }


def markdown(result: dict[str, Any]) -> str:
    """Return the report with the rounds and their ratios."""
    medians = result["ratios"]
    about = (
        f"Median ratios to the bare server of the same round: {medians['per_second']:.2f} of its "
        f"requests a second, {medians['p50_s']:.2f} of its added median, "
        f"{medians['cpu_ms']:.2f} of its CPU."
    )
    return report("Service", result, [("Rounds", tabled(result["rounds"], COLUMNS), "")], about)


def study(run: Study[ServiceSpeedConfig]) -> str:
    """Load both servers. Return the report."""
    run.config.output.mkdir(parents=True, exist_ok=True)
    return run.write("service", load_in_turn(run.config), markdown)


main = study_command(ServiceSpeedConfig, study)

if __name__ == "__main__":
    sys.exit(main())
