"""Every key of a judge and of a policy changes an answer at every door, or is named as unused.

`KEYS` has a row for each key. `WITHOUT_EFFECT` lists the keys that change nothing at a door, each
with its reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.config import (
    BestOfNConfig,
    Block,
    JudgeConfig,
    JudgedConfig,
    PolicyConfig,
    ScoreConfig,
    load_config,
)
from autoj_reward.models.unused import keys_without_effect
from tests.support.configs import OURS, kind_of
from tests.support.judge_doors import (
    DOORS,
    MARKED_ONCE,
    REFUSED,
    SHORT,
    TOKEN,
    WORDLESS,
    Asked,
    Door,
    StandIns,
    ask_trainer,
    run_service_of,
    sample_policy,
    write_formats,
)


@dataclass(frozen=True)
class Key:
    """How the effect of a config key is seen."""

    value: Any
    """Another value than the default."""
    kind: str = "fake"
    """Kind of judge whose answer it changes at every door: one of `JUDGES`."""
    beside: dict[str, Any] = field(default_factory=dict)
    """Keys that it needs beside it to count at all."""
    format: str = ""
    """Format that it needs, for judges that write."""
    needed: str = ""
    """Pattern in the error of a judge without the key; "" if such a judge answers, too."""


SAMPLED = {"temperature": 0.7}
SLOW = {"script": {"latency_s": 0.05}}
KEYS: dict[str, Key] = {
    "kind": Key("fake", "vllm"),
    "model": Key("flowaicom/Flow-Judge-v0.1", "openai"),
    "revision": Key("v2", "vllm"),
    "dtype": Key("float16", "vllm"),
    "quantization": Key("fp8", "vllm"),
    "max_model_len": Key(230, "openai, tokenizer"),
    "tensor_parallel": Key(2, "vllm"),
    "gpu_memory_utilization": Key(0.5, "vllm"),
    "kv_cache_gib": Key(3, "vllm"),
    "max_sequences": Key(8, "vllm"),
    "max_batched_tokens": Key(5000, "vllm"),
    "trust_remote_code": Key(True, "vllm"),
    "base_url": Key("{url}/other", "openai"),
    "api_key_env": Key("ANOTHER_KEY", "openai"),
    "api_key_file": Key("{key file}", "openai"),
    "api_key_command": Key("echo sk-3", "openai"),
    "extra_headers": Key({"X-Of": "team"}, "openai"),
    "extra_body": Key({"reasoning_effort": "low"}, "openai"),
    "chat_template_kwargs": Key({"greeting": "Hello"}, "openai"),
    "start_s": Key(1e-6, "openai", {"model": MARKED_ONCE}),
    "requests_per_minute": Key(60, "openai"),
    "tokens_per_minute": Key(60_000, "openai"),
    "tokenizer": Key("{other tokenizer}", "openai, tokenizer"),
    "script": Key({"words": 3, "verdicts": "first"}),
    "format": Key("flow-judge", "openai"),
    "price": Key({"in": 1000, "out": 2000}),
    "wrapper": Key("vicuna", "vllm"),
    "critique": Key(False),
    "direct": Key(True),
    "distribution": Key(False),
    "critiques": Key(4, "openai", SAMPLED),
    "vote": Key("median", "openai", SAMPLED | {"critiques": 4}),
    "temperature": Key(0.7, "openai"),
    "top_p": Key(0.5, "openai", SAMPLED),
    "frequency_penalty": Key(0.5, "openai"),
    "max_tokens": Key(1450, "openai"),
    "thinking_tokens": Key(2, format="{thinks}"),
    "seed": Key(7, "openai", SAMPLED),
    "attempts": Key(3, "openai", SAMPLED | {"distribution": False, "model": WORDLESS}),
    "criteria": Key("auto", "openai", format="{criteria}", needed="criteria|no usable row"),
    "reads_media": Key(True, "openai"),
    "fetches_media": Key(True, "openai", {"reads_media": True}),
    "shows_media": Key("omit"),
    "max_text_chars": Key(1000),
    "over_long": Key("reject"),
    "shows": Key("assistant"),
    "shows_thinking": Key(True),
    "thinking_marks": Key({"[[THINK]]": "[[/THINK]]"}),
    "trace": Key(True),
    "serve.replicas": Key(3, "vllm"),
    "serve.max_replicas": Key(5, "vllm", {"serve": {"replicas": 2}}),
    "serve.num_gpus": Key(0.5, "vllm"),
    "serve.num_cpus": Key(3, "vllm"),
    "serve.max_ongoing": Key(5),
    "serve.deadline_s": Key(1e-6, beside=SLOW),
}
"""A row for each key of `JudgeConfig` and of its blocks."""
POLICY_KEYS = KEYS | {
    "start_s": Key(3),
    "top_p": Key(0.5),
    "seed": Key(7),
    "n": Key(3),
    "max_tokens": Key(110),
    "system": Key("Be brief."),
    "serve.deadline_s": Key(1e-6),
}
"""A row for each key of `PolicyConfig`: as a judge's, where nothing else is said."""
WITHOUT_EFFECT: dict[tuple[str, str], str] = {
    ("compare", "direct"): "it is a rating, and a comparison has none",
    ("compare", "distribution"): "verdicts are written without probabilities",
    ("compare", "critiques"): "a pair is judged once in each order",
    ("compare", "vote"): "a pair is judged once in each order",
    ("fake", "model"): "a script has no model: the name stands in the judge's name alone",
    ("fake", "temperature"): "a script writes the same; several critiques need a temperature",
    ("fake", "vote"): "a script writes the same critique each time",
    ("fake, scalar", "model"): "as for fake",
    (
        "running service",
        "temperature",
    ): "the service's counts; several critiques need one",
    ("fake policy", "model"): "a script has no model",
}
"""Keys that change nothing, by door or kind of judge, with the reason."""
NOT_A_DOOR = {"autoj watch": "it reads journals and results, and asks no judge"}

