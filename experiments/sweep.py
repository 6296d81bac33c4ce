"""One training with different overrides, run after run, and its readings side by side.

    python -m experiments.sweep --config configs/recipe_ablation.yaml
    python -m experiments.sweep --config configs/scalar_search.yaml
    python -m experiments.sweep --config configs/grpo_overlap.yaml

Each variant is a run of `autoj train` in a folder of its own; one that is done is not repeated, one
that was cut short goes on. `sweep.json` and `sweep.md` are written anew after each. What is read
depends on what is trained: see `experiments.sweep_readings`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from autoj_reward.config import load_config
from autoj_reward.errors import EngineError
from experiments.study import Study, StudyConfig, command
from experiments.sweep_readings import READINGS
from experiments.tables import report, tabled


class SweepConfig(StudyConfig):
    """train: what is trained. base: its config. common: overrides of every variant. variants: name
    to overrides, written as for --set. output: folder of all runs."""

    train: Literal["judge", "scalar", "grpo"]
    base: Path
    common: tuple[str, ...] = ()
    variants: dict[str, tuple[str, ...]] = Field(min_length=1)

    def sets(self, name: str) -> list[str]:
        """The overrides of a variant's run."""
        return [*self.common, *self.variants[name], f"output={self.output / name}"]


def study(run: Study[SweepConfig]) -> str:
    """Train what is not trained yet, and read every run.

    Raises ConfigError for a wrong override before anything starts, EngineError if a run fails.
    """
    config, reading = run.config, READINGS[run.config.train]
    bases = {
        name: load_config(reading.kind, config.base, config.sets(name)) for name in config.variants
    }
    reading.check(bases)
    rows: list[dict[str, Any]] = []
    text = ""
    for name, base in bases.items():
        if not (config.output / name / reading.done).exists():
            print(f"== {name}", file=sys.stderr)
            train(name, [config.train], config.base, config.sets(name))
        rows += [{"variant": name} | row for row in reading.read(config.output / name, base)]
        text = run.write("sweep", {"rows": rows}, render)
    return text


def train(name: str, what: Sequence[str], base: Path, sets: Sequence[str]) -> None:
    """`autoj train` in a process of its own. EngineError if it fails."""
    flags = [word for override in sets for word in ("--set", override)]
    words = ["-m", "autoj_reward.cli", "train", *what, "--config", str(base), *flags]
    if subprocess.run([sys.executable, *words], check=False).returncode:
        raise EngineError(f"the training of {name!r} failed; its messages stand above")


def render(found: dict[str, Any]) -> str:
    """A Markdown table, a row for each reading, and what is to be said of them."""
    config = found["config"]
    reading = READINGS[config["train"]]
    own = {name: ", ".join(f"`{o}`" for o in sets) for name, sets in config["variants"].items()}
    rows = [
        row | {"overrides": own[row["variant"]] or "none"} for row in reading.shown(found["rows"])
    ]
    common = ", ".join(f"`{override}`" for override in config["common"]) or "none"
    about = f"Base {config['base']}; overrides of all: {common}."
    title = f"autoj train {config['train']}"
    return report("Sweep", found, [(title, tabled(rows, reading.columns), reading.note)], about)


main = command(SweepConfig, study)

if __name__ == "__main__":
    sys.exit(main())
