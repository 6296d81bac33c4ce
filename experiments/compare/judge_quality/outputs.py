"""Outputs of many systems to each of some instructions: those that measure, and those to fit."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from pydantic import Field

from autoj_reward.config import Block
from autoj_reward.data.graded import Graded, read_splits
from autoj_reward.data.labelled import JudgeData, Rated, data_path, pairs_of
from autoj_reward.evaluate.statistics import Draws
from autoj_reward.formats.schema import JudgeFormat
from autoj_reward.types import JudgeInput


class OrderedConfig(Block):
    """Which graded outputs the part `ordered` takes, of `data.graded`.

    split: whose instructions measure; choose on validation, and report test once. instructions,
    systems: how many are drawn, of the systems first those that are not trained on.
    rival_rows: outputs to training instructions that the rivals fit, drawn. critique: measure the
    expected rating after a critique too.
    """

    split: Literal["validation", "test"] = "test"
    instructions: int = Field(40, ge=2)
    systems: int = Field(32, ge=2)
    rival_rows: int = Field(3000, ge=10)
    critique: bool = False


@dataclass(frozen=True, slots=True)
class Outputs:
    """graded: what measures. fitted: what rivals fit, rated by score less the instruction's mean.
    unseen: systems that no judge was trained on."""

    graded: tuple[Graded, ...]
    fitted: tuple[Rated, ...] = ()
    unseen: tuple[str, ...] = ()
    draws: Draws = field(default_factory=Draws)

    def inputs(self) -> list[JudgeInput]:
        """Every output that measures, alone."""
        return [
            JudgeInput("single", row.query, (o.text,)) for row in self.graded for o in row.outputs
        ]


def read_outputs(
    data: JudgeData, own: OrderedConfig, fmt: JudgeFormat, draws: Draws, limit: int | None = None
) -> Outputs:
    """The outputs of a config; none without `data.graded`. limit: of the instructions."""
    if data.graded.folder is None:
        return Outputs(())
    trained = [pair.query for pair in pairs_of(data, data.compared, fmt)]
    rows_of = read_splits(data_path(data, data.graded.folder), data.graded, trained)
    rng = random.Random(draws.seed)
    unseen = getattr(data.graded, f"{own.split}_systems")
    measuring = rows_of(own.split)
    chosen = rng.sample(measuring, min(limit or own.instructions, len(measuring)))
    drawn = []
    for row in chosen:
        first = sorted(row.outputs, key=lambda o: (o.system not in unseen, rng.random()))
        drawn.append(replace(row, outputs=tuple(first[: own.systems])))
    training = as_rated(rows_of("training"))
    fitted = rng.sample(training, min(own.rival_rows, len(training)))
    return Outputs(tuple(drawn), tuple(fitted), unseen, draws)


def as_rated(rows: Sequence[Graded]) -> list[Rated]:
    """Every output with its score, less the mean score of its instruction, as a rating."""
    found = []
    for row in rows:
        mean = sum(output.score for output in row.outputs) / len(row.outputs)
        found += [
            Rated(row.source, row.line, row.query, output.text, output.score - mean)
            for output in row.outputs
        ]
    return found
