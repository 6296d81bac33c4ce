"""Config blocks of what is done with a judge: best-of-N, score and compare, and a trainer's
reward."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from autoj_reward.config.load import Block
from autoj_reward.config.models import JudgeConfig, PolicyConfig
from autoj_reward.config.urls import Address

View = Literal["rating", "expected", "direct"]
ViewOrAuto = Literal["auto", "rating", "expected", "direct"]
TieBreak = Literal["policy_logprob", "expected_rating", "pairwise", "first"]
JUDGE = "judge"
"""The name of the reward's own judge among its parts."""
FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


class RayDataConfig(Block):
    """A job in shards, on the machines of a Ray cluster."""

    shards: int = Field(ge=1, le=10_000)
    """Parts of the input, each with a journal and results of its own; the unit of resuming."""
    concurrency: int = Field(2, ge=1)
    """Workers that sample, and as many that judge; each has one shard at a time."""


class RelativeConfig(Block):
    """How the responses of a group are judged beside each other, in place of one by one."""

    by: Literal["listwise", "comparisons"]
    """`listwise`: one judgement scores all responses (a format with a `group` protocol, such as
    `listwise`). `comparisons`: pairs are compared."""
    orders: int | Literal["both", "alternate"] | None = None
    """Against position bias. listwise: in how many orders a group is judged; null: 2. comparisons:
    `both` orders of each pair, or `alternate`: one, in which each response stands first as often
    as second; null: both."""
    schedule: Literal["all", "circular", "pivot", "swiss"] = "circular"
    """Who meets whom: `all` pairs; `circular`: each response its next `neighbours` in a seeded
    circle; `pivot`: each response one of them; `swiss`: in rounds, neighbours of the current
    ranking."""
    neighbours: int = Field(4, ge=1)
    """Of `circular`: how many of the next in the circle each response meets."""
    rounds: int = Field(5, ge=1)
    """Of `swiss`: rounds at most."""
    pivot: Literal["best", "reference"] = "best"
    """Of `pivot`: whom all meet, the group's best by a first rating or the row's `reference`."""
    seed: int = 0
    """Seed of orders and circles."""

    @property
    def protocol(self) -> str:
        """The protocol that judges the responses."""
        return "group" if self.by == "listwise" else "pairwise"

    @model_validator(mode="after")
    def _fitting(self) -> RelativeConfig:
        of_comparisons = {"schedule", "neighbours", "rounds", "pivot"}
        if self.by == "listwise":
            if unused := sorted(of_comparisons & self.model_fields_set):
                raise ValueError(f"by is listwise, which does not use {', '.join(unused)}")
            if isinstance(self.orders, str) or (self.orders is not None and self.orders < 1):
                raise ValueError(f"orders is {self.orders!r}: listwise judges 1 or more orders")
            return self
        if isinstance(self.orders, int):
            raise ValueError(f"orders is {self.orders}: comparisons take both or alternate")
        for name, own in (("neighbours", "circular"), ("rounds", "swiss"), ("pivot", "pivot")):
            if name in self.model_fields_set and self.schedule != own:
                raise ValueError(
                    f"{name} is of the schedule {own}, and schedule is {self.schedule}"
                )
        return self


class BestOfNConfig(Block):
    """A best-of-N job."""

    input: str
    """.jsonl, .parquet, a saved dataset folder or hf://owner/name?split=train."""
    output: Path
    """Folder for selections, judgements, summary and report."""
    journal: Path | None = None
    """SQLite file of every judgement. Several runs may name the same one and then share what they
    have judged. null: in the output folder."""
    policy: PolicyConfig | None = None
    """Who answers rows without `responses`. null if every row brings its own."""
    judge: JudgeConfig = JudgeConfig()
    """The judge of the candidates."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Column of the input by context field of the judge's format, where it has another name, such
    as `reference: answer`."""
    view: ViewOrAuto = "auto"
    """The number that ranks candidates. `auto` is the one that the judge's entry names, else
    `rating`."""
    tie_break: tuple[TieBreak, ...] = ("policy_logprob", "expected_rating", "pairwise", "first")
    """Rules that decide among equals, in order."""
    budget: float | None = Field(None, gt=0, le=1)
    """Share of the tokens that full judging of a query would write. Critiques then go only to
    candidates that can still win, and the rest is abandoned and recorded as such. null: full
    judging."""
    relative: RelativeConfig | None = None
    """Judge a query's responses beside each other and choose by their scores, in place of a view.
    null: each is rated alone."""
    ray_data: RayDataConfig | None = None
    """In shards, by Ray Data. null: in one process."""

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
    def _one_way(self) -> BestOfNConfig:
        if self.relative and self.budget is not None:
            raise ValueError(
                "budget saves critiques of single responses: leave relative out, or it"
            )
        if self.relative and self.view != "auto":
            raise ValueError(
                f"view is {self.view}, and relative ranks in place of it: leave it out"
            )
        return self

    @model_validator(mode="after")
    def _ends(self) -> BestOfNConfig:
        if len(set(self.tie_break)) != len(self.tie_break):
            raise ValueError(f"tie_break names a rule twice: {list(self.tie_break)}")
        return self


class ScoreConfig(Block):
    """`autoj score` and `autoj compare`; files come by flag."""

    judge: JudgeConfig = JudgeConfig()
    """The judge of the rows."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Column of the input by context field of the judge's format, where it has another name, such
    as `reference: answer`."""
    swap: bool = True
    """Whether `autoj compare` asks for both orders of a pair."""


