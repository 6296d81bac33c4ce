"""Run configuration: one YAML file a run, checked at load, unknown keys rejected by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from autoj_reward.errors import ConfigError

View = Literal["rating", "expected", "direct"]
OverLong = Literal["truncate", "truncate_end", "truncate_start", "reject"]
TieBreak = Literal["policy_logprob", "expected_rating", "pairwise", "first"]


class Block(BaseModel):
    """A config block: frozen, and every unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


T = TypeVar("T", bound=Block)


class EngineConfig(Block):
    """Which model answers, and on what.

    kind: `vllm` runs the model here; `transformers` runs a scalar reward model that vLLM does not
        know; `openai` asks an OpenAI-compatible endpoint; `fake` is a scripted engine for tests and
        dry runs.
    model: `default`, a name on the model hub, or a local folder.
    dtype: `auto` is float32 on a CPU (verdicts do not change with the batch) and bfloat16 on GPUs.
    max_model_len: context in tokens, prompt and output together.
    kv_cache_gib: KV cache of one CPU replica; a GPU uses `gpu_memory_utilization` instead.
    base_url, api_key_env: endpoint address and the environment variable that holds its key.
    tokenizer: with `openai`, a local tokenizer for the served model. Prompts then travel as token
        ids, which makes control tokens impossible and rating distributions available.
    script: for `fake`: how the scripted judge behaves.
    """

    kind: Literal["vllm", "transformers", "openai", "fake"] = "vllm"
    model: str = "default"
    revision: str | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    quantization: str | None = None
    max_model_len: int = Field(4096, ge=64)
    tensor_parallel: int = Field(1, ge=1)
    gpu_memory_utilization: float = Field(0.9, gt=0, le=1)
    kv_cache_gib: float = Field(2.0, gt=0)
    trust_remote_code: bool = False
    base_url: str | None = None
    api_key_env: str | None = None
    tokenizer: str | None = None
    script: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _endpoint(self) -> EngineConfig:
        if (self.kind == "openai") != (self.base_url is not None):
            raise ValueError("base_url is for kind: openai, which needs it")
        return self

    @property
    def on_replicas(self) -> bool:
        """Whether the model runs on replicas of ours, so needs cores or GPUs."""
        return self.kind in ("vllm", "transformers")


class ReplicaConfig(Block):
    """Ray Serve replicas. `auto` takes every GPU of the cluster, or one CPU replica without any.

    max_replicas: Serve adds replicas up to so many under load, and takes them away again down to
        `replicas`. None: always `replicas`.
    num_gpus, num_cpus: resources of one replica; fractions share a GPU. None: one GPU per
        tensor-parallel rank if there are GPUs, and half a CPU core otherwise.
    max_ongoing: candidates that one replica takes at a time.
    deadline_s: seconds after which a candidate is given up as `unavailable`.
    """

    replicas: int | Literal["auto"] = "auto"
    max_replicas: int | None = Field(None, ge=1)
    num_gpus: float | None = Field(None, ge=0)
    num_cpus: float | None = Field(None, ge=0)
    max_ongoing: int = Field(256, ge=1)
    deadline_s: float = Field(1800.0, gt=0)

    @model_validator(mode="after")
    def _count(self) -> ReplicaConfig:
        if isinstance(self.replicas, int) and self.replicas < 1:
            raise ValueError(f"replicas is {self.replicas}: it must be at least 1, or auto")
        if self.max_replicas is not None and (
            self.replicas == "auto" or self.max_replicas < self.replicas
        ):
            raise ValueError(
                f"max_replicas is {self.max_replicas} and replicas {self.replicas}: give replicas "
                "a number no larger, the least"
            )
        return self


