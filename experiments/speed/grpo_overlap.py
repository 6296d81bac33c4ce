"""How much of a GRPO step is waiting for the judge, and how much of the judge's work is hidden?

    python -m experiments.speed.grpo_overlap --config configs/grpo_overlap.yaml

Every variant is the same run of `autoj train grpo` with another reward, one of them free. A step's
time is TRL's own figure, its median over the steps after the first. `judged` is the sum of the
judgements' own seconds in the replica: what asking one after the other would take at this load.
Hidden is the share of it that the trainer did not wait for.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from autoj_reward.config import Block, load_config
from autoj_reward.errors import ConfigError, EngineError
from autoj_reward.io.files import write_json, write_text
from autoj_reward.io.markdown import table
from autoj_reward.io.provenance import describe_machine
from experiments.learning_proof import logged
from experiments.study import run_command
from rollouts.train.config import TrainConfig


class OverlapConfig(Block):
    """base: the training config. common: overrides of every variant. variants: name to overrides;
    `free` is what the others are compared with."""

    base: Path
    output: Path
    common: tuple[str, ...] = ()
    variants: dict[str, tuple[str, ...]] = Field(min_length=2)


def run(config: OverlapConfig) -> dict[str, Any]:
    """Train every variant that has not been; returns what is in `overlap.json`."""
    if "free" not in config.variants:
        raise ConfigError("variants needs one named `free`, to compare the others with")
    found: dict[str, Any] = {"machine": describe_machine(), "variants": {}}
    for name, own in config.variants.items():
        folder = config.output / name.replace(" ", "_")
        sets = [*config.common, *own, f"output={folder}"]
        base = load_config(TrainConfig, config.base, sets)
        if not (folder / "policy").exists():
            flags = [word for override in sets for word in ("--set", override)]
            command = ["-m", "autoj_reward.cli", "train", "grpo", "--config", str(config.base)]
            if subprocess.run([sys.executable, *command, *flags], check=False).returncode:
                raise EngineError(f"the run of {name!r} failed; its messages stand above")
        found["variants"][name] = measure(folder / "logs", base.batch_size)
    write_json(config.output / "overlap.json", found)
    write_text(config.output / "overlap.md", render(found))
    return found


def measure(logs: Path, batch_size: int) -> dict[str, float]:
    """Medians over the steps after the first, which also warms up: seconds a step, seconds waited
    for the judge, seconds of judging."""

    def later(name: str) -> list[float]:
        return [value for step, value in logged(logs, name) if step > 1]

    return {
        "step": statistics.median(later("train/step_time")),
        "wait": statistics.median(later("judge/wait_seconds")),
        "judged": statistics.median(later("judge/seconds")) * batch_size,
        "steps": len(later("train/step_time")),
    }


def render(found: dict[str, Any]) -> str:
    """A Markdown table, one row a variant."""
    free = found["variants"]["free"]["step"]
    head = ("reward", "seconds a step", "over free", "waiting for the judge", "judged", "hidden")
    rows = []
    for name, row in found["variants"].items():
        hidden = "" if name == "free" else f"{1 - row['wait'] / row['judged']:.0%}"
        seconds = (f"{row['wait']:.1f} s", f"{row['judged']:.1f} s")
        rows.append((name, f"{row['step']:.1f}", f"{row['step'] / free:.2f}", *seconds, hidden))
    machine = found["machine"]
    where = f"{machine['processor']}, {machine['cores']} cores"
    note = f"Medians of {row['steps']} steps. Machine: {where}."
    return "\n".join([*table(head, rows), "", note, ""])


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, measure and print the table."""

    def work(config: OverlapConfig, _flags: argparse.Namespace, _command: str) -> str:
        return render(run(config))

    return run_command("experiments.speed.grpo_overlap", __doc__, OverlapConfig, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
