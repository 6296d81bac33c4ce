"""The config of a scalar reward model's training."""

from __future__ import annotations

from pydantic import Field, model_validator

from autoj_reward.training.fine_tuning import FineTuningConfig
from autoj_reward.training.groups import GroupsConfig


class TrainScalarConfig(FineTuningConfig):
    """A training run of a scalar reward model on the judge's pairs, ties left out.

    format: the judge format that rendered pairs (`usrmsg`) were rendered with.
    margin: take the pairs' own `margin` field: the least difference of rewards that costs nothing
        in the loss; 0 where a row has none.
    groups: the best and the worst of each group of graded outputs (`data.graded`) is a pair too;
        null is without.
    center: weight of the squared sum of a pair's rewards, which keeps them around 0; null for none.
    epochs: passes over the pairs that the learning rate's schedule is laid out for. stop_after:
        epochs after which a run ends on this schedule; null goes through all.
    max_length: tokens of a conversation: the query and one response.
    """

    format: str = "autoj-en"
    margin: bool = False
    groups: GroupsConfig | None = None
    center: float | None = Field(None, ge=0)
    epochs: int = Field(5, ge=1)
    stop_after: int | None = Field(None, ge=1)

    @property
    def run_epochs(self) -> int:
        """The epochs that are run."""
        return self.stop_after or self.epochs

    @model_validator(mode="after")
    def _consistent(self) -> TrainScalarConfig:
        if self.run_epochs > self.epochs:
            raise ValueError(f"stop_after {self.stop_after} is beyond epochs {self.epochs}")
        if self.data.rated:
            raise ValueError("data.rated: a scalar model learns from pairs: name data.compared")
        if not self.data.compared and not self.groups:
            raise ValueError("data.compared names no file: a scalar model learns from pairs")
        return self
