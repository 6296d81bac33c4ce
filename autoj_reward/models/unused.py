"""Detection of config keys without effect, and loading of run files without such keys.

After a switch to another judge, the file often still has keys of the old one. One warning names
them, and the run ignores them. With `--strict` they are an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from autoj_reward.config import (
    Block,
    EngineConfig,
    JudgeConfig,
    JudgedConfig,
    PolicyConfig,
    check,
)
from autoj_reward.config.load import read_config
from autoj_reward.errors import ConfigError
from autoj_reward.formats.schema import JudgeFormat, ScalarFormat, load_any_format
from autoj_reward.logs import LOG
from autoj_reward.models import CRITERIA, format_and_wrapper
from autoj_reward.models.spec import judge_spec

T = TypeVar("T", bound=Block)
Place = tuple[str | int, ...]
"""Keys and indices that lead from the top of a config to a block."""


class Answerer(StrEnum):
    """Kind of engine or service that answers for a block of the config."""

    VLLM = "kind vllm"
    TRANSFORMERS = "kind transformers"
    TOKENS = "kind openai with a tokenizer"
    CHAT = "kind openai without a tokenizer"
    FAKE = "kind fake"
    FAKE_POLICY = "kind fake of a policy"
    FAKE_TEACHER = "kind fake of a teacher"
    SERVICE = "a running service"


EVERY = frozenset(Answerer)
"""All of them. The sets below group those that use the same keys."""
VLLM = frozenset({Answerer.VLLM})
REPLICAS = VLLM | {Answerer.TRANSFORMERS}
"""Engines that run on replicas of this package."""
ENDPOINTS = frozenset({Answerer.TOKENS, Answerer.CHAT})
UNSHARED = frozenset({Answerer.FAKE_POLICY, Answerer.FAKE_TEACHER})
"""Scripted engines that only a policy or only a teacher has."""
SAMPLES = VLLM | ENDPOINTS
"""Engines that sample text."""
WRITES = SAMPLES | {Answerer.FAKE}
"""Engines that write text, scripted judges included."""

USED_BY: Mapping[str, frozenset[Answerer]] = {
    "kind": EVERY - {Answerer.SERVICE},
    "revision": REPLICAS,
    "dtype": REPLICAS,
    "quantization": VLLM,
    "max_model_len": REPLICAS | UNSHARED | {Answerer.TOKENS, Answerer.FAKE},
    "tensor_parallel": VLLM,
    "gpu_memory_utilization": VLLM,
    "kv_cache_gib": VLLM,
    # It also sets the number of candidates in flight; a service says its own.
    "max_sequences": EVERY - UNSHARED - {Answerer.SERVICE},
    "max_batched_tokens": VLLM,
    "trust_remote_code": REPLICAS,
    "base_url": ENDPOINTS,
    "api_key_env": ENDPOINTS,
    "api_key_file": ENDPOINTS,
    "api_key_command": ENDPOINTS,
    "extra_headers": ENDPOINTS,
    "extra_body": ENDPOINTS,
    "chat_template_kwargs": SAMPLES,
    "attempts": ENDPOINTS,
    "start_s": ENDPOINTS,
    "price": WRITES | {Answerer.FAKE_TEACHER},
    "requests_per_minute": ENDPOINTS,
    "tokens_per_minute": ENDPOINTS,
    "tokenizer": frozenset({Answerer.TOKENS}),
    "script": frozenset({Answerer.FAKE, Answerer.FAKE_TEACHER}),
    "wrapper": VLLM | {Answerer.TOKENS},
    "critique": WRITES,
    "direct": WRITES,
    "distribution": WRITES,
    "critiques": WRITES | {Answerer.SERVICE},
    "vote": WRITES | {Answerer.SERVICE},
    "temperature": WRITES | {Answerer.SERVICE},  # several critiques need one, also at a service
    "top_p": SAMPLES,
    "frequency_penalty": SAMPLES,
    "max_tokens": WRITES | UNSHARED,
    "thinking_tokens": WRITES,
    "seed": SAMPLES,
    "criteria": WRITES | {Answerer.SERVICE},  # with a service: rows need no criteria
    "reads_media": frozenset({Answerer.CHAT}),
    "fetches_media": frozenset({Answerer.CHAT}),
    "shows_media": EVERY - {Answerer.SERVICE},
    "max_text_chars": EVERY - {Answerer.SERVICE},
    "over_long": REPLICAS | {Answerer.TOKENS, Answerer.FAKE},
    "serve.replicas": REPLICAS,
    "serve.max_replicas": REPLICAS,
    "serve.num_gpus": REPLICAS,
    "serve.num_cpus": REPLICAS,
    "serve.max_ongoing": EVERY - UNSHARED,
}
"""Kinds that use a key, by the key's path in the block of a judge, policy or teacher.