MODEL = {"model": "owner/judge", "format": "autoj-en"} | SHORT
SCALAR = MODEL | {"format": "scalar"}
ENDPOINT = MODEL | {"kind": "openai", "base_url": "{url}/v1"}
JUDGES: dict[str, dict[str, Any]] = {
    "vllm": MODEL | {"kind": "vllm"},
    "vllm, scalar": SCALAR | {"kind": "vllm"},
    "transformers": SCALAR | {"kind": "transformers"},
    "openai": ENDPOINT,
    "openai, tokenizer": ENDPOINT | {"tokenizer": "{tokenizer}"},
    "fake": MODEL | {"kind": "fake", "script": {"thinking": "one two three"}},
    "fake, scalar": SCALAR | {"kind": "fake"},
    "running service": {"kind": "vllm", "model": "owner/judge"},
    "running service, scalar": {"kind": "vllm", "model": "default-scalar"},
}
POLICIES: dict[str, dict[str, Any]] = {
    "vllm": {"kind": "vllm", "model": "owner/policy"} | SHORT,
    "fake": {"kind": "fake", "model": "owner/policy"} | SHORT,
}


class World:
    """The stand-ins, the values of the names in braces, and each answer once."""

    def __init__(self, stand_ins: StandIns, names: dict[str, str], service: str) -> None:
        self.stand_ins = stand_ins
        self.names = names
        self.service = service
        self.answer = cache(self._answer)

    def fill(self, data: dict[str, Any]) -> str:
        """Return a config as JSON, with the values of its names."""
        text = json.dumps(data)
        for name, real in self.names.items():
            text = text.replace(name, real)
        return text

    def _answer(self, door: Door, config: str, service: str = "") -> list[Any]:
        return self.stand_ins.ask(door, Asked(json.loads(config), service))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("doors")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("ANOTHER_KEY", "sk-1")
        monkeypatch.setenv("AUTOJ_TOKEN", TOKEN)
        stand_ins = StandIns(folder, monkeypatch)
        names = {
            "{url}": stand_ins.server.url,
            "{key file}": str(folder / "key"),
            "{tokenizer}": str(folder / "one"),
            "{other tokenizer}": str(folder / "two"),
        }
        with run_service_of(stand_ins.server.url) as address:
            yield World(stand_ins, names | write_formats(folder), address)
        stand_ins.close()


def list_keys(kind: type[Block], start: str = "") -> Iterator[str]:
    """Yield the path of every key of a block and of the blocks in it."""
    for name, info in kind.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, Block):
            yield from list_keys(info.annotation, f"{start}{name}.")
        else:
            yield start + name


