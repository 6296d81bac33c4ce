"""The planner's roofline beside what was measured.

    python -m experiments.speed.capacity_check --config configs/capacity_check.yaml

A row is a measurement with its command and machine; its share is measured over predicted. A share
far above 1 would refute the planner, a small one says what a slow stack leaves unused.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from autoj_reward.capacity.machine import Machine, find_gpu
from autoj_reward.capacity.plan import figure
from autoj_reward.capacity.roofline import Lengths, Serving, roofline, works
from autoj_reward.capacity.shape import find_shape
from autoj_reward.config import Block
from autoj_reward.io.markdown import table
from experiments.study import run_command


class Measured(Block):
    """One measurement. source: where it is published. command, where: how and on what it was made.

    machine: a name of the config's machines, or of the planner's GPUs. work: how it asked.
    judgements in seconds of wall time: the figures as they were published.
    """

    name: str
    source: str
    command: str
    where: str
    model: str
    machine: str
    work: Literal["rating only", "with critique", "comparison, both orders"]
    lengths: Lengths
    serving: Serving = Serving()
    judgements: int = Field(ge=1)
    seconds: float = Field(gt=0)
    note: str = ""


class CapacityCheckConfig(Block):
    """machines: by name, what is not in the planner's table. rows: the measurements."""

    machines: dict[str, Machine] = Field(default_factory=dict)
    rows: tuple[Measured, ...] = Field(min_length=1)


def compare(row: Measured, machines: dict[str, Machine]) -> dict[str, Any]:
    """Predicted and measured judgements a minute a device, and the share reached."""
    machine = machines.get(row.machine) or find_gpu(row.machine)
    rate = roofline(find_shape(row.model), machine, row.serving, works(row.lengths)[row.work])
    predicted = rate.per_minute / row.serving.tensor_parallel
    measured = 60 * row.judgements / row.seconds
    return {
        "predicted": predicted,
        "measured": measured,
        "share": measured / predicted,
        "bound": rate.bound,
    }


def report(config: CapacityCheckConfig) -> str:
    """A Markdown table, one row a measurement, and the notes below it."""
    head = ["measurement", "work", "roofline, a minute", "measured", "share", "bound by"]
    rows, notes = [], []
    for row in config.rows:
        found = compare(row, config.machines)
        rows.append(
            [
                row.name,
                row.work,
                figure(found["predicted"]),
                figure(found["measured"]),
                f"{found['share']:.2f}",
                found["bound"],
            ]
        )
        notes.append(f"- {row.name}: {row.where}; {row.source}, `{row.command}`. {row.note}")
    return "\n".join([*table(head, rows), "", *notes])


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare and print."""

    def work(config: CapacityCheckConfig, _flags: argparse.Namespace, _command: str) -> str:
        return report(config)

    return run_command(
        "experiments.speed.capacity_check", __doc__, CapacityCheckConfig, work, arguments
    )


if __name__ == "__main__":
    sys.exit(main())
