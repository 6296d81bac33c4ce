"""The recipe of the models that ship, stage after stage.

    python -m experiments.default_judge --config configs/experiments/default_judge.yaml

`--parts ratings,brief` runs some of its parts alone.

The judge is trained on ratings (`ratings`), on brief critiques (`brief`), on critiques in its own
words (`critiques` samples them, `own` trains) and on the order of responses (`ranking`). `mean`
averages the last two adapters, `groups` samples a small policy, and `head` fits a pooling head.
`scalar` trains the scalar model, `scenarios` the scenario classifier.

A stage that is done is not repeated; one that was cut short goes on. The output folder gets
`adapter/`, `judge/` and `classifier/`; trainings write where their configs say. What came of every
stage is in `default_judge.json` and `.md`.
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
    """data: what all stages but the trainings read; the trainings' own configs name the same.

    ratings, brief, own, ranking, scalar: configs of `autoj train`. critiques, groups, head,
    scenarios: blocks of the stages of these names. mean: folders of adapters and their weights,
    which sum to 1; the mean is written to the folder that `head.adapter` names.
    """

    data: JudgeData
    ratings: Path
    brief: Path
    critiques: OwnCritiquesConfig
    own: Path
    ranking: Path
    mean: dict[Path, float] = Field(min_length=1)
    groups: PolicyGroupsConfig
    head: PoolingHeadConfig
    scalar: Path
    scenarios: ScenariosConfig

    @field_validator("mean")
    @classmethod
    def _sum(cls, mean: dict[Path, float]) -> dict[Path, float]:
        if abs(sum(mean.values()) - 1) > 1e-6:
            raise ValueError(f"the weights sum to {sum(mean.values()):g}, not to 1")
        return mean

    def possible(self) -> Sequence[str]:
        return tuple(STAGES)


Stage = Callable[[DefaultJudgeConfig], str]
"""Does its work and says in words what came of it."""


def _training(name: str, kind: str = "judge") -> Stage:
    def run(config: DefaultJudgeConfig) -> str:
        base: Path = getattr(config, name)
        run_training(name, kind, base)
        return f"trained: {base}"

    return run


def _mean(config: DefaultJudgeConfig) -> str:
    average(config.mean, config.head.adapter)
    return f"adapter: {config.head.adapter}"


STAGES: dict[str, Stage] = {
    "ratings": _training("ratings"),
    "brief": _training("brief"),
    "critiques": lambda config: asyncio.run(write_critiques(config.critiques, config.data)),
    "own": _training("own"),
    "ranking": _training("ranking"),
    "mean": _mean,
    "groups": lambda config: asyncio.run(write_groups(config.groups, config.data)),
    "head": lambda config: pooling_head.write_judge(config.head, config.data, config.output),
    "scalar": _training("scalar", "scalar"),
    "scenarios": lambda config: scenarios.train_classifier(
        config.scenarios, config.data, config.output / "classifier"
    ),
}
"""In the order in which each needs the ones before."""


def study(run: Study[DefaultJudgeConfig]) -> str:
    """Run the stages that are not done."""
    work = {name: partial(stage, run.config) for name, stage in STAGES.items()}
    return run.steps("default_judge", work, markdown)


def markdown(found: dict[str, Any]) -> str:
    """Write a line for each stage that is done."""
    rows = [{"stage": name, "said": said} for name, said in found["steps"].items()]
    table = tabled(rows, {"stage": "{stage}", "what came of it": "{said}"})
    return report("The default judge", found, [("Stages", table, "")])


main = study_command(DefaultJudgeConfig, study, tuple(STAGES))

if __name__ == "__main__":
    sys.exit(main())
