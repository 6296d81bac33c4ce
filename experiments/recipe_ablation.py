"""Variants of a training recipe, trained one after the other and compared on validation data.

    python -m experiments.recipe_ablation --config configs/recipe_ablation.yaml

Each variant is a run of `autoj train judge` in a folder of its own; one that is done is not
repeated, one that was cut short goes on. `ablation.json` and `ablation.md` get a row a variant:
Spearman of the expected rating with the reference right after the prompt, and after the reference's
own critique; agreement of verdicts and of preferences with the human labels; loss of the output.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from autoj_reward.config import Block
from autoj_reward.io.files import write_json, write_text
from autoj_reward.io.markdown import table
from autoj_reward.training.judge.recipe import TrainJudgeConfig
from experiments.study import run_command
from experiments.trials import run_trials

SHOWN = {
    "eval_spearman_direct": "Spearman, slot after the prompt",
    "eval_spearman_after": "Spearman, slot after the reference critique",
    "eval_agreement_verdict": "verdict agreement",
    "eval_agreement_preference": "preference agreement",
    "eval_loss_judgement": "output loss",
}


class AblationConfig(Block):
    """base: the training config. common: overrides of every variant. variants: name to overrides,
    written as for --set. output: folder of all runs."""

    base: Path
    output: Path
    common: tuple[str, ...] = ()
    variants: dict[str, tuple[str, ...]] = Field(min_length=1)


def run(config: AblationConfig) -> dict[str, Any]:
    """Train what is not trained yet; returns the records by variant.

    Raises ConfigError for a wrong override before anything starts, EngineError if a run fails.
    """
    trials = {name: [*config.common, *own] for name, own in config.variants.items()}
    records = {}
    for name, record in run_trials(
        ["train", "judge"], TrainJudgeConfig, config.base, config.output, trials
    ):
        records[name] = record
        write_json(config.output / "ablation.json", _summary(config, records))
        write_text(config.output / "ablation.md", render(config, records))
    return records


def render(config: AblationConfig, records: dict[str, Any]) -> str:
    """A Markdown table, one row a variant; a dash where a variant has no such reading."""
    rows = []
    for name, record in records.items():
        found = record["validation"]
        values = [f"{found[key]:.3f}" if key in found else "-" for key in SHOWN]
        own = ", ".join(f"`{override}`" for override in config.variants[name]) or "none"
        rows.append((name, own, str(record["steps"]), *values))
    common = ", ".join(f"`{override}`" for override in config.common) or "none"
    lines = table(("variant", "overrides", "steps", *SHOWN.values()), rows)
    return "\n".join([*lines, "", f"Base {config.base}; overrides of all: {common}.", ""])


def _summary(config: AblationConfig, records: dict[str, Any]) -> dict[str, Any]:
    kept = ("config", "examples", "steps", "validation", "seconds_since_last_start", "machine")
    return {name: {key: record[key] for key in kept} for name, record in records.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Train the variants and print the table."""

    def work(config: AblationConfig, _flags: argparse.Namespace, _command: str) -> str:
        return render(config, run(config))

    return run_command("experiments.recipe_ablation", __doc__, AblationConfig, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
