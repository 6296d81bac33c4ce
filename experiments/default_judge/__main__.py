"""Recipe of the models in this package, stage by stage.

    python -m experiments.default_judge --config configs/experiments/default_judge.yaml

`--parts ratings,brief` runs only these stages.

The judge is trained four times: on ratings (`ratings`), on brief critiques (`brief`), on its own
critiques (`own`) and on the order of responses (`ranking`). `critiques` samples its own critiques.
`mean` averages the last two adapters, `groups` samples a small policy, and `head` fits a pooling
head. `scalar` trains the scalar reward model, `scenarios` the scenario classifier.

A finished stage is not repeated, and an interrupted one resumes. The output folder gets `adapter/`,
`judge/` and `classifier/`. Trainings write to the folders that their configs name. The outcome of
each stage is in `default_judge.json` and `default_judge.md`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from autoj_reward.data.labelled import JudgeData
from experiments.default_judge import pooling_head, scenarios
from experiments.default_judge.made_rows import (
    OwnCritiquesConfig,
    PolicyGroupsConfig,
    write_critiques,
    write_groups,
)
from experiments.default_judge.pooling_head import PoolingHeadConfig, average
from experiments.default_judge.scenarios import ScenariosConfig
from experiments.study import Study, StudyConfig, run_training, study_command
from experiments.tables import report, tabled


class DefaultJudgeConfig(StudyConfig):
    """Data and settings of all stages."""

    data: JudgeData
    """Data of all stages but the trainings. The trainings' own configs name the same data."""
    ratings: Path
    """Config of `autoj train judge` for the stage of the same name, as are `brief`, `own` and
    `ranking`."""
    brief: Path
    critiques: OwnCritiquesConfig
    """Settings of the stage `critiques`."""
    own: Path
    ranking: Path
    mean: dict[Path, float] = Field(min_length=1)
    """Folders of adapters, with weights that sum to 1.

    Their mean is written to the folder `head.adapter`.
    """
    groups: PolicyGroupsConfig
    """Settings of the stage `groups`."""
    head: PoolingHeadConfig
    """Settings of the stage `head`."""
    scalar: Path
    """Config of `autoj train scalar`."""
    scenarios: ScenariosConfig
    """Settings of the stage `scenarios`."""

    @field_validator("mean")
    @classmethod
    def _check_sum(cls, mean: dict[Path, float]) -> dict[Path, float]:
        if abs(sum(mean.values()) - 1) > 1e-6:
            raise ValueError(f"the weights sum to {sum(mean.values()):g}, not to 1")
        return mean

    def possible(self) -> Sequence[str]:
        return tuple(STAGES)


Stage = Callable[[DefaultJudgeConfig], str]
"""Function that runs a stage and returns its outcome as text."""


def _make_training(name: str, kind: str = "judge") -> Stage:
    def run(config: DefaultJudgeConfig) -> str:
        base: Path = getattr(config, name)
        run_training(name, kind, base)
        return f"trained: {base}"

    return run


def _average_adapters(config: DefaultJudgeConfig) -> str:
    average(config.mean, config.head.adapter)
    return f"adapter: {config.head.adapter}"


STAGES: dict[str, Stage] = {
    "ratings": _make_training("ratings"),
    "brief": _make_training("brief"),
    "critiques": lambda config: asyncio.run(write_critiques(config.critiques, config.data)),
    "own": _make_training("own"),
    "ranking": _make_training("ranking"),
    "mean": _average_adapters,
    "groups": lambda config: asyncio.run(write_groups(config.groups, config.data)),
    "head": lambda config: pooling_head.write_judge(config.head, config.data, config.output),
    "scalar": _make_training("scalar", "scalar"),
    "scenarios": lambda config: scenarios.train_classifier(
        config.scenarios, config.data, config.output / "classifier"
    ),
}
"""Stages in order: each may need the ones before it."""


def study(run: Study[DefaultJudgeConfig]) -> str:
    """Run the stages that are not done. Return the report."""
    work = {name: partial(stage, run.config) for name, stage in STAGES.items()}
    return run.steps("default_judge", work, markdown)


def markdown(result: dict[str, Any]) -> str:
    """Return the report: one row for each finished stage."""
    rows = [{"stage": name, "said": outcome} for name, outcome in result["steps"].items()]
    table = tabled(rows, {"stage": "{stage}", "what came of it": "{said}"})
    return report("The default judge", result, [("Stages", table, "")])


main = study_command(DefaultJudgeConfig, study, tuple(STAGES))

if __name__ == "__main__":
    sys.exit(main())