class JudgeConfig(EngineConfig):
    """The judge: an engine, the format it was trained on, and how it decodes.

    format: a judge format of the package, a path to a format file, or `auto` (by model name).
        `scalar` makes the model a scalar reward model that reads its own chat template; of the
        keys below only `over_long` and `serve` then count.
    wrapper: how the input becomes a chat turn; `auto` goes by model name, else `chat`.
    critiques: k critiques a response; their ratings are averaged. k > 1 needs a temperature.
    critique: False asks for the rating right after the prompt: one token instead of hundreds.
    direct: beside the critique also read the expected rating right after the prompt.
    over_long: what happens to a response that does not fit: cut its middle (`truncate`), its end
        (`truncate_end`) or its start (`truncate_start`), or reject.
    """

    format: str = "auto"
    wrapper: Literal["auto", "chat", "llama2", "none"] = "auto"
    critique: bool = True
    direct: bool = False
    critiques: int = Field(1, ge=1, le=64)
    temperature: float = Field(0.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    max_tokens: int = Field(1024, ge=1)
    seed: int = 0
    over_long: OverLong = "truncate"
    serve: ReplicaConfig = ReplicaConfig()

    @model_validator(mode="after")
    def _sampling(self) -> JudgeConfig:
        if self.critiques > 1 and self.temperature == 0:
            raise ValueError(
                f"critiques is {self.critiques} at temperature 0, which gives the same critique "
                "each time: set a temperature, for example 0.7"
            )
        if self.max_tokens >= self.max_model_len:
            raise ValueError(
                f"max_tokens {self.max_tokens} leaves no room for the prompt in max_model_len "
                f"{self.max_model_len}"
            )
        return self


class PolicyConfig(EngineConfig):
    """The policy that samples n responses a query (paper, section 6.3: n = 32, temperature 1)."""

    n: int = Field(32, ge=1, le=1024)
    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    max_tokens: int = Field(512, ge=1)
    seed: int = 0
    system: str | None = None
    serve: ReplicaConfig = ReplicaConfig()


class BestOfNConfig(Block):
    """A best-of-N job.

    input: .jsonl, .parquet, a saved dataset folder or hf://owner/name?split=train.
    output: folder for selections, judgements, summary and report.
    journal: SQLite file of every judgement; by default in the output folder. Several runs may
        name the same one and then share what they have judged.
    policy: who answers rows without `responses`; null if every row brings its own.
    view: the number that ranks candidates. tie_break: what decides among equals, in order.
    budget: share of the tokens that full judging of a query would write. Critiques then go only to
        candidates that can still win, and the rest is abandoned and recorded as such. null: full
        judging.
    """

    input: str
    output: Path
    journal: Path | None = None
    policy: PolicyConfig | None = None
    judge: JudgeConfig = JudgeConfig()
    view: View = "rating"
    tie_break: tuple[TieBreak, ...] = ("policy_logprob", "expected_rating", "pairwise", "first")
    budget: float | None = Field(None, gt=0, le=1)

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
    """`autoj score` and `autoj compare`: only the judge is configured; files come by flag."""

    judge: JudgeConfig = JudgeConfig()
    swap: bool = True


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
        judgements make room for new ones; null: it grows.
    """

    judge: JudgeConfig = JudgeConfig()
    service: ServiceConfig | None = None
    view: View = "expected"
    shaping: ShapingConfig = ShapingConfig()
    failures: FailureConfig = FailureConfig()
    journal: Path | None = None
    journal_max_gib: float | None = Field(None, gt=0)


def load_config(kind: type[T], path: str | Path | None, sets: Sequence[str] = ()) -> T:
    """Read a YAML config and check it; `sets` are overrides such as `judge.max_tokens=256`.

    path None starts from an empty config. Relative paths inside stay relative to the working
    directory. Raises ConfigError naming file, key, value and what was expected.
    """
    data: Any = {}
    if path is not None:
        try:
            data = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"{path}: cannot read the config: {error.strerror}") from error
        except (yaml.YAMLError, ValueError) as error:
            raise ConfigError(f"{path}: not valid YAML: {error}") from error
        data = {} if data is None else data
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: the config must be a mapping, not {type(data).__name__}")
    for item in sets:
        _override(data, item)
    return check(kind, data, str(path or "command line"))


def check(kind: type[T], data: dict[str, Any], source: str) -> T:
    """Build a block from plain data; ConfigError lists every wrong key at once."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        lines = [_explain(kind, dict(item)) for item in error.errors()]
        raise ConfigError(f"{source}: " + "; ".join(lines)) from error


def _explain(kind: type[Block], item: dict[str, Any]) -> str:
    key = ".".join(str(part) for part in item["loc"]) or "config"
    if item["type"] == "extra_forbidden":
        return f"unknown key {key!r} (known here: {', '.join(_known(kind, item['loc'][:-1]))})"
    if item["type"] == "missing":
        return f"key {key!r} is missing"
    shown = "" if item["loc"] == () else f" (value: {str(item.get('input'))[:80]!r})"
    return f"{key}: {item['msg'].removeprefix('Value error, ')}{shown}"


def _known(kind: type[Block], loc: Sequence[int | str]) -> list[str]:
    block: Any = kind
    for part in loc:
        options = [block.model_fields[part].annotation, *_args(block.model_fields[part].annotation)]
        block = next(o for o in options if isinstance(o, type) and issubclass(o, BaseModel))
    return sorted(block.model_fields)


def _args(annotation: Any) -> tuple[Any, ...]:
    return getattr(annotation, "__args__", ())


def _override(data: dict[str, Any], item: str) -> None:
    key, sep, value = item.partition("=")
    if not sep or not key:
        raise ConfigError(f"--set {item!r}: write it as key=value, for example judge.model=PATH")
    *parents, last = key.split(".")
    for part in parents:
        child = data.get(part)
        if child is None:
            child = data[part] = {}
        if not isinstance(child, dict):
            raise ConfigError(f"--set {item!r}: {part!r} is not a block")
        data = child
    try:
        data[last] = yaml.safe_load(value)
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"--set {item!r}: the value is not valid YAML: quote it") from error
