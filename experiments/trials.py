"""Trainings of one config with different overrides, run one after the other."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from autoj_reward.config import load_config
from autoj_reward.errors import EngineError
from autoj_reward.training.fine_tuning import FineTuningConfig


def run_trials(
    command: Sequence[str],
    kind: type[FineTuningConfig],
    base: Path,
    output: Path,
    trials: Mapping[str, Sequence[str]],
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Train what is not trained yet; yields each trial's name and `training.json` as it ends.

    command: of `autoj`, run with `--config base` and the trial's overrides, output a folder of its
    own in `output`. A trial that is done is not repeated, one that was cut short goes on.

    Raises ConfigError for a wrong override before anything starts, EngineError if a run fails.
    """
    sets = {name: [*own, f"output={output / name}"] for name, own in trials.items()}
    for own in sets.values():
        load_config(kind, base, own)
    for name, own in sets.items():
        path = output / name / "training.json"
        if not path.is_file():
            print(f"== {name}", file=sys.stderr)
            flags = [word for override in own for word in ("--set", override)]
            words = [*command, "--config", str(base), *flags]
            if subprocess.run(
                [sys.executable, "-m", "autoj_reward.cli", *words], check=False
            ).returncode:
                raise EngineError(f"the training of {name!r} failed; its messages stand above")
        yield name, json.loads(path.read_text(encoding="utf-8"))