def without_and_with(key: str, row: Key, base: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    """Return a config without a key and the same with it."""
    before = base | row.beside
    if row.format and "scalar" not in str(base):
        before |= {"format": row.format}
    block, _, name = key.rpartition(".")
    if block:
        return before, before | {block: before.get(block, {}) | {name: row.value}}
    value = row.value
    if value == before.get(name):  # a scripted judge becomes another kind
        value = "vllm"
    return before, before | {name: value}


@pytest.mark.parametrize(
    ("kind", "rows"), [(JudgeConfig, KEYS), (PolicyConfig, POLICY_KEYS)], ids=["judge", "policy"]
)
def test_every_key_has_a_row(kind: type[Block], rows: dict[str, Key]) -> None:
    missing = sorted({*list_keys(kind)} - {*rows})
    assert not missing, (
        f"{kind.__name__} has keys without a row: {', '.join(missing)}. Give each a row in KEYS of "
        "tests/models/test_judge_keys.py: another value than its default, and the kind of judge "
        "whose answer it changes"
    )
    if kind is JudgeConfig:
        gone = {*rows} - {*list_keys(kind)}
        assert not gone, f"KEYS has rows of keys that are gone: {', '.join(sorted(gone))}"


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("door", DOORS)
def test_a_key_of_a_judge_changes_the_answer_at_every_door(
    door: str, key: str, world: World
) -> None:
    row = KEYS[key]
    before, after = map(world.fill, without_and_with(key, row, JUDGES[row.kind]))
    without, with_key = (world.answer(DOORS[door], text) for text in (before, after))
    require_answer(without, row)
    if (door, key) in WITHOUT_EFFECT:
        assert without == with_key, f"{key} has an effect at {door}: take it out of WITHOUT_EFFECT"
    else:
        assert without != with_key, f"{key} changes nothing at {door}"


def require_answer(without: list[Any], row: Key) -> None:
    """Require that a judge without the key answers, or is refused for the lack of it."""
    if without[0] == REFUSED:
        assert row.needed and re.search(row.needed, without[1]), without


def find_wrong_keys(
    world: World,
    kind: type[JudgeConfig | PolicyConfig],
    name: str,
    door: Door,
    service: str = "",
) -> dict[str, str]:
    """Return keys without effect that are not named, and keys with an effect that are.

    name: of the judge in JUDGES, or of the policy in POLICIES.
    """
    wrong = {}
    is_policy = kind is PolicyConfig
    rows = POLICY_KEYS if is_policy else KEYS
    base = POLICIES[name] if is_policy else JUDGES[name]
    known = f"{name} policy" if is_policy else name
    for key in list_keys(kind):
        if key not in rows:
            continue  # `test_every_key_has_a_row` names it
        row = rows[key]
        if row.beside.get("model") and "openai" not in name:
            row = replace(row, beside={n: v for n, v in row.beside.items() if n != "model"})
        texts = [world.fill(config) for config in without_and_with(key, row, base)]
        before, after = (world.answer(door, text, service) for text in texts)
        require_answer(before, row)
        unused = keys_without_effect(wrap_config(kind.model_validate_json(texts[1]), service))
        is_named = any(key in entry.keys for entry in unused)
        if is_named and after != before and after[0] != REFUSED:
            wrong[key] = "named, and changes something"
        if not is_named and (after == before) != ((known, key) in WITHOUT_EFFECT):
            wrong[key] = "is not named: see whether it changes something, and WITHOUT_EFFECT"
    return wrong


def wrap_config(config: JudgeConfig | PolicyConfig, service: str) -> Block:
    """Return a config that contains the judge or policy."""
    if isinstance(config, PolicyConfig):
        return BestOfNConfig(input="i", output=Path("o"), policy=config)
    if not service:
        return ScoreConfig(judge=config)
    return JudgedConfig.model_validate({"judge": config, "service": {"address": "http://x"}})


@pytest.mark.parametrize("kind", JUDGES)
def test_every_key_of_a_judge_changes_a_trainer_s_rewards_or_is_named(
    kind: str, world: World
) -> None:
    service = world.service if "running service" in kind else ""
    assert find_wrong_keys(world, JudgeConfig, kind, ask_trainer, service) == {}


@pytest.mark.parametrize("kind", POLICIES)
def test_every_key_of_a_policy_changes_its_samples_or_is_named(kind: str, world: World) -> None:
    assert find_wrong_keys(world, PolicyConfig, kind, sample_policy) == {}


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_the_configs_of_the_repository_use_all_their_keys(path: Path) -> None:
    assert keys_without_effect(load_config(kind_of(path), path)) == []


@pytest.mark.parametrize("door", DOORS)
def test_the_same_config_has_the_same_answer(door: str, world: World) -> None:
    """Else every key would seem to change something."""
    for kind in {row.kind for row in KEYS.values()}:
        text = world.fill(JUDGES[kind])
        assert world.answer(DOORS[door], text) == world._answer(DOORS[door], text), kind
