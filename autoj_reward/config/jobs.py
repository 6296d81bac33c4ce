"""Config blocks of jobs and rewards: best-of-N, score, compare, and a trainer's reward."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from autoj_reward.config.load import Block
from autoj_reward.config.models import JudgeConfig, PolicyConfig
from autoj_reward.config.rubric import RubricConfig
from autoj_reward.config.urls import Address

View = Literal["rating", "expected", "direct", "pessimistic"]
"""The number of a judgement that counts: the written rating, the mean of its distribution, the
expected rating right after the prompt, or the mean less a discount for doubt."""
ViewOrAuto = Literal["auto", "rating", "expected", "direct", "pessimistic"]
"""A view, or `auto`, which `models.views.resolve_view` resolves."""
TieBreak = Literal["policy_logprob", "expected_rating", "pairwise", "first"]
"""A rule that decides between candidates with equal numbers: the highest log-probability under the
policy, the highest expected rating, a knock-out of comparisons, or the lowest index."""
Tracker = Literal["mlflow", "trackio", "wandb"]
"""An experiment tracker, by the name of its package."""
PanelVote = Literal["mean", "median", "majority"]
"""How the ratings of several judges make one."""
JUDGE = "judge"
"""Name of the main judge (`reward.judge`) among the parts of a reward."""
AUDIT = "audit"
"""Name of the audit judge (`reward.audit.judge`) among the judges of a reward. It is no part."""
REPLACES_BUDGET = "set shortlist to the number of a query's responses that get critiques"
"""What to write in place of the removed key `budget` of a choice."""
FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""Pattern of `module:function`."""


class RayDataConfig(Block):
    """Settings of a job that runs in shards on the machines of a Ray cluster."""

    shards: int = Field(ge=1, le=10_000)
    """Number of parts that the input is split into. Each has its own journal and results, and is
    the unit of resuming."""
    concurrency: int = Field(2, ge=1)
    """Workers that sample, and as many again that judge. Each works on one shard at a time."""


class RelativeConfig(Block):
    """How the responses of a group are judged together, in place of one by one."""

    removed_keys: ClassVar[Mapping[str, str]] = {
        "rounds": "the schedule swiss is gone: choose circular, and set neighbours",
        "pivot": "choose schedule reference for the row's reference answer, else circular",
    }

    by: Literal["listwise", "comparisons"]
    """`listwise`: one judgement scores all responses; needs a format with a `group` protocol, such
    as `listwise`. `comparisons`: pairs of responses are compared."""
    orders: int | Literal["both", "alternate"] | None = None
    """Orders that are judged, against position bias. listwise: their number; null is 2.
    comparisons: `both` orders of each pair, or `alternate`: one order, in which each response is
    first as often as second; null is `both`."""
    schedule: Literal["all", "circular", "reference"] = "circular"
    """Pairs that are compared. `all` pairs; `circular`: each response and its next `neighbours` in
    a seeded circle; `reference`: each response and the row's reference answer."""
    neighbours: int = Field(4, ge=1)
    """Of `circular`: number of next responses in the circle that each response is compared with."""
    seed: int = 0
    """Seed of orders and circles."""

    @property
    def protocol(self) -> str:
        """The protocol that judges the responses."""
        return "group" if self.by == "listwise" else "pairwise"

    @model_validator(mode="after")
    def _check_schedule(self) -> RelativeConfig:
        of_comparisons = {"schedule", "neighbours"}
        if self.by == "listwise":
            if unused := sorted(of_comparisons & self.model_fields_set):
                raise ValueError(f"by is listwise, which does not use {', '.join(unused)}")
            if isinstance(self.orders, str) or (self.orders is not None and self.orders < 1):
                raise ValueError(f"orders is {self.orders!r}: listwise judges 1 or more orders")
            return self
        if isinstance(self.orders, int):
            raise ValueError(f"orders is {self.orders}: comparisons take both or alternate")
        if "neighbours" in self.model_fields_set and self.schedule != "circular":
            raise ValueError(
                f"neighbours is of the schedule circular, and schedule is {self.schedule}"
            )
        return self


Scoring = RelativeConfig | RubricConfig
"""What scores responses in place of a view."""