class RankConfig(Block):
    """`autoj rank`; files come by flag."""

    judge: JudgeConfig = JudgeConfig()
    """The judge of the groups."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Column of the input by context field of the judge's format, where it has another name, such
    as `reference: answer`."""
    relative: RelativeConfig | None = None
    """How a group is judged. null: `listwise` where the judge's format can, else by comparisons."""


class ServiceConfig(Block):
    """A running reward service."""

    address: Address = Field(repr=False)
    """Its URL, for example http://127.0.0.1:8300."""
    token_env: str = "AUTOJ_TOKEN"
    """Environment variable that holds its bearer token."""
    start_s: float = Field(10.0, gt=0)
    """Seconds to wait for it when a run begins."""


class FailureBudgetConfig(Block):
    """How many judgements may fail before a training run stops."""

    budget: float = Field(0.05, ge=0, le=1)
    """Share of failures among `window` judgements beyond which the run stops."""
    window: int = Field(1000, ge=1)
    """Latest judgements that are counted."""


class FailureConfig(FailureBudgetConfig):
    """Settings of a training run for judgements that are not ok: what stands in for their rewards,
    and how many may fail."""

    fallback: Literal["neutral", "group"] | float = "neutral"
    """The number for trainers that must have one. `neutral`: the shaped middle of the judge's
    scale, 0 for a scalar model, 0.5 for several parts. `group`: mean of the valid rewards of the
    same query in the call, else neutral; for trainers that ask for all of them at once. Or a
    number."""


class ShapingConfig(Block):
    """From the raw reward to the one that is learned from, in this order."""

    length_penalty: float = 0.0
    """Subtracted for every 1,000 characters of the response."""
    scale: float = 1.0
    """Factor of the reward."""
    shift: float = 0.0
    """Added to the scaled reward."""
    clip: tuple[float, float] | None = None
    """Lowest and highest value. null: no bounds."""
    whiten: Literal["none", "group"] = "none"
    """`group` subtracts the mean of the rewards of the same query and divides by their standard
    deviation, so a trainer must ask for all of them at once."""

    @model_validator(mode="after")
    def _order(self) -> ShapingConfig:
        if self.clip and self.clip[0] >= self.clip[1]:
            raise ValueError(f"clip {list(self.clip)} is not a rising pair")
        return self


class JudgedConfig(Block):
    """A judge and the number of it that counts."""

    judge: JudgeConfig = JudgeConfig()
    """The judge."""
    service: ServiceConfig | None = None
    """A running service that judges. null starts `judge` on Ray with the run and stops it with the
    run."""
    view: ViewOrAuto = "auto"
    """The number that rewards. `auto` is the view that the judge's entry names, else `expected`,
    which tells more responses apart than whole ratings, else `rating` where the judge gives no
    distribution."""
    relative: RelativeConfig | None = None
    """Judge the responses of a group beside each other: the reward is then a number of 0..1, in
    place of a view. null: each response is judged alone."""

    @property
    def protocol(self) -> str:
        """The protocol that judges the responses."""
        return self.relative.protocol if self.relative else "single"

    @model_validator(mode="after")
    def _one_number(self) -> Self:
        if self.relative and self.view != "auto":
            raise ValueError(f"view is {self.view}, and relative rewards have none: leave it out")
        return self


class PartConfig(JudgedConfig):
    """A part of a reward beside the reward's own judge: another judge, a scalar model, or a
    function."""

    function: str | None = None
    """`module:function`, called with a Candidate; it returns a number, None where it does not
    apply. In place of a judge."""
    weight: float = Field(1.0, gt=0)
    """Weight in the mean, where the reward's own judge has 1."""
    range: tuple[float, float] | None = None
    """The two values that count as 0 and as 1; others lie on the line through them, and a falling
    pair makes less better. null: a judge counts by its scale, a scalar model by the probability of
    being preferred to a score of 0, a function as it is."""
    failures: FailureBudgetConfig = FailureBudgetConfig()
    """The part's own failure budget."""

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
    """A judge as a trainer's reward, alone or with other parts."""

    parts: dict[str, PartConfig] = Field(default_factory=dict)
    """Parts beside the judge, by name. The reward is then one number of 0..1 before shaping: each
    part counts from 0 to 1, and one that abstains is left out."""
    reduce: Literal["mean", "min"] = "mean"
    """`mean`, by weight, or `min`: the strictest part decides."""
    shaping: ShapingConfig = ShapingConfig()
    """How the reward is shaped."""
    failures: FailureConfig = FailureConfig()
    """The failure budget, and the reward of a failed judgement."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Column of the trainer's data by context field of a judge's format, where it has another name,
    such as `reference: answer`."""
    journal: Path | None = None
    """SQLite file of every judgement. null: none."""
    journal_max_gib: float | None = Field(20.0, gt=0)
    """Size of the journal at which the oldest judgements make room for new ones; 20 GiB are some
    four million judgements. null: it grows."""

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

    @staticmethod
    def key_of(name: str) -> str:
        """Return where a part's judge stands in a run file, by the part's name."""
        return "reward" if name == JUDGE else f"reward.parts.{name}"

    @property
    def started(self) -> list[JudgeConfig]:
        """The judges that start and stop with the run."""
        return [own.judge for own in self.judged.values() if own.service is None]
