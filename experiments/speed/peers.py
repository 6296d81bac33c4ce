"""Cost of asking an endpoint for judgements: this package compared with a plain AsyncOpenAI loop.

    python -m experiments.speed.peers --config configs/experiments/peers.yaml

A scripted endpoint in a separate process answers every request after `latency_s` with the same
critique, with or without log-probabilities. The peers take turns, each time in a new process, and
each round begins with another one. Processor time is user and system time of the asking process
from its first judgement to its last. Its start (imports, client, a few judgements to warm up) is
reported separately. Results: peers.json, peers.md.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from pydantic import Field
from tqdm import tqdm

from experiments.speed.asker import PEERS, PeerWork, ask_in_process
from experiments.speed.endpoint import endpoint
from experiments.speed.work import ratio_by_round, turns
from experiments.study import Study, StudyConfig, study_command
from experiments.tables import report, tabled

OURS = next(iter(PEERS))
"""Name of this package among the peers."""
CLIENTS = ("aiohttp", "openai", "httpx")
"""Packages whose versions are reported."""
TOPS = (0, 20)
"""Numbers of alternatives per token that peers request."""


class PeersConfig(StudyConfig):
    """Work of the peers."""

    judgements: int = Field(2000, ge=1)
    """Number of judgements of each peer in a round."""
    in_flight: int = Field(128, ge=1)
    """Number of requests in flight."""
    rounds: int = Field(3, ge=1)
    """Number of rounds."""
    latency_s: float = Field(0.1, ge=0)
    """Latency of the endpoint."""


def measure_peers(config: PeersConfig) -> list[dict[str, Any]]:
    """Let the peers ask in turn. Return a row for each peer, round and number of alternatives."""
    rows = list[dict[str, Any]]()
    asked = [(*turn, top) for top in TOPS for turn in turns(PEERS, config.rounds)]
    with endpoint(config.latency_s) as address:
        for number, name, top in tqdm(asked, desc="asking", unit="run"):
            work = PeerWork(address, config.judgements, config.in_flight, top)
            rows.append({"round": number, "top": top, "peer": name} | ask_in_process(name, work))
    return rows


def peer_figures(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the medians over the rounds, for each peer and number of alternatives.

    `cpu_ratio` and `wall_ratio` are this package's figure divided by the peer's: the median of the
    ratios within rounds.
    """
    runs: dict[tuple[int, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        runs.setdefault((row["top"], row["peer"]), []).append(row)
    return [
        {"top": top, "peer": name, "rounds_cpu_s": [row["cpu_s"] for row in own]}
        | {
            f"{kind}_ratio": ratio_by_round(
                *([row[f"{kind}_s"] for row in o] for o in (runs[top, OURS], own))
            )
            for kind in ("cpu", "wall")
        }
        | {
            field: statistics.median(row[field] for row in own)
            for field in ("cpu_s", "wall_s", "start_cpu_s")
        }
        for (top, name), own in runs.items()
    ]


COLUMNS = {
    "alternatives a token": "{top}",
    "peer": "{peer}",
    "processor time, s": "{cpu_s:.2f} ({each})",
    f"{OURS} to it": "{cpu_ratio:.2f}",
    "wall time, s": "{wall_s:.2f}",
    f"{OURS} to it ": "{wall_ratio:.2f}",
    "processor time of the start, s": "{start_cpu_s:.2f}",
}
"""Columns of the report."""


def markdown(found: dict[str, Any]) -> str:
    """Return the report as one Markdown table."""
    config = found["config"]
    note = (
        f"{config['judgements']:,} judgements, {config['in_flight']} in flight; the endpoint "
        f"answers after {config['latency_s']:g} s. Medians of {config['rounds']} rounds in turn "
        "(the processor time of each beside it); ratios within a round."
    )
    rows = [
        row | {"each": ", ".join(f"{s:.2f}" for s in row["rounds_cpu_s"])}
        for row in found["figures"]
    ]
    clients = ", ".join(f"{name} {number}" for name, number in found["clients"].items())
    table = ("The one who asks", tabled(rows, COLUMNS), note)
    return report("Asking an endpoint", found, [table], f"HTTP by {clients}.")


def study(run: Study[PeersConfig]) -> str:
    """Measure the peers. Return the report."""
    rows = measure_peers(run.config)
    clients = {name: version(name) for name in CLIENTS}
    found = {"rounds": rows, "figures": peer_figures(rows), "clients": clients}
    return run.write("peers", found, markdown)


main = study_command(PeersConfig, study)

if __name__ == "__main__":
    sys.exit(main())
