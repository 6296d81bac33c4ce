"""How fast judgements come, as ratios of wall time in one run.

    python -m experiments.speed.throughput --config configs/experiments/throughput.yaml

`--parts paths,prefix` runs some of its parts alone.

Parts: `paths` (the same judging by `vllm.LLM.generate` with all prompts at once, by the service's
handle and by HTTP), `prefix` (with and without the prefix cache) and `replicas` (several on several
times the work). Results: throughput.json and throughput.md, written anew after each part; sides
take turns within a round, and every round judges texts that are new to it.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from typing import Any

from tqdm import tqdm

from experiments.speed.throughput.config import PARTS, ThroughputConfig
from experiments.study import Study, command

SIDES = {"paths": 3, "prefix": 8, "replicas": 2}
"""Measurements of a round."""


async def study(run: Study[ThroughputConfig]) -> str:
    """Measure the parts and write what there is after each."""
    _environment()
    from experiments.speed.throughput import sides
    from experiments.speed.throughput.bare import BareEngine
    from experiments.speed.throughput.tables import render

    config, found, text = run.config, dict[str, Any](), ""
    bare_parts = {"paths": sides.measure_paths, "prefix": sides.measure_prefix}
    total = config.rounds * sum(SIDES[part] for part in run.parts)
    with tqdm(total=total, desc="measuring", unit="round") as bar:
        with ExitStack() as stack:
            if bare_parts.keys() & set(run.parts):
                bare = stack.enter_context(BareEngine.start(config.judge))
            for part in (part for part in run.parts if part in bare_parts):
                found[part] = await bare_parts[part](config, bare, bar.update)
                text = run.write("throughput", found, render)
        if "replicas" in run.parts:  # in the memory that the bare engine has left
            found["replicas"] = await sides.measure_replicas(config, bar.update)
            text = run.write("throughput", found, render)
    return text


def _environment() -> None:
    """What both engines read when they are imported: the same for both."""
    os.environ |= {
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))),
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        # Ray would give its workers less of a shared core than the bare engine has.
        "RAY_worker_niceness": "0",
    }


main = command(ThroughputConfig, study, PARTS)

if __name__ == "__main__":
    sys.exit(main())
