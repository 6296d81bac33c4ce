"""A judge as a trainer's reward."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from autoj_reward.config.block import Block
from autoj_reward.config.jobs import View
from autoj_reward.config.models import JudgeConfig


class ServiceConfig(Block):
    """A running reward service.

    address: its URL, for example http://127.0.0.1:8300. token_env: the environment variable that
    holds its bearer token. start_s: seconds to wait for it when a run begins.
    """

    address: str
    token_env: str = "AUTOJ_TOKEN"
    start_s: float = Field(10.0, gt=0)


class FailureConfig(Block):
    """What a training run does about judgements that are not ok.

    fallback: the number for trainers that must have one. `neutral`: the shaped middle of the
        judge's scale, 0 for a scalar model. `group`: mean of the valid rewards of the same query in
        the call, else neutral; for trainers that ask for all of them at once. Or a number.
    budget: share of failures among `window` judgements beyond which the run stops.
    """

    fallback: Literal["neutral", "group"] | float = "neutral"
    budget: float = Field(0.05, ge=0, le=1)
    window: int = Field(1000, ge=1)

    @field_validator("fallback", mode="before")
    @classmethod
    def _stateless(cls, value: Any) -> Any:
        if value == "running":
            raise ValueError(
                "running is no choice any more, since the mean of the run so far differs by "
                "process and starts anew on a resume: state that mean as a number (judge/shaped in "
                "the logs of a first run), or take neutral"
            )
        return value


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

    @field_validator("whiten", mode="before")
    @classmethod
    def _stateless(cls, value: Any) -> Any:
        if value == "running":
            raise ValueError(
                "running is no choice any more, since rewards that are asked for at different "
                "times lose their order: with the mean m and the standard deviation s of a first "
                "run's judge/raw set shift to -m/s and scale to 1/s"
            )
        return value

    @model_validator(mode="after")
    def _order(self) -> ShapingConfig:
        if self.clip and self.clip[0] >= self.clip[1]:
            raise ValueError(f"clip {list(self.clip)} is not a rising pair")
        return self


class RewardConfig(Block):
    """A judge as a trainer's reward.

    service: a running service that judges; null starts `judge` on Ray with the run and stops it
        with the run.
    view: the number that rewards. `expected` tells more responses apart than whole ratings.
    journal: SQLite file of every judgement. journal_max_gib: when it holds more, the oldest
        judgements make room for new ones; 20 are some four million of them; null: it grows.
    """

    judge: JudgeConfig = JudgeConfig()
    service: ServiceConfig | None = None
    view: View = "expected"
    shaping: ShapingConfig = ShapingConfig()
    failures: FailureConfig = FailureConfig()
    journal: Path | None = None
    journal_max_gib: float | None = Field(20.0, gt=0)
