"""Every config key of every kind of judge and policy has an effect, or is named as unused."""

from __future__ import annotations

import json
from collections.abc import Iterator
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
from tests.models.observing import REFUSED, World, write_thinking_format
from tests.reference_format import REFERENCE, write_reference_format
from tests.test_config import OURS, kind_of

ENDPOINT = {"kind": "openai", "model": "served", "format": "autoj-en", "base_url": "{url}/v1"}
JUDGES: dict[str, dict[str, Any]] = {
    "vllm": {"kind": "vllm", "model": "owner/judge", "format": "autoj-en"},
    "vllm, scalar": {"kind": "vllm", "model": "owner/judge", "format": "scalar"},
    "transformers": {"kind": "transformers", "model": "owner/judge", "format": "scalar"},
    "openai": ENDPOINT,
    "openai, tokenizer": ENDPOINT | {"tokenizer": "{tokenizer}"},
    "fake": {
        **{"kind": "fake", "model": "owner/judge", "format": "autoj-en"},
        "script": {"thinking": "one two three"},
    },
    "fake, scalar": {"kind": "fake", "model": "owner/judge", "format": "scalar"},
    "service": {"kind": "vllm", "model": "owner/judge"},
    "service, scalar": {"kind": "vllm", "model": "default-scalar"},
}
POLICIES: dict[str, dict[str, Any]] = {
    "vllm": {"kind": "vllm", "model": "owner/policy"},
    "fake": {"kind": "fake", "model": "owner/policy"},
}
VALUES: dict[str, Any] = {
    "kind": "fake",
    "model": "flowaicom/Flow-Judge-v0.1",
    "revision": "v2",
    "dtype": "bfloat16",
    "quantization": "fp8",
    "max_model_len": 1200,
    "tensor_parallel": 2,
    "gpu_memory_utilization": 0.5,
    "kv_cache_gib": 3,
    "max_sequences": 8,
    "max_batched_tokens": 5000,
    "trust_remote_code": True,
    "base_url": "{url}/other",
    "api_key_env": "ANOTHER_KEY",
    "api_key_file": "{key file}",
    "api_key_command": "echo sk-3",
    "extra_headers": {"X-Of": "team"},
    "extra_body": {"reasoning_effort": "low"},
    "chat_template_kwargs": {"greeting": "Hello"},
    "start_s": 3,
    "requests_per_minute": 60,
    "tokens_per_minute": 60_000,
    "tokenizer": "{other tokenizer}",
    "script": {"words": 3},
    "price": {"in": 1000, "out": 2000},
    "format": "flow-judge",
    "wrapper": "vicuna",
    "critique": False,
    "direct": True,
    "distribution": False,
    "critiques": 4,
    "vote": "median",
    "temperature": 0.7,
    "top_p": 0.5,
    "frequency_penalty": 0.5,
    "max_tokens": 4000,
    "thinking_tokens": 2,
    "seed": 7,
    "attempts": 3,
    "criteria": "auto",
    "max_text_chars": 1000,
    "over_long": "reject",
    "shows": "trajectory",
    "shows_thinking": True,
    "thinking_marks": {"<a>": "</a>"},
    "trace": True,
    "n": 3,
    "system": "Be brief.",
    "serve.replicas": 3,
    "serve.max_replicas": 5,
    "serve.num_gpus": 0.5,
    "serve.num_cpus": 3,
    "serve.max_ongoing": 5,
    "serve.deadline_s": 60,
}
"""For every key another value than its default. A new key needs one here."""
BESIDE: dict[str, dict[str, Any]] = {
    "critiques": {"temperature": 0.7},
    "vote": {"critiques": 4, "temperature": 0.7},
    "top_p": {"temperature": 0.7},
    "seed": {"temperature": 0.7},
    "attempts": {"temperature": 0.7, "distribution": False},
    "serve.max_replicas": {"serve": {"replicas": 2}},
}
"""What a key needs beside it to count at all."""
FORMATS = {"thinking_tokens": "{thinks}", "criteria": "{criteria}"}
"""The format that a key needs, of a judge that writes."""
FIELDS = REFERENCE["single"]["fields"] | {"reference": "criteria"}
NEEDS_CRITERIA = REFERENCE | {"single": REFERENCE["single"] | {"fields": FIELDS}}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setenv("ANOTHER_KEY", "sk-1")
    stand_ins = World(tmp_path, monkeypatch)
    yield stand_ins
    stand_ins.close()