class PanelJudge(Block):
    """A further judge of a job, beside `judge`."""

    judge: JudgeConfig
    """The judge that rates too. How often and by which prompt text it is asked is set on the main
    judge: `critiques`, `vote` and `shows`."""

    @model_validator(mode="after")
    def _check_critiques(self) -> PanelJudge:
        if self.judge.critiques != 1:
            raise ValueError("critiques are set on the main judge, for all judges of a panel")
        return self


class PanelConfig(Block):
    """Settings of a job that several judges may rate for."""

    panel: dict[str, PanelJudge] = Field(default_factory=dict)
    """Further judges that rate each response, by name. Their ratings count on the scale of `judge`,
    at the same share of it; a scalar model's score counts as its probability of being preferred to
    0. A judge that abstains is left out if at least half of them rate, else the response has no
    rating. Ties are broken by comparisons of `judge` alone."""
    reduce: PanelVote = "median"
    """How the ratings of a panel make one: `median`, `mean`, or `majority`, the rating that most
    judges give (of several, their median)."""

    @field_validator("panel")
    @classmethod
    def _check_panel_names(cls, value: dict[str, PanelJudge]) -> dict[str, PanelJudge]:
        _check_names(value)
        return value

    @model_validator(mode="after")
    def _check_reduce(self) -> Self:
        if "reduce" in self.model_fields_set and not self.panel:
            raise ValueError("reduce says how a panel votes, and there is none: name judges in it")
        return self


class ChoiceConfig(PanelConfig):
    """How rows are judged, and how one of a query's responses is chosen."""

    removed_keys: ClassVar[Mapping[str, str]] = {"budget": REPLACES_BUDGET}

    judge: JudgeConfig = JudgeConfig()
    """The judge that rates the candidates."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Path of each field in the input, where a column has a name of its own: `prompt: question`,
    `response: output.text`, `responses: completions[*].response`, or a context field of the judge's
    format, such as `reference: answer`."""
    layout: str | None = None
    """Layout of the input's rows: a name that `autoj data layouts` lists. null: that of each row,
    found from its columns."""
    view: ViewOrAuto = "auto"
    """The number that ranks candidates. `rating`: as the judge wrote it. `expected`: mean of the
    rating's distribution. `direct`: expected rating right after the prompt. `auto` takes the view
    of the model's entry in `judges.yaml`, else `rating`."""
    tie_break: tuple[TieBreak, ...] = ("policy_logprob", "expected_rating", "pairwise", "first")
    """Tie-break rules, applied in the given order. `policy_logprob`: highest log-probability under
    the policy. `expected_rating`: highest expected rating. `pairwise`: knock-out of comparisons.
    `first`: lowest index."""
    shortlist: int | None = Field(None, ge=1)
    """Number of responses of a query that get critiques: the best by their expected ratings right
    after the prompt. One of them is chosen. The others have the outcome `abandoned`, unless the
    view is `direct`. null: every response gets critiques."""
    relative: RelativeConfig | None = None
    """Judge the responses of a query together and rank them by their scores, in place of a view.
    null: each is rated alone."""
    rubric: RubricConfig | None = None
    """Score each response by the items of its row's rubric and rank by the scores, in place of a
    view. null: a row's rubric is a text for formats that show one."""

    @property
    def scoring(self) -> Scoring | None:
        """What scores a response in place of a view; None for a rating."""
        return self.relative or self.rubric

    @model_validator(mode="after")
    def _check_shortlist(self) -> Self:
        if self.shortlist is not None and not self.judge.critique:
            raise ValueError(
                "shortlist says who gets a critique, and judge.critique is false: leave shortlist "
                "out, or set judge.critique to true"
            )
        return self

    @model_validator(mode="after")
    def _check_scoring(self) -> Self:
        _require_one(self.relative, self.rubric, self.view)
        _require_ratings(self.panel, self.relative, self.rubric)
        if (self.relative or self.rubric) and self.shortlist is not None:
            ranks = "relative" if self.relative else "rubric"
            raise ValueError(
                f"shortlist saves critiques of single ratings: leave {ranks} out, or it"
            )
        return self

    @model_validator(mode="after")
    def _check_tie_break(self) -> Self:
        if len(set(self.tie_break)) != len(self.tie_break):
            raise ValueError(f"tie_break names a rule twice: {list(self.tie_break)}")
        return self


