"""All measurements on a GPU, by one command and in one file.

    python -m experiments.speed.gpu_figures --config configs/experiments/gpu_figures.yaml

`--parts bf16,tests` runs only these parts.

Each part runs in a process of its own, so that its engine's memory is free when it ends. Its result
goes to `gpu_figures.json`. Finished parts are not repeated, and no part runs beyond `minutes`. The
same command then resumes with the rest.
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

OUTPUT_CHARS = 2000
"""Characters kept of a command's last output."""


class GpuPartConfig(Block):
    """Command that measures one part."""

    command: tuple[str, ...] = Field(min_length=1)
    """Arguments for Python."""
    result: Path | None = None
    """JSON file that it writes. With null its last output is kept."""


class GpuFiguresConfig(StudyConfig):
    """Parts to measure."""

    minutes: float = Field(8.5, gt=0)
    """Time limit of one run, for all parts together."""
    measured: dict[str, GpuPartConfig] = Field(min_length=1)
    """Parts by name, in order."""

    def possible(self) -> Sequence[str]:
        return tuple(self.measured)


def study(run: Study[GpuFiguresConfig]) -> str:
    """Run the missing and the failed parts until the time limit. Return the report."""
    config, until = run.config, time.monotonic() + 60 * run.config.minutes
    work = {name: partial(_measure_until, part, until) for name, part in config.measured.items()}
    text = run.steps("gpu_figures", work, markdown, final=lambda part: part["ok"], free={"minutes"})
    finished_parts = {path.stem for path in (config.output / "steps").glob("*.json")}
    remaining = ", ".join(name for name in config.measured if name not in finished_parts)
    return text + (f"\nleft: {remaining}; the same command goes on\n" if remaining else "")


def _measure_until(part: GpuPartConfig, until: float) -> dict[str, Any]:
    remaining_s = until - time.monotonic()
    if remaining_s <= 0:
        return {"ok": False, "seconds": 0.0, "result": None, "said": "not begun: the time was up"}
    return run_part(part, remaining_s)


def run_part(part: GpuPartConfig, seconds: float) -> dict[str, Any]:
    """Run a part's command.

    Return whether it succeeded, its seconds, its result and its last output.
    """
    started = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, *part.command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)  # also ends its engine
        output, _ = process.communicate()
        output += "\ncut off: the time was up"
    seconds_taken = time.monotonic() - started
    ok = process.returncode == 0 and (part.result is None or part.result.is_file())
    result = json.loads(part.result.read_text(encoding="utf-8")) if ok and part.result else None
    return {
        "ok": ok,
        "seconds": round(seconds_taken, 1),
        "result": result,
        "said": output[-OUTPUT_CHARS:],
    }


def markdown(study_result: dict[str, Any]) -> str:
    """Return the report: one row for each part, and the result or last output of each."""
    rows = [["part", "done", "seconds"]]
    about = []
    for name, part in study_result["steps"].items():
        rows.append([name, "yes" if part["ok"] else "no", f"{part['seconds']:.0f}"])
        result = part["result"] or {}
        figures = result.get("steps") or result.get("rows")
        about.append(f"{name}: {json.dumps(figures) if figures else part['said'].strip()[-300:]}")
    return report("A GPU's figures", study_result, [("Parts", rows, "")], *about)


main = study_command(GpuFiguresConfig, study, ("bf16", "service", "fp8", "prefix", "grpo", "tests"))

if __name__ == "__main__":
    sys.exit(main())