@pytest.fixture
def names(world: World, tmp_path: Path) -> dict[str, str]:
    """Return the values of the names in braces."""
    for name in ("one", "two"):
        world.tokenizer.save_pretrained(tmp_path / name)
    key_file = tmp_path / "key"
    key_file.write_text("sk-2\n", encoding="utf-8")
    return {
        "{url}": world.endpoint.url.removesuffix("/v1"),
        "{tokenizer}": str(tmp_path / "one"),
        "{other tokenizer}": str(tmp_path / "two"),
        "{key file}": str(key_file),
        "{criteria}": str(write_reference_format(tmp_path / "criteria", NEEDS_CRITERIA)),
        "{thinks}": str(write_thinking_format(tmp_path)),
    }


def fill_names(data: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    text = json.dumps(data)
    for name, real in names.items():
        text = text.replace(name, real)
    real_data: dict[str, Any] = json.loads(text)
    return real_data


def list_keys(kind: type[Block], start: str = "") -> Iterator[str]:
    """Yield the path of every key of a block and of the blocks in it."""
    for name, field in kind.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Block):
            yield from list_keys(field.annotation, f"{name}.")
        else:
            yield start + name


def add_key(data: dict[str, Any], key: str) -> dict[str, Any]:
    block, _, name = key.rpartition(".")
    if block:
        return data | {block: data.get(block, {}) | {name: VALUES[key]}}
    if key == "kind" and data["kind"] == VALUES["kind"]:
        return data | {"kind": "vllm"}
    return data | {key: VALUES[key]}


def make_judge_data(key: str, kind: str) -> dict[str, Any]:
    data = JUDGES[kind] | BESIDE.get(key, {})
    return data | {"format": FORMATS[key]} if key in FORMATS and "scalar" not in str(data) else data


def find_wrong_keys(
    world: World,
    names: dict[str, str],
    kind: type[JudgeConfig | PolicyConfig],
    about: dict[str, dict[str, Any]],
    by_service: bool = False,
) -> dict[str, str]:
    """Return keys without effect that are not named, and keys with an effect that are.

    `about` holds the config without the key, for each key. `by_service` says whether a running
    service answers.
    """
    wrong = {}
    observe = cache(lambda text: world.observe(kind.model_validate_json(text), by_service))
    for key, data in about.items():
        texts = [json.dumps(fill_names(entry, names)) for entry in (data, add_key(data, key))]
        before, after = map(observe, texts)
        assert before[0] != REFUSED, f"{key}: {before}"
        unused = keys_without_effect(wrap_config(kind.model_validate_json(texts[1]), by_service))
        is_named = any(key in entry.keys for entry in unused)
        if is_named and after != before and after[0] != REFUSED:
            wrong[key] = "named, and changes something"
        if not is_named and after == before:
            wrong[key] = "changes nothing, and is not named"
    return wrong


def wrap_config(config: JudgeConfig | PolicyConfig, by_service: bool) -> Block:
    """Return a config that contains the judge or policy."""
    if isinstance(config, PolicyConfig):
        return BestOfNConfig(input="i", output=Path("o"), policy=config)
    if not by_service:
        return ScoreConfig(judge=config)
    return JudgedConfig.model_validate({"judge": config, "service": {"address": "http://x"}})


@pytest.mark.parametrize("kind", JUDGES)
def test_every_key_of_a_judge_changes_something_or_is_named(
    kind: str, world: World, names: dict[str, str]
) -> None:
    about = {key: make_judge_data(key, kind) for key in list_keys(JudgeConfig)}
    assert find_wrong_keys(world, names, JudgeConfig, about, "service" in kind) == {}


@pytest.mark.parametrize("kind", POLICIES)
def test_every_key_of_a_policy_changes_something_or_is_named(
    kind: str, world: World, names: dict[str, str]
) -> None:
    about = {key: POLICIES[kind] | BESIDE.get(key, {}) for key in list_keys(PolicyConfig)}
    assert find_wrong_keys(world, names, PolicyConfig, about) == {}


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_the_configs_of_the_repository_use_all_their_keys(path: Path) -> None:
    assert keys_without_effect(load_config(kind_of(path), path)) == []