class BestOfNConfig(ChoiceConfig):
    """Settings of a best-of-N job."""

    input: str
    """A .jsonl or .parquet file, a saved dataset folder, or hf://owner/name?split=train."""
    output: Path
    """Folder for selections, judgements, summary and report."""
    journal: Path | None = None
    """SQLite file of every judgement. Runs that name the same file share their judgements. null: a
    file in the output folder."""
    policy: PolicyConfig | None = None
    """The model that samples responses for rows without `responses`. null if every row brings its
    own."""
    ray_data: RayDataConfig | None = None
    """Run in shards on Ray Data. null: run in one process."""
    max_usd: float | None = Field(None, gt=0)
    """US dollars, by `judge.price`, after which a run stops. The same command goes on from there.
    null: no limit."""
    track: Tracker | None = None
    """Experiment tracker that gets the job's metrics while it runs. null: none."""

    @model_validator(mode="after")
    def _check_ray_data(self) -> BestOfNConfig:
        if self.ray_data and self.journal:
            raise ValueError(
                f"journal is {self.journal}, and with ray_data each shard has one of its own, in "
                "the output folder: leave journal out"
            )
        if self.ray_data and self.panel:
            raise ValueError("ray_data runs one judge on its machines: leave panel out, or it")
        if self.ray_data and self.input == "-":
            raise ValueError("ray_data reads the input on many machines: write it into a file")
        return self


def _require_one(
    relative: RelativeConfig | None, rubric: RubricConfig | None, view: ViewOrAuto
) -> None:
    """Raise ValueError if more than one of these says how responses get their numbers."""
    if relative and rubric:
        raise ValueError("relative and rubric each score a response: leave one out")
    if (relative or rubric) and view != "auto":
        scores = "relative" if relative else "rubric"
        raise ValueError(f"view is {view}, and {scores} scores in place of it: leave it out")


def _require_ratings(panel: Mapping[str, PanelJudge], *scorings: Scoring | None) -> None:
    """Raise ValueError if a panel, which rates single responses, is to score in another way."""
    if panel and any(scorings):
        raise ValueError("a panel rates each response alone: leave panel out, or what scores here")


def _check_names(names: Iterable[str]) -> None:
    """Raise ValueError for a name that no judge beside the main one can have."""
    for name in names:
        if name in (JUDGE, AUDIT) or not re.fullmatch(r"[a-z][a-z0-9_]{0,39}", name):
            raise ValueError(
                f"no part can be called {name!r}: use small letters, digits and _, and neither "
                f"{JUDGE} nor {AUDIT}, the names of the judges of reward and reward.audit"
            )


class ScoreConfig(PanelConfig):
    """Settings of `autoj score`, `autoj compare` and `autoj rubrics audit`.

    Flags name the input and output files.
    """

    judge: JudgeConfig = JudgeConfig()
    """The judge that rates or compares the rows."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Path of each field in the input, where a column has a name of its own: `prompt: question`,
    `response: output.text`, `responses: completions[*].response`, or a context field of the judge's
    format, such as `reference: answer`."""
    layout: str | None = None
    """Layout of the input's rows: a name that `autoj data layouts` lists. null: that of each row,
    found from its columns."""
    swap: bool = True
    """Whether `autoj compare` judges a pair in both orders."""
    rubric: RubricConfig | None = None
    """How `autoj score` scores each row by the items of its rubric. null: it rates the response,
    and a row's rubric is a text for formats that show one."""
    max_usd: float | None = Field(None, gt=0)
    """US dollars, by `judge.price`, after which a run stops. The same command goes on from there.
    null: no limit."""
    track: Tracker | None = None
    """Experiment tracker that gets the metrics of `autoj score` and `autoj compare` while they run.
    null: none."""

    @model_validator(mode="after")
    def _check_panel(self) -> ScoreConfig:
        _require_ratings(self.panel, self.rubric)
        return self


