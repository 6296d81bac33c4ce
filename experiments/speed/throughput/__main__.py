"""How fast judgements come, as ratios of wall time in one run.

    python -m experiments.speed.throughput --config configs/throughput.yaml [--parts paths,prefix]

Parts: `paths` (the same judging by `vllm.LLM.generate` with all prompts at once, by the service's
handle, by HTTP, by a plain loop and by transformers' `generate`), `prefix` (with and without the
prefix cache), `slots` (log-probabilities at the rating slot in one pass or two) and `replicas`
(several on several times the work). Results: throughput.json and throughput.md, written anew after
each part; sides take turns within a round, and every round judges texts that are new to it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from tqdm import tqdm

from autoj_reward.io.files import plain, write_json, write_text
from autoj_reward.io.provenance import describe_machine, installed_versions
from experiments.speed.throughput.config import PARTS, ThroughputConfig
from experiments.study import parts_flag, run_command


async def run(config: ThroughputConfig, parts: Sequence[str], command: str) -> dict[str, Any]:
    """Measure the parts; returns what is in `throughput.json`. Raises AutojError."""
    from experiments.speed.throughput import paths, prefix, replicas, slots
    from experiments.speed.throughput.bare import BareEngine

    found: dict[str, Any] = {
        "command": command,
        "at": time.strftime("%Y-%m-%d"),
        "versions": installed_versions(),
        "config": config.model_dump(mode="json"),
    }
    bare_parts = {"paths": paths.measure, "prefix": prefix.measure, "slots": slots.measure}
    with tqdm(total=_steps(config, parts), desc="measuring", unit="round") as bar:
        with ExitStack() as stack:
            if set(parts) & set(bare_parts):
                bare = stack.enter_context(BareEngine.start(config.judge))
            for part in (part for part in parts if part in bare_parts):
                found[part] = await bare_parts[part](config, bare, bar.update)
                _write(config, found)
        if "replicas" in parts:  # in the memory that the bare engine has left
            found["replicas"] = await replicas.measure(config, bar.update)
            _write(config, found)
    return found


def _steps(config: ThroughputConfig, parts: Sequence[str]) -> int:
    sides = {"paths": 5, "prefix": 8, "slots": 4, "replicas": 2}
    return config.rounds * sum(sides[part] for part in parts)


def _write(config: ThroughputConfig, found: dict[str, Any]) -> None:
    from experiments.speed.throughput.tables import render

    found["machine"] = describe_machine()  # now that torch, which knows the GPUs, is loaded
    write_json(config.output / "throughput.json", plain(found))
    write_text(config.output / "throughput.md", render(found))


def _environment() -> None:
    """What both engines and transformers read when they are imported: the same for all."""
    os.environ |= {
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))),
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        # Ray would give its workers less of a shared core than the bare engine has.
        "RAY_worker_niceness": "0",
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print the tables."""

    def work(config: ThroughputConfig, flags: argparse.Namespace, command: str) -> str:
        from experiments.speed.throughput.tables import render

        parts = config.parts(flags.parts)
        _environment()
        return render(asyncio.run(run(config, parts, command)))

    return run_command(
        "experiments.speed.throughput",
        __doc__,
        ThroughputConfig,
        work,
        arguments,
        parts_flag(PARTS),
    )


if __name__ == "__main__":
    sys.exit(main())