A key that is not listed is used by all.
"""
OF_TEXT = (
    frozenset(JudgeConfig.model_fields)
    - frozenset(EngineConfig.model_fields)
    - {"format", "max_text_chars", "over_long", "serve", "trace"}
    - {"shows", "shows_media", "shows_thinking", "thinking_marks"}
)
"""Keys that only a judge uses that writes text; a scalar reward model ignores them."""
OF_RATINGS = frozenset({"direct", "critiques", "vote"})
"""Keys of the rating of one response, which no comparison uses."""


class UnusedKeys(NamedTuple):
    """Keys of one block that were set and have no effect."""

    place: Place
    """Place of the block."""
    user: str
    """Description of the engine or service that does not use them."""
    keys: tuple[str, ...]
    """Paths of the keys in the block."""

    def __str__(self) -> str:
        return f"{'.'.join(map(str, self.place))} ({self.user}) does not use {', '.join(self.keys)}"


def asks_for_ratings(config: Block) -> bool:
    """Return that a run does more than compare, as most do."""
    return False


def load_run(
    kind: type[T],
    path: str | Path | None,
    sets: Sequence[str] = (),
    strict: bool = False,
    compares: Callable[[T], bool] = asks_for_ratings,
) -> T:
    """Read a run file like `load_config`, and leave out keys that have no effect.

    One warning names those keys. With `strict` a ConfigError does. Also raises ConfigError or
    FormatError if the format of one of its judges is invalid. compares: returns whether the run
    asks its judge for comparisons of two responses alone.
    """
    return check_run(kind, read_config(path, sets), str(path or "command line"), strict, compares)


def check_run(
    kind: type[T],
    data: dict[str, Any],
    source: str,
    strict: bool = False,
    compares: Callable[[T], bool] = asks_for_ratings,
) -> T:
    """Build a run's config from plain data, and leave out keys that have no effect.

    source: name of the config in errors and in the warning. Errors are those of `load_run`.
    """
    config = check(kind, data, source)
    if unused := keys_without_effect(config, compares(config)):
        message = f"{source}: {'; '.join(map(str, unused))}"
        remedy = "take these keys out, or set the kind or format that uses them"
        if strict:
            raise ConfigError(f"{message}: {remedy}, or drop --strict to go on without them")
        LOG.warning("%s. The run goes on without: %s", message, remedy)
        for block in unused:
            for key in block.keys:
                _leave_out(data, (*block.place, *key.split(".")))
        config = check(kind, data, source)
    for _, engine_config, _ in _find_engines(config):
        if isinstance(engine_config, JudgeConfig):
            judge_spec(engine_config)
    return config


def keys_without_effect(config: Block, compares: bool = False) -> list[UnusedKeys]:
    """Return the keys of judges, policies and teachers that have no effect.

    Only keys with another value than the default count. compares: whether judges are asked for
    comparisons alone. Raises ConfigError or FormatError if a judge's format cannot be read.
    """
    unused_keys = []
    for place, engine_config, has_service in _find_engines(config):
        fmt = None
        if isinstance(engine_config, JudgeConfig):
            fmt = load_any_format(format_and_wrapper(engine_config)[0])
        answerer = _find_answerer(engine_config, has_service)
        keys = tuple(
            key
            for key in _find_changed_keys(engine_config)
            if answerer not in USED_BY.get(key, EVERY)
            or not _is_shown(key, fmt)
            or (compares and not _counts_in_comparisons(key, engine_config, answerer))
        )
        if keys:
            user = f"{answerer}, format {fmt.name}" if fmt else str(answerer)
            user += ", comparing" if compares else ""
            unused_keys.append(UnusedKeys(place, user, keys))
    return unused_keys


def _find_engines(value: Any, place: Place = ()) -> Iterator[tuple[Place, EngineConfig, bool]]:
    """Yield each judge, policy and teacher set below a block: its place and its config.

    The third value is True if a running service answers for it.
    """
    if isinstance(value, EngineConfig):
        yield place, value, False
    elif isinstance(value, Block):
        has_service = isinstance(value, JudgedConfig) and value.service is not None
        for name in type(value).model_fields:
            if name in value.model_fields_set:
                for inner, engine_config, served in _find_engines(
                    getattr(value, name), (*place, name)
                ):
                    yield (
                        inner,
                        engine_config,
                        served or (has_service and inner == (*place, "judge")),
                    )
    elif isinstance(value, dict | tuple | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from _find_engines(item, (*place, key))


def _find_answerer(config: EngineConfig, has_service: bool) -> Answerer:
    if has_service:
        return Answerer.SERVICE
    if config.kind == "openai":
        return Answerer.TOKENS if config.tokenizer else Answerer.CHAT
    if config.kind == "fake" and not isinstance(config, JudgeConfig):
        is_policy = isinstance(config, PolicyConfig)
        return Answerer.FAKE_POLICY if is_policy else Answerer.FAKE_TEACHER
    return Answerer(f"kind {config.kind}")


def _is_shown(key: str, fmt: JudgeFormat | ScalarFormat | None) -> bool:
    """Return whether a judge of this format uses a key. `fmt` is None for other engines."""
    if isinstance(fmt, ScalarFormat):
        return key not in OF_TEXT
    if isinstance(fmt, JudgeFormat) and key == "criteria":
        return CRITERIA in fmt.context()
    if isinstance(fmt, JudgeFormat) and key == "thinking_tokens":
        return fmt.thinking is not None
    return True


def _counts_in_comparisons(key: str, config: EngineConfig, answerer: Answerer) -> bool:
    """Return whether a judge uses a key when it compares two responses."""
    if key == "distribution" and isinstance(config, JudgeConfig):
        # Verdicts have no distribution, but an endpoint without log-probabilities reads no verdict
        # where the judge wrote none, and some judges compare by the expected ratings.
        return answerer in ENDPOINTS or judge_spec(config).facts.tie is not None
    return key not in OF_RATINGS


def _find_changed_keys(config: Block) -> Iterator[str]:
    """Yield the path of each key with another value than the default."""
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        if name not in config.model_fields_set:
            continue
        if isinstance(value, Block):
            yield from (f"{name}.{key}" for key in _find_changed_keys(value))
        elif value != field.get_default(call_default_factory=True):
            yield name


def _leave_out(data: Any, place: Place) -> None:
    *above, last = place
    for key in above:
        data = data[key]
    del data[last]