class RankConfig(Block):
    """Settings of `autoj rank`. Flags name the input and output files."""

    judge: JudgeConfig = JudgeConfig()
    """The judge of the groups."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Path of each field in the input, where a column has a name of its own: `prompt: question`,
    `response: output.text`, `responses: completions[*].response`, or a context field of the judge's
    format, such as `reference: answer`."""
    layout: str | None = None
    """Layout of the input's rows: a name that `autoj data layouts` lists. null: that of each row,
    found from its columns."""
    relative: RelativeConfig | None = None
    """How a group is judged. null: `listwise` where the judge's format can, else by comparisons."""
    max_usd: float | None = Field(None, gt=0)
    """US dollars, by `judge.price`, after which a run stops. The same command goes on from there.
    null: no limit."""
    track: Tracker | None = None
    """Experiment tracker that gets the job's metrics while it runs. null: none."""


class ServiceConfig(Block):
    """Address of a running reward service."""

    address: Address = Field(repr=False)
    """URL of the service, for example http://127.0.0.1:8300."""
    token_env: str = "AUTOJ_TOKEN"
    """Environment variable that holds the service's bearer token."""
    start_s: float = Field(10.0, gt=0)
    """Seconds to wait for the service when a run starts."""


class FailureBudgetConfig(Block):
    """Failure budget: the share of judgements that may fail before a training run stops."""

    budget: float = Field(0.05, ge=0, le=1)
    """Largest share of failed judgements among the last `window`. A larger share stops the run."""
    window: int = Field(1000, ge=1)
    """Number of latest judgements that are counted."""


class FailureConfig(FailureBudgetConfig):
    """Failure budget of a training run, and the reward of a failed judgement."""

    fallback: Literal["neutral", "group"] | float = "neutral"
    """Reward of a failed judgement, for trainers that need a number. `neutral`: the middle of the
    judge's scale after shaping (0 for a scalar model, 0.5 for several parts). `group`: the mean of
    the valid rewards of the same query in the call, else neutral; it needs a trainer that asks for
    all responses of a query in one call. A number: that number."""


class ShapingConfig(Block):
    """Shaping of the raw reward. The steps run in the order of the keys."""

    length_of: Literal["answer", "response"] = "answer"
    """What the penalties count: the `answer`, without the policy's thinking, or the whole
    `response`. With `answer` length moves into thinking, where nothing penalises it."""
    length_penalty: float = 0.0
    """Amount that is subtracted for every 1,000 characters."""
    style_penalty: float = 0.0
    """Amount that is subtracted for every Markdown heading, list item and bold passage per 1,000
    characters. A shorter response counts as 1,000 characters. Markup in code blocks is not
    counted."""
    penalty_by: Literal["response", "group"] = "response"
    """`group` subtracts only what a response's penalties exceed their mean over the query's
    responses by, so that short and plain ones gain what others lose. It needs a trainer that asks
    for all responses of a query in one call."""
    scale: float = 1.0
    """Factor that the reward is multiplied by."""
    shift: float = 0.0
    """Amount that is added to the scaled reward."""
    clip: tuple[float, float] | None = None
    """Lowest and highest reward. null: no bounds."""
    whiten: Literal["none", "group"] = "none"
    """`group` subtracts the mean of the rewards of the same query and divides by their standard
    deviation. It needs a trainer that asks for all responses of a query in one call."""

    @model_validator(mode="after")
    def _check_clip(self) -> ShapingConfig:
        if self.clip and self.clip[0] >= self.clip[1]:
            raise ValueError(f"clip {list(self.clip)} is not a rising pair")
        return self


