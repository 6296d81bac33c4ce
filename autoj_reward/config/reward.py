"""A judge as a trainer's reward, alone or beside other parts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from autoj_reward.config.block import Block
from autoj_reward.config.jobs import ViewOrAuto
from autoj_reward.config.models import JudgeConfig
from autoj_reward.config.urls import Address


class ServiceConfig(Block):
    """A running reward service.

    address: its URL, for example http://127.0.0.1:8300. token_env: the environment variable that
    holds its bearer token. start_s: seconds to wait for it when a run begins.
    """

    address: Address = Field(repr=False)
    token_env: str = "AUTOJ_TOKEN"
    start_s: float = Field(10.0, gt=0)


JUDGE = "judge"
"""The name of the reward's own judge among its parts."""
FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


class BudgetConfig(Block):
    """budget: share of failures among `window` judgements beyond which the run stops."""

    budget: float = Field(0.05, ge=0, le=1)
    window: int = Field(1000, ge=1)


class FailureConfig(BudgetConfig):
    """What a training run does about judgements that are not ok.

    fallback: the number for trainers that must have one. `neutral`: the shaped middle of the
        judge's scale, 0 for a scalar model, 0.5 for several parts. `group`: mean of the valid
        rewards of the same query in the call, else neutral; for trainers that ask for all of them
        at once. Or a number.
    """

    fallback: Literal["neutral", "group"] | float = "neutral"


class ShapingConfig(Block):
    """From the raw reward to the one that is learned from, in this order.

    length_penalty: subtracted for every 1,000 characters of the response. scale, shift: affine.
    clip: lowest and highest value. whiten: `group` subtracts the mean of the rewards of the same
    query and divides by their standard deviation, so a trainer must ask for all of them at once.
    """

    length_penalty: float = 0.0
    scale: float = 1.0
    shift: float = 0.0
    clip: tuple[float, float] | None = None
    whiten: Literal["none", "group"] = "none"

    @model_validator(mode="after")
    def _order(self) -> ShapingConfig:
        if self.clip and self.clip[0] >= self.clip[1]:
            raise ValueError(f"clip {list(self.clip)} is not a rising pair")
        return self


class JudgedConfig(Block):
    """A judge and the number of it that counts.

    service: a running service that judges; null starts `judge` on Ray with the run and stops it
        with the run.
    view: the number that rewards. `auto` is the view that the judge's entry names, else `expected`,
        which tells more responses apart than whole ratings, else `rating` where the judge gives no
        distribution.
    """

    judge: JudgeConfig = JudgeConfig()
    service: ServiceConfig | None = None
    view: ViewOrAuto = "auto"


class PartConfig(JudgedConfig):
    """What rewards beside the reward's own judge: another judge, a scalar model, or a function.

    function: `module:function`, called with a Candidate; it returns a number, None where it does
        not apply. In place of a judge.
    weight: in the mean, where the reward's own judge has 1.
    range: the two values that count as 0 and as 1; others lie on the line through them, and a
        falling pair makes less better. null: a judge counts by its scale, a scalar model by the
        probability of being preferred to a score of 0, a function as it is.
    failures: the part's own budget.
    """

    function: str | None = None
    weight: float = Field(1.0, gt=0)
    range: tuple[float, float] | None = None
    failures: BudgetConfig = BudgetConfig()

    @model_validator(mode="after")
    def _one(self) -> PartConfig:
        judged = sorted(self.model_fields_set & set(JudgedConfig.model_fields))
        if self.function is None:
            if judged in ([], ["view"]):
                raise ValueError("name a judge, a service or a function")
            return self
        if judged:
            raise ValueError(f"{' and '.join(judged)} beside a function: make two parts of them")
        if not FUNCTION.fullmatch(self.function):
            raise ValueError(f"function {self.function!r} is not module:function")
        return self

    @field_validator("range")
    @classmethod
    def _apart(cls, value: tuple[float, float] | None) -> tuple[float, float] | None:
        if value and value[0] == value[1]:
            raise ValueError("range needs two different values, those that count as 0 and as 1")
        return value


class RewardConfig(JudgedConfig):
    """A judge as a trainer's reward, alone or with other parts.

    parts: what rewards beside the judge, by name. The reward is then one number of 0..1 before
        shaping: each part counts from 0 to 1, and one that abstains is left out.
    reduce: `mean`, by weight, or `min`: the strictest part decides.
    columns: column of the trainer's data by context field of a judge's format, where it has another
        name, such as `reference: answer`.
    journal: SQLite file of every judgement. journal_max_gib: when it holds more, the oldest
        judgements make room for new ones; 20 are some four million of them; null: it grows.
    """

    parts: dict[str, PartConfig] = Field(default_factory=dict)
    reduce: Literal["mean", "min"] = "mean"
    shaping: ShapingConfig = ShapingConfig()
    failures: FailureConfig = FailureConfig()
    columns: dict[str, str] = Field(default_factory=dict)
    journal: Path | None = None
    journal_max_gib: float | None = Field(20.0, gt=0)

    @field_validator("parts")
    @classmethod
    def _named(cls, value: dict[str, PartConfig]) -> dict[str, PartConfig]:
        for name in value:
            if name == JUDGE or not re.fullmatch(r"[a-z][a-z0-9_]{0,39}", name):
                raise ValueError(
                    f"no part can be called {name!r}: use small letters, digits and _, and not "
                    f"{JUDGE}, the name of reward.judge"
                )
        return value

    @model_validator(mode="after")
    def _weighed(self) -> RewardConfig:
        weighed = [name for name, part in self.parts.items() if "weight" in part.model_fields_set]
        if self.reduce == "min" and weighed:
            raise ValueError(f"the minimum knows no weights: take that of {weighed[0]} out")
        if self.reduce == "min" and not self.parts:
            raise ValueError("reduce is min, and there is nothing beside the judge: name parts")
        return self

    @property
    def judged(self) -> dict[str, JudgedConfig]:
        """The judges that are asked, by the names of their parts, the reward's own first."""
        others = {name: own for name, own in self.parts.items() if own.function is None}
        return {JUDGE: self, **others}

    @property
    def started(self) -> list[JudgeConfig]:
        """The judges that start and stop with the run."""
        return [own.judge for own in self.judged.values() if own.service is None]
