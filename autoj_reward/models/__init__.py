"""Where models come from: the built-in 135M ones, a folder, or the hub; and how they are named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import yaml

from autoj_reward.config import EngineConfig, JudgeConfig, PolicyConfig, View
from autoj_reward.config.urls import without_secrets
from autoj_reward.conversation import ContextColumn
from autoj_reward.errors import ConfigError, ModelError
from autoj_reward.formats.schema import JudgeFormat, ScalarFormat, load_any_format
from autoj_reward.models.device import device_here
from autoj_reward.models.identity import folder_identity, hub_commit

CRITERIA = "criteria"
"""The context field that `judge.criteria` fills."""
CLOSING_TOKENS = 16
"""Tokens that closing a thinking block by force may take."""
BUILT_IN = ("default", "default-scalar", "smollm2-135m-instruct")


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """path: folder or hub name to load. identity: what distinguishes these weights from others.
    device: `cuda` or `cpu`. revision: of a hub name, the commit to load."""

    path: str
    identity: str
    device: Literal["cpu", "cuda"]
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class KnownModel:
    """ratings_tie: set where the model compares by ratings: expected ratings at most so far apart
    tie. None where its own comparisons count. view: what orders responses to one query best, by
    the model's card; None where that was not measured. frequency_penalty: of its critiques."""

    name: str
    format: str
    wrapper: str
    about: str
    ratings_tie: float | None = None
    view: View | None = None
    frequency_penalty: float = 0.0


@lru_cache
def known_models() -> dict[str, KnownModel]:
    """The models this package knows by name."""
    data = yaml.safe_load((Path(__file__).parent / "judges.yaml").read_text(encoding="utf-8"))
    return {name: KnownModel(name, **entry) for name, entry in data.items()}


def format_and_wrapper(config: JudgeConfig) -> tuple[str, str]:
    """The judge format and wrapper of a config, `auto` resolved by model name."""
    known = known_models().get(config.model) or known_models()["default"]
    fmt = known.format if config.format == "auto" else config.format
    return fmt, known.wrapper if config.wrapper == "auto" else config.wrapper


def policy_wrapper(config: PolicyConfig) -> str:
    """The wrapper of a policy, `auto` resolved by model name."""
    if config.wrapper != "auto":
        return config.wrapper
    known = known_models().get(config.model)
    return known.wrapper if known else "chat"


def ratings_tie(config: JudgeConfig) -> float | None:
    """How close expected ratings tie, for a model that compares by ratings; None for others."""
    known = known_models().get(config.model) if config.kind == "vllm" else None
    return known.ratings_tie if known else None


def frequency_penalty(config: JudgeConfig) -> float:
    """The frequency penalty of a config's critiques, by the model's entry where it names none."""
    if config.frequency_penalty is not None:
        return config.frequency_penalty
    known = known_models().get(config.model) if config.kind == "vllm" else None
    return known.frequency_penalty if known else 0.0


def format_of(config: JudgeConfig) -> JudgeFormat | ScalarFormat:
    """The loaded format of a config: a generative judge's or a scalar reward model's. ConfigError
    for criteria that it would not show, and if critique and thinking leave the prompt no tokens."""
    fmt = load_any_format(format_and_wrapper(config)[0])
    if config.criteria and CRITERIA not in fmt.context():
        raise ConfigError(
            f"judge.criteria is {config.criteria}, and the judge's format {fmt.name} has no field "
            f"{CRITERIA!r} (it shows {sorted(fmt.context()) or 'no context fields'}): leave it "
            "out, or set judge.format to one that shows criteria, such as flow-judge"
        )
    if isinstance(fmt, JudgeFormat) and config.cuts_prompts:
        _require_prompt_tokens(config, fmt)
    return fmt


def max_output_tokens(config: JudgeConfig, fmt: JudgeFormat) -> int:
    """Return how many tokens a judge writes at most, its thinking included."""
    if not config.critique:
        return CLOSING_TOKENS if fmt.thinking else 0
    return config.max_tokens + (config.thinking_tokens + CLOSING_TOKENS if fmt.thinking else 0)


def _require_prompt_tokens(config: JudgeConfig, fmt: JudgeFormat) -> None:
    if max_output_tokens(config, fmt) < config.max_model_len:
        return
    thinking = f"thinking_tokens {config.thinking_tokens} and " if fmt.thinking else ""
    raise ConfigError(
        f"format {fmt.name}: {thinking}max_tokens {config.max_tokens} leave no room for the prompt "
        f"in max_model_len {config.max_model_len}: lower them, or raise max_model_len"
    )


def context_shown(config: JudgeConfig, kind: str | None = None) -> dict[str, bool]:
    """The context fields that a judge shows in a protocol, or in any, and whether an input must
    bring each."""
    filled = {CRITERIA} if config.criteria else set()
    shown = format_of(config).context(kind).items()
    return {name: required and name not in filled for name, required in shown}


def context_asked(
    config: JudgeConfig, columns: Mapping[str, str], kind: str | None = None
) -> tuple[ContextColumn, ...]:
    """The context fields that a judge shows in a protocol, or in any, and the columns they are in.

    columns: field to column, where a column has another name. ConfigError for a field that the
    judge does not show.
    """
    fmt = format_of(config)
    if unknown := sorted(set(columns) - set(fmt.context())):
        raise ConfigError(
            f"columns names {unknown[0]!r}, and the judge's format {fmt.name} shows "
            f"{sorted(fmt.context()) or 'no context fields'}: leave it out, or set judge.format"
        )
    fields = context_shown(config, kind).items()
    return tuple(
        ContextColumn(name, columns.get(name, name), required) for name, required in fields
    )


def resolve(config: EngineConfig) -> ResolvedModel:
    """Find or build the model of a config. Raises ModelError with the remedy.

    Built-in models are made once and kept in the user's cache, and go by the digest of what they
    are made of. A hub name stands for the commit that it has now, and is left to vLLM, which
    downloads it unless HF_HUB_OFFLINE is set.
    """
    if not config.on_replicas:
        words = f"{config.kind}:{without_secrets(config.base_url or '')}:{config.model}"
        if config.tokenizer:
            words += f":{_tokenizer_identity(config.tokenizer)}"
        return ResolvedModel(config.model, words, "cpu")
    device = device_here().kind
    if config.model in BUILT_IN:
        from autoj_reward.models.built_in import build_model

        folder = build_model(config.model)
        return ResolvedModel(str(folder), folder.name, device)
    folder = Path(config.model).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelError(f"{folder}: no config.json in the model folder")
        return ResolvedModel(str(folder), folder_identity(folder), device)
    if config.model.startswith((".", "/", "~")) or config.model.count("/") != 1:
        raise ModelError(
            f"no model {config.model!r}: name a folder, a hub model as owner/name, or one of "
            f"{', '.join(BUILT_IN)}"
        )
    commit = hub_commit(config.model, config.revision)
    return ResolvedModel(config.model, f"{config.model}@{commit}", device, commit)


def _tokenizer_identity(name: str) -> str:
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder_identity(folder)
    return f"{name}@{hub_commit(name, None, 'tokenizer_config.json')}"