class JudgedConfig(Block):
    """A judge, and the number of its judgements that counts."""

    judge: JudgeConfig = JudgeConfig()
    """The judge that rates."""
    service: ServiceConfig | None = None
    """A running service to use as the judge. null: the run starts and stops `judge` itself."""
    view: ViewOrAuto = "auto"
    """The number that is the reward; see `view` of BestOfNConfig. `auto` takes the view of the
    model's entry in `judges.yaml`, else `expected`, else `rating` where the judge gives no
    distribution. `expected` tells more responses apart than whole ratings."""
    relative: RelativeConfig | None = None
    """Judge the responses of a group together. The reward is then a score of 0 to 1, in place of a
    view. null: each response is rated alone."""
    rubric: RubricConfig | None = None
    """Score each response by the items of its row's rubric. The reward is then that score, in place
    of a view. null: a row's rubric is a text for formats that show one."""
    calibration: Path | None = None
    """File of `autoj calibrate`. It maps the view's number to the scale of the labels, before
    shaping. null: the number counts as it is."""

    @property
    def scoring(self) -> Scoring | None:
        """What scores a response in place of a view; None for a rating."""
        return self.relative or self.rubric

    @property
    def protocol(self) -> str:
        """The protocol that judges the responses."""
        return self.scoring.protocol if self.scoring else "single"

    @model_validator(mode="after")
    def _check_scoring(self) -> Self:
        _require_one(self.relative, self.rubric, self.view)
        if self.scoring and self.calibration:
            key = "relative" if self.relative else "rubric"
            raise ValueError(f"calibration maps a rating, and {key} scores in place of one")
        return self


class PartConfig(JudgedConfig):
    """A further part of a reward, next to the main judge: another judge, a scalar model or a
    function."""

    function: str | None = None
    """`module:function`, used in place of a judge. It is called with a Candidate and returns a
    number, or None where it does not apply."""
    weight: float = Field(1.0, gt=0)
    """Weight of the part in the mean. The main judge has weight 1."""
    range: tuple[float, float] | None = None
    """The two values that are mapped to 0 and 1; other values are mapped linearly. With a falling
    pair, lower values are better. null: a judge is mapped by its scale, a scalar model by the
    probability of being preferred to a score of 0. A function's number then counts unchanged."""
    failures: FailureBudgetConfig = FailureBudgetConfig()
    """Failure budget of this part."""
    when: str | None = None
    """As `when` of RewardConfig, for this part: `judge` names the main judge."""

    @model_validator(mode="after")
    def _check_source(self) -> PartConfig:
        judged = sorted(self.model_fields_set & set(JudgedConfig.model_fields))
        if self.function is None:
            if not set(judged) - {"view", "calibration"}:
                raise ValueError("name a judge, a service or a function")
            return self
        if judged:
            raise ValueError(f"{' and '.join(judged)} beside a function: make two parts of them")
        if not FUNCTION.fullmatch(self.function):
            raise ValueError(f"function {self.function!r} is not module:function")
        return self

    @field_validator("range")
    @classmethod
    def _check_range(cls, value: tuple[float, float] | None) -> tuple[float, float] | None:
        if value and value[0] == value[1]:
            raise ValueError("range needs two different values, those that count as 0 and as 1")
        return value


class AuditConfig(JudgedConfig):
    """Audit of a reward's judge during training: a second judge, and responses without content.

    It changes no reward and no failure budget.
    """

    share: float = Field(0.05, gt=0, le=1)
    """Share of the responses that the audit judge rates too, in whole groups that their hash
    chooses."""
    canaries_every: int = Field(500, ge=0)
    """Responses after which the main judge rates the master keys (a colon, "Thought process:",
    nothing, the query) in place of responses. 0: never."""
    stop: bool = False
    """Whether an alarm ends the training. false: it is logged."""

    @model_validator(mode="after")
    def _check_audit(self) -> AuditConfig:
        if not self.model_fields_set & {"judge", "service"}:
            raise ValueError("name a judge or a service that audits the reward")
        if self.relative:
            raise ValueError("audit rates single responses: leave relative out")
        return self


