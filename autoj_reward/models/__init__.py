"""Model lookup: built-in models, folders, hub names and the settings of known models."""

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
from autoj_reward.models.device import detect_device
from autoj_reward.models.identity import folder_identity, hub_commit

CRITERIA = "criteria"
"""Context field that `judge.criteria` fills."""
CHAT_FORMAT = "general"
"""Format of a chat model that is no trained judge."""
CLOSING_TOKENS = 16
"""Maximum number of tokens to close a thinking block by force."""
BUILT_IN = ("default", "default-scalar", "smollm2-135m-instruct")
"""Names of the models that need no hub."""


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """Model found for a config, ready to load."""

    path: str
    """Folder or hub name to load."""
    identity: str
    """Text that differs between any two sets of weights."""
    device: Literal["cpu", "cuda"]
    """Device that the engine runs on."""
    revision: str | None = None
    """Commit to load, if `path` is a hub name."""


@dataclass(frozen=True, slots=True)
class KnownModel:
    """Entry of `judges.yaml`: a model's format, wrapper and settings."""

    name: str
    format: str
    """Name of its judge format."""
    wrapper: str
    """Name of its prompt wrapper; see `PromptTokenizer`."""
    about: str
    """One line of description."""
    ratings_tie: float | None = None
    """Largest difference of expected ratings that counts as a tie.

    It is set if the model compares responses by ratings. None if its own comparisons count.
    """
    view: View | None = None
    """View that orders responses to one query best, by the model's card. None if not measured."""
    frequency_penalty: float = 0.0
    """Frequency penalty for its critiques."""


@lru_cache
def known_models() -> dict[str, KnownModel]:
    """Return the models that this package knows, by name."""
    data = yaml.safe_load((Path(__file__).parent / "judges.yaml").read_text(encoding="utf-8"))
    return {name: KnownModel(name, **entry) for name, entry in data.items()}


def format_and_wrapper(config: JudgeConfig) -> tuple[str, str]:
    """Return the judge format and wrapper of a config. `auto` is replaced by the model's entry.

    A model without an entry gets the default judge's wrapper and format, and one at an endpoint,
    which is some chat model, the format for those.
    """
    entry = known_models().get(config.model)
    default = known_models()["default"]
    fmt = (entry or default).format
    if config.format != "auto":
        fmt = config.format
    elif entry is None and config.kind == "openai":
        fmt = CHAT_FORMAT
    return fmt, (entry or default).wrapper if config.wrapper == "auto" else config.wrapper


def policy_wrapper(config: PolicyConfig) -> str:
    """Return the wrapper of a policy.

    `auto` is replaced by the model's entry, or `chat` without one.
    """
    if config.wrapper != "auto":
        return config.wrapper
    entry = known_models().get(config.model)
    return entry.wrapper if entry else "chat"


def max_output_tokens(config: JudgeConfig, fmt: JudgeFormat) -> int:
    """Return the maximum number of tokens that a judge generates, thinking included."""
    if not config.critique:
        return CLOSING_TOKENS if fmt.thinking else 0
    return config.max_tokens + (config.thinking_tokens + CLOSING_TOKENS if fmt.thinking else 0)


def resolve(config: EngineConfig) -> ResolvedModel:
    """Find or build the model of a config.

    A built-in model is made once and kept in the user's cache. Its identity is the digest of the
    files it is made from. A hub name stands for the commit that it has now; vLLM downloads the
    model unless HF_HUB_OFFLINE is set. Raises ModelError that says what to do.
    """
    if not config.on_replicas:
        words = f"{config.kind}:{without_secrets(config.base_url or '')}:{config.model}"
        if config.tokenizer:
            words += f":{_identify_tokenizer(config.tokenizer)}"
        return ResolvedModel(config.model, words, "cpu")
    device = detect_device().kind
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


def _identify_tokenizer(name: str) -> str:
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder_identity(folder)
    return f"{name}@{hub_commit(name, None, 'tokenizer_config.json')}"
