"""All that is to be measured on a GPU, by one command, in one file.

    python -m experiments.speed.gpu_figures --config configs/experiments/gpu_figures.yaml

`--parts bf16,tests` runs some of its parts alone.

Each part is a command of its own, so its engine's memory is free again when it ends. What it leaves
goes into `gpu_figures.json`. Parts that are there are not run again, and no part goes on after
`minutes`: the same command then goes on with what is left.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import Field

from autoj_reward.config import Block
from experiments.study import Study, StudyConfig, study_command
from experiments.tables import report

TOLD = 2000
"""Characters kept of what a command said last."""


class GpuPartConfig(Block):
    """command: Python's arguments. result: the JSON file that it writes; null keeps its words."""

    command: tuple[str, ...] = Field(min_length=1)
    result: Path | None = None


class GpuFiguresConfig(StudyConfig):
    """minutes: of one run of all parts. measured: the parts, in their order."""

    minutes: float = Field(8.5, gt=0)
    measured: dict[str, GpuPartConfig] = Field(min_length=1)

    def possible(self) -> Sequence[str]:
        return tuple(self.measured)


def study(run: Study[GpuFiguresConfig]) -> str:
    """Run the parts that are missing until the time is up; what has failed is tried again."""
    config, until = run.config, time.monotonic() + 60 * run.config.minutes
    work = {name: partial(_measure_until, part, until) for name, part in config.measured.items()}
    text = run.steps("gpu_figures", work, markdown, final=lambda part: part["ok"], free={"minutes"})
    kept = {path.stem for path in (config.output / "steps").glob("*.json")}
    left = ", ".join(name for name in config.measured if name not in kept)
    return text + (f"\nleft: {left}; the same command goes on\n" if left else "")


def _measure_until(part: GpuPartConfig, until: float) -> dict[str, Any]:
    left = until - time.monotonic()
    if left <= 0:
        return {"ok": False, "seconds": 0.0, "result": None, "said": "not begun: the time was up"}
    return run_part(part, left)


def run_part(part: GpuPartConfig, seconds: float) -> dict[str, Any]:
    """Run a part's command; return whether it ended well, seconds, result and last output."""
    started = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, *part.command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)  # its engine too
        said, _ = process.communicate()
        said += "\ncut off: the time was up"
    took = time.monotonic() - started
    ok = process.returncode == 0 and (part.result is None or part.result.is_file())
    result = json.loads(part.result.read_text(encoding="utf-8")) if ok and part.result else None
    return {"ok": ok, "seconds": round(took, 1), "result": result, "said": said[-TOLD:]}


def markdown(found: dict[str, Any]) -> str:
    """Write a line a part, and the result or last output of each."""
    rows = [["part", "done", "seconds"]]
    about = []
    for name, part in found["steps"].items():
        rows.append([name, "yes" if part["ok"] else "no", f"{part['seconds']:.0f}"])
        result = part["result"] or {}
        shown = result.get("steps") or result.get("rows")
        about.append(f"{name}: {json.dumps(shown) if shown else part['said'].strip()[-300:]}")
    return report("A GPU's figures", found, [("Parts", rows, "")], *about)


main = study_command(GpuFiguresConfig, study, ("bf16", "service", "fp8", "prefix", "grpo", "tests"))

if __name__ == "__main__":
    sys.exit(main())
