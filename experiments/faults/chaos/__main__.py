"""The chaos suite; `make chaos` runs all of it.

    python -m experiments.faults.chaos --config configs/chaos.yaml [--only load|fuzz|kills]

load: the service and a bare FastAPI server under the same load. fuzz: bodies that no caller should
send. kills: kill -9 of each process. Writes `chaos.json` and `chaos.md` into the output folder, and
exits with 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
from pydantic import Field
from tqdm import tqdm

from autoj_reward.config import Block, JudgeConfig, load_config
from autoj_reward.errors import AutojError
from autoj_reward.io.files import write_json, write_text
from autoj_reward.io.markdown import table
from experiments.faults.chaos import fuzz, kills, server
from experiments.faults.chaos.kills import KillsConfig
from experiments.faults.chaos.load import LoadConfig, measure

MAX_GROWN_MIB = 64
"""By how much a service may grow over the fuzz."""
MAX_MIB_PER_MINUTE = 5
"""By how much it may grow under load: 100 bytes a request, at some 800 a second."""


class ChaosConfig(Block):
    """output: folder of the figures. bodies: how many the fuzz sends."""

    output: Path
    load: LoadConfig = LoadConfig()
    bodies: int = Field(10_000, ge=1)
    kills: KillsConfig


def run_load(config: ChaosConfig) -> list[dict[str, Any]]:
    """The service, then the bare server."""
    rows = []
    for name, start in (("service", server.service), ("bare FastAPI", server.bare)):
        log = config.output / f"{name.split()[0]}.judged.jsonl"
        log.write_text("")
        with start(config.load.judge(log), config.output) as running:
            print(f"{name}: {config.load.seconds:g} s of load", file=sys.stderr)
            rows.append(asdict(measure(name, running, config.load, log)))
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


def run_kills(config: ChaosConfig) -> list[dict[str, Any]]:
    """One job for each kind of process."""
    with server.service(config.kills.judge, config.output, start_s=600) as running:
        return [asdict(row) for row in asyncio.run(kills.run(running, config.kills))]


PARTS = {"load": run_load, "fuzz": run_fuzz, "kills": run_kills}


def broken(found: dict[str, Any]) -> list[str]:
    """The promises that the figures break."""
    wrong = []
    for row in found.get("load", []):
        wrong += [
            f"load, {row['server']}: {n} {row[n]}" for n in ("failed", "lost", "twice") if row[n]
        ]
        if row["mib_per_minute"] > MAX_MIB_PER_MINUTE:
            wrong.append(f"load, {row['server']}: {row['mib_per_minute']:.1f} MiB more each minute")
    for row in found.get("kills", []):
        if not row["candidates"] == row["answered"] == row["told"] == row["ok"]:
            wrong.append(f"kills, {row['target']}: not every candidate was answered once and ok")
        if not row["left"]:
            wrong.append(f"kills, {row['target']}: the job was over before the kill")
        if row["orphans"]:
            wrong.append(f"kills, {row['target']}: {row['orphans']} orphans run on")
    if sent := found.get("fuzz"):
        if sent["crashed"]:
            wrong.append("fuzz: the service crashed")
        if sent["grown_mib"] > MAX_GROWN_MIB:
            wrong.append(f"fuzz: the service grew by {sent['grown_mib']:.0f} MiB")
    return wrong


def render(found: dict[str, Any]) -> str:
    """The figures as Markdown tables."""
    tables = []
    for name, rows in found.items():
        rows = rows if isinstance(rows, list) else [rows]
        lines = table(list(rows[0]), ([*map(_shown, row.values())] for row in rows))
        tables.append(f"## {name}\n\n" + "\n".join(lines) + "\n")
    return "\n".join(tables)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{n} x {key}" for key, n in value.items())
    if isinstance(value, list | tuple):
        return " to ".join(map(_shown, value))
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts asked for, write and print their figures."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.faults.chaos",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--config", required=True, metavar="FILE", help="YAML config")
    parser.add_argument("--only", choices=PARTS, action="append", help="a part; may be repeated")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="sets")
    flags = parser.parse_args(arguments)
    try:
        config = load_config(ChaosConfig, flags.config, flags.sets)
        config.output.mkdir(parents=True, exist_ok=True)
        found = {name: PARTS[name](config) for name in flags.only or PARTS}
        write_json(config.output / "chaos.json", found)
        write_text(config.output / "chaos.md", render(found))
    except (AutojError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(render(found))
    for promise in broken(found):
        print(f"broken: {promise}", file=sys.stderr)
    return 1 if broken(found) else 0


if __name__ == "__main__":
    sys.exit(main())
