"""What asking an endpoint for judgements costs: this package beside a plain AsyncOpenAI loop.

    python -m experiments.speed.peers --config configs/experiments/peers.yaml

A scripted endpoint in a process of its own answers every request after `latency_s` with the same
critique, with or without log-probabilities. Peers ask it in turn, each time in a new process, and
each round begins with another one. The processor time is user and system time of the asking
process, from its first judgement to its last; its start (imports, the client, a few judgements to
warm up) is told apart. Also told: bytes of an answer by the number of alternatives of each token.
Results: peers.json, peers.md.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from pydantic import Field
from tqdm import tqdm

from experiments.speed.peers.asker import PEERS, Work, run
from experiments.speed.peers.endpoint import answer, endpoint, tokens
from experiments.study import Study, StudyConfig, command
from experiments.tables import report, tabled

OURS = next(iter(PEERS))
CLIENTS = ("aiohttp", "openai", "httpx")
"""Packages whose versions the report tells."""
TOPS = (0, 20)
"""Alternatives of each token that peers ask for."""
SIZES = (0, 5, 20)
"""Alternatives of each token by which the bytes of an answer are told."""


class PeersConfig(StudyConfig):
    """judgements: of each peer in a round, in_flight at a time. latency_s: of the endpoint."""

    judgements: int = Field(2000, ge=1)
    in_flight: int = Field(128, ge=1)
    rounds: int = Field(3, ge=1)
    latency_s: float = Field(0.1, ge=0)


def measure(config: PeersConfig) -> list[dict[str, Any]]:
    """Ask in turn; one row a peer, round and number of alternatives."""
    rows, names = list[dict[str, Any]](), list(PEERS)
    steps = config.rounds * len(TOPS) * len(names)
    with (
        endpoint(config.latency_s) as address,
        tqdm(total=steps, desc="asking", unit="run") as bar,
    ):
        for number in range(config.rounds):
            for top in TOPS:
                for name in names[number % len(names) :] + names[: number % len(names)]:
                    work = Work(address, config.judgements, config.in_flight, top)
                    rows.append({"round": number, "top": top, "peer": name} | run(name, work))
                    bar.update()
    return rows


def figures(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Medians over the rounds of each peer and number of alternatives. cpu_ratio, wall_ratio: of
    this package to the peer, the median of the rounds' own ratios."""
    runs: dict[tuple[int, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        runs.setdefault((row["top"], row["peer"]), []).append(row)
    found = []
    for (top, name), own in runs.items():
        pairs = list(zip(runs[top, OURS], own, strict=True))
        figure = {"top": top, "peer": name, "rounds_cpu_s": [row["cpu_s"] for row in own]}
        for kind in ("cpu", "wall"):
            ratios = [ours[f"{kind}_s"] / theirs[f"{kind}_s"] for ours, theirs in pairs]
            figure[f"{kind}_ratio"] = statistics.median(ratios)
        for field in ("cpu_s", "wall_s", "start_cpu_s"):
            figure[field] = statistics.median(row[field] for row in own)
        found.append(figure)
    return found


COLUMNS = {
    "alternatives a token": "{top}",
    "peer": "{peer}",
    "processor time, s": "{cpu_s:.2f} ({each})",
    f"{OURS} to it": "{cpu_ratio:.2f}",
    "wall time, s": "{wall_s:.2f}",
    f"{OURS} to it ": "{wall_ratio:.2f}",
    "processor time of the start, s": "{start_cpu_s:.2f}",
}
BYTES = {"alternatives a token": "{top}", "bytes of an answer": "{bytes:,}", "times": "{times:.0f}"}


def render(found: dict[str, Any]) -> str:
    """The figures as tables in Markdown."""
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
    size = f"A critique of {found['tokens']} tokens."
    sections = [
        ("The one who asks", tabled(rows, COLUMNS), note),
        ("Answers", tabled(found["answers"], BYTES), size),
    ]
    clients = ", ".join(f"{name} {number}" for name, number in found["clients"].items())
    return report("Asking an endpoint", found, sections, f"HTTP by {clients}.")


def study(run: Study[PeersConfig]) -> str:
    """Measure and write."""
    rows, least = measure(run.config), len(answer(0))
    answers = [
        {"top": top, "bytes": len(answer(top)), "times": len(answer(top)) / least} for top in SIZES
    ]
    found: dict[str, Any] = {"rounds": rows, "figures": figures(rows), "answers": answers}
    found |= {"tokens": len(tokens()), "clients": {name: version(name) for name in CLIENTS}}
    return run.write("peers", found, render)


main = command(PeersConfig, study)

if __name__ == "__main__":
    sys.exit(main())