class RewardConfig(JudgedConfig):
    """Settings of a trainer's reward: a judge, alone or with other parts."""

    parts: dict[str, PartConfig] = Field(default_factory=dict)
    """Parts beside the main judge, by name. With parts, the reward before shaping is one number
    from 0 to 1. Each part is mapped to 0 to 1, and a part that abstains is left out."""
    reduce: Literal["mean", "median", "min"] = "mean"
    """How parts are combined: `mean`, weighted; `median`, which one part out of line moves little;
    or `min`, where the strictest part decides."""
    when: str | None = None
    """Name of a part that is asked first. The judge is then asked only about responses for which
    that part has no number: its function returned None, or it failed. Elsewhere the judge is left
    out of the reward, as a part that abstains. null: the judge is asked about every response."""
    shaping: ShapingConfig = ShapingConfig()
    """Shaping of the reward."""
    failures: FailureConfig = FailureConfig()
    """Failure budget, and the reward of a failed judgement."""
    no_answer: Literal["lowest", "abstain", "judge"] = "lowest"
    """Reward of a response without an answer, one that is empty or nothing but thinking. `lowest`:
    the lowest of the scale, and never above a judged response of the same group in the call. On a
    scale without bounds, a scalar model's, it is the lowest of the group; alone it abstains.
    `abstain`: none, as for a failed judgement. `judge`: the judge is asked about the empty
    answer."""
    no_answer_budget: float = Field(0.9, gt=0, le=1)
    """Largest share of responses without an answer among the last `failures.window`. A larger share
    stops the run: the marks of thinking are wrong, or the policy no longer answers."""
    audit: AuditConfig | None = None
    """A second judge that rates a share of the responses and changes no reward. null: none."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Path in the trainer's data of each context field of a judge's format, where the names differ,
    such as `reference: reward_model.ground_truth`. Of an `input` that this package reads, also the
    path of `prompt`."""
    max_usd: float | None = Field(None, gt=0)
    """US dollars, by the `price` of each judge, after which a run stops. All judges together. The
    same command goes on from there. null: no limit."""
    journal: Path | None = None
    """SQLite file of every judgement. null: none."""
    journal_max_gib: float | None = Field(20.0, gt=0)
    """Size of the journal in GiB at which new judgements replace the oldest ones. 20 GiB hold about
    four million judgements. null: no limit."""

    @field_validator("parts")
    @classmethod
    def _check_part_names(cls, value: dict[str, PartConfig]) -> dict[str, PartConfig]:
        _check_names(value)
        return value

    @model_validator(mode="after")
    def _check_weights(self) -> RewardConfig:
        names = [name for name, part in self.parts.items() if "weight" in part.model_fields_set]
        if self.reduce != "mean" and names:
            raise ValueError(f"reduce {self.reduce} knows no weights: take that of {names[0]} out")
        if self.reduce != "mean" and not self.parts:
            raise ValueError(
                f"reduce is {self.reduce}, and there is nothing beside the judge: name parts"
            )
        return self

    @model_validator(mode="after")
    def _check_when(self) -> RewardConfig:
        scoring = {JUDGE: self.relative} | {n: part.relative for n, part in self.parts.items()}
        for name, first in self.waiting.items():
            key = f"{name}.when is {first}" if name != JUDGE else f"when is {first}"
            others = [other for other in scoring if other != name and other not in self.waiting]
            if first not in others:
                known = ", ".join(others) or "none yet"
                raise ValueError(f"{key}: name another part that waits for none ({known})")
            if scoring[name]:
                raise ValueError(f"{key}, and relative judges whole groups: leave one out")
        return self

    @model_validator(mode="after")
    def _check_audit(self) -> RewardConfig:
        if self.audit and self.relative:
            raise ValueError(
                "audit compares two ratings of a response, and relative gives scores within a "
                "group: leave one out"
            )
        return self

    @property
    def judged(self) -> dict[str, JudgedConfig]:
        """Return the judges of the reward and its audit, by name, with the main judge first."""
        others = {name: part for name, part in self.parts.items() if part.function is None}
        audit = {AUDIT: self.audit} if self.audit else {}
        return {JUDGE: self, **others, **audit}

    @property
    def waiting(self) -> dict[str, str]:
        """Return the part that each part with `when` waits for, by name."""
        named = {JUDGE: self.when} | {name: part.when for name, part in self.parts.items()}
        return {name: first for name, first in named.items() if first is not None}

    @staticmethod
    def key_of(name: str) -> str:
        """Return where a judge of the reward stands in a run file, by its name."""
        return {JUDGE: "reward", AUDIT: "reward.audit"}.get(name, f"reward.parts.{name}")

    @property
    def started(self) -> list[JudgeConfig]:
        """Return the judges that the run starts and stops itself, so those without a service."""
        return [judged.judge for judged in self.judged.values() if judged.service is None]
