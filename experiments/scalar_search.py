"""Tune a scalar reward model on validation pairs: learning rate and number of epochs.

    python -m experiments.scalar_search --config configs/scalar_search.yaml

Each learning rate is a run of `autoj train scalar` in a folder of its own, read at the end of
every epoch; one that is done is not repeated, one that was cut short goes on. `search.json` and
`search.md` get a row a learning rate and epoch. The highest accuracy on the held-out pairs is
chosen; of equals, the lowest loss.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from autoj_reward.config import Block, load_config
from autoj_reward.errors import ConfigError
from autoj_reward.io.files import write_json, write_text
from autoj_reward.io.markdown import table
from autoj_reward.training.scalar.recipe import TrainScalarConfig
from experiments.study import run_command
from experiments.trials import run_trials

MODULE = ["train", "scalar"]
KEPT = ("pairs", "queries", "ties_left_out", "seconds_since_last_start", "machine", "versions")


class ScalarSearchConfig(Block):
    """base: the training config, whose epochs are all tried. common: overrides of every run,
    written as for --set. learning_rates: one run each. output: folder of all runs."""

    base: Path
    output: Path
    common: tuple[str, ...] = ()
    learning_rates: tuple[float, ...] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class Trial:
    """The model of a learning rate at the end of an epoch, on the held-out pairs.

    accuracy: share of pairs, with its interval if there is one. loss: Bradley-Terry. margin: mean
    difference of the two rewards. overrides: what trains this very model, as for --set.
    """

    learning_rate: float
    epoch: int
    accuracy: float
    low: float | None
    high: float | None
    loss: float
    margin: float
    overrides: tuple[str, ...]


def run(config: ScalarSearchConfig) -> tuple[list[Trial], dict[str, Any]]:
    """Train what is not trained yet; returns all trials and the record of the last run.

    Raises ConfigError before anything starts for a wrong override or a base without held-out
    pairs, EngineError if a run fails.
    """
    base = load_config(TrainScalarConfig, config.base, config.common)
    if not base.data.held_out:
        raise ConfigError(f"{config.base}: data.held_out is 0: nothing to choose by; set a share")
    rates = {f"lr_{rate:g}": [f"learning_rate={rate!r}"] for rate in config.learning_rates}
    runs = {name: [*config.common, *own] for name, own in rates.items()}
    trials: list[Trial] = []
    records = {}
    for name, record in run_trials(MODULE, TrainScalarConfig, config.base, config.output, runs):
        trials += trials_of(record, (*config.common, *rates[name]))
        records[name] = {key: record[key] for key in KEPT}
        summary = {
            "trials": trials,
            "chosen": choose(trials),
            "length_accuracy": record["validation"]["length_accuracy"],
            "runs": records,
        }
        write_json(config.output / "search.json", summary)
        write_text(config.output / "search.md", render(config, trials, record))
    return trials, record


def trials_of(record: dict[str, Any], overrides: tuple[str, ...]) -> list[Trial]:
    """The readings of a run's `training.json` at the end of its epochs, in their order.

    Raises ConfigError for a run without held-out pairs.
    """
    found = [entry for entry in record["history"] if "eval_accuracy" in entry]
    if not found:
        raise ConfigError("no pair was held out to choose by: raise data.held_out")
    return [
        Trial(
            record["config"]["learning_rate"],
            epoch,
            entry["eval_accuracy"],
            entry.get("eval_accuracy_low"),
            entry.get("eval_accuracy_high"),
            entry["eval_loss"],
            entry["eval_margin"],
            overrides if epoch == len(found) else (*overrides, f"stop_after={epoch}"),
        )
        for epoch, entry in enumerate(found, 1)
    ]


def choose(trials: Sequence[Trial]) -> Trial:
    """The trial of the highest accuracy; of equals, the one of the lowest loss."""
    return max(trials, key=lambda trial: (trial.accuracy, -trial.loss))


def render(config: ScalarSearchConfig, trials: Sequence[Trial], record: dict[str, Any]) -> str:
    """A Markdown table, one row a trial, and how to train the chosen one."""
    chosen = choose(trials)
    rows = []
    for trial in trials:
        mark = "chosen" if trial is chosen else ""
        accuracy = f"{trial.accuracy:.3f}{_interval(trial.low, trial.high)}"
        loss, margin = f"{trial.loss:.4f}", f"{trial.margin:.3f}"
        rows.append((f"{trial.learning_rate:g}", str(trial.epoch), accuracy, loss, margin, mark))
    length = record["validation"]["length_accuracy"]
    longer = f"{length['value']:.3f}{_interval(length['low'], length['high'])}"
    command = ["autoj", *MODULE, "--config", str(config.base)]
    command += [word for override in chosen.overrides for word in ("--set", override)]
    lines = [
        *table(("learning rate", "epoch", "accuracy [95 %]", "loss", "mean margin", ""), rows),
        "",
        f"{record['pairs']['validation']} held-out pairs of {record['queries']['validation']} "
        f"queries; intervals by bootstrap over queries. The longer response wins: {longer}. The "
        "chosen accuracy is the best of several readings on the same pairs, which flatters it.",
        "",
        f"Trains the chosen model: `{shlex.join(command)}`",
    ]
    rates = sorted(config.learning_rates)
    if len(rates) > 1 and chosen.learning_rate in (rates[0], rates[-1]):
        lines += ["", "The chosen learning rate is the first or last one tried: try further ones."]
    return "\n".join([*lines, ""])


def _interval(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f" [{low:.3f}, {high:.3f}]"


def main(arguments: Sequence[str] | None = None) -> int:
    """Search and print the table."""

    def work(config: ScalarSearchConfig, _flags: argparse.Namespace, _command: str) -> str:
        return render(config, *run(config))

    return run_command("experiments.scalar_search", __doc__, ScalarSearchConfig, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
