"""Where models come from: the built-in 135M ones, a folder, or the hub; and how they are named."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import yaml

from autoj_reward.config import EngineConfig, JudgeConfig, PolicyConfig, View
from autoj_reward.config.urls import without_secrets
from autoj_reward.errors import ModelError
from autoj_reward.formats.schema import JudgeFormat
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


def max_output_tokens(config: JudgeConfig, fmt: JudgeFormat) -> int:
    """Return how many tokens a judge writes at most, its thinking included."""
    if not config.critique:
        return CLOSING_TOKENS if fmt.thinking else 0
    return config.max_tokens + (config.thinking_tokens + CLOSING_TOKENS if fmt.thinking else 0)


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
