"""The jobs of the command line: best-of-N, score and compare."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from autoj_reward.config.block import Block
from autoj_reward.config.models import JudgeConfig, PolicyConfig

View = Literal["rating", "expected", "direct"]
ViewOrAuto = Literal["auto", "rating", "expected", "direct"]
TieBreak = Literal["policy_logprob", "expected_rating", "pairwise", "first"]


class RayDataConfig(Block):
    """A job in shards, on the machines of a Ray cluster.

    shards: parts of the input, each with a journal and results of its own; the unit of resuming.
    concurrency: workers that sample, and as many that judge; each has one shard at a time.
    """

    shards: int = Field(ge=1, le=10_000)
    concurrency: int = Field(2, ge=1)


class BestOfNConfig(Block):
    """A best-of-N job.

    input: .jsonl, .parquet, a saved dataset folder or hf://owner/name?split=train.
    output: folder for selections, judgements, summary and report.
    journal: SQLite file of every judgement; by default in the output folder. Several runs may
        name the same one and then share what they have judged.
    policy: who answers rows without `responses`; null if every row brings its own.
    view: the number that ranks candidates; `auto` is the one that the judge's entry names, else
        `rating`. tie_break: what decides among equals, in order.
    columns: column of the input by context field of the judge's format, where it has another name,
        such as `reference: answer`.
    budget: share of the tokens that full judging of a query would write. Critiques then go only to
        candidates that can still win, and the rest is abandoned and recorded as such. null: full
        judging.
    ray_data: in shards, by Ray Data; null: in one process.
    """

    input: str
    output: Path
    journal: Path | None = None
    policy: PolicyConfig | None = None
    judge: JudgeConfig = JudgeConfig()
    columns: dict[str, str] = Field(default_factory=dict)
    view: ViewOrAuto = "auto"
    tie_break: tuple[TieBreak, ...] = ("policy_logprob", "expected_rating", "pairwise", "first")
    budget: float | None = Field(None, gt=0, le=1)
    ray_data: RayDataConfig | None = None

    @model_validator(mode="after")
    def _shared_out(self) -> BestOfNConfig:
        if self.ray_data and self.journal:
            raise ValueError(
                f"journal is {self.journal}, and with ray_data each shard has one of its own, in "
                "the output folder: leave journal out"
            )
        if self.ray_data and self.input == "-":
            raise ValueError("ray_data reads the input on many machines: write it into a file")
        return self

    @model_validator(mode="after")
    def _saving(self) -> BestOfNConfig:
        if self.budget is not None and (self.view == "direct" or not self.judge.critique):
            raise ValueError(
                "budget saves critiques, and here none ranks: leave it out, or set judge.critique "
                "and view rating or expected"
            )
        return self

    @model_validator(mode="after")
    def _ends(self) -> BestOfNConfig:
        if len(set(self.tie_break)) != len(self.tie_break):
            raise ValueError(f"tie_break names a rule twice: {list(self.tie_break)}")
        return self


class ScoreConfig(Block):
    """`autoj score` and `autoj compare`: the judge, and `columns` as for best-of-N; files come by
    flag."""

    judge: JudgeConfig = JudgeConfig()
    columns: dict[str, str] = Field(default_factory=dict)
    swap: bool = True
