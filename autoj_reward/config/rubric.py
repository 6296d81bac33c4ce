"""Config block of a reward by rubric items."""

from __future__ import annotations

import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Literal

from pydantic import model_validator

from autoj_reward.config.load import Block, read_yaml
from autoj_reward.errors import ConfigError
from autoj_reward.rubric_items import BadRubric, RubricItem, read_items


class GateConfig(Block):
    """Cap on the score of a response that fails an item of a kind."""

    kind: Literal["essential", "important", "optional", "pitfall"] = "essential"
    """Items that may not be failed. An item with negative points is failed if it holds. A response
    abstains if one of them has no verdict and none is failed."""
    cap: float = 0.0
    """Highest score of a response that fails one of them."""


class RubricConfig(Block):
    """How a response is scored by the items of a rubric."""

    by: Literal["items", "checklist", "overall"]
    """`items`: one judgement for each item. `checklist`: one judgement with a verdict on each.
    Both need a format with a `checklist` protocol, such as `rubric-item` and `rubric-checklist`.
    `overall`: one rating that weighs all items; needs a format that shows `rubric`, such as
    `rubric-overall`."""
    items: Path | None = None
    """YAML or TOML file with a list `items`, for rows that bring no items. null: rows without items
    abstain."""
    hard: bool = False
    """Whether an item counts by the judge's verdict. false counts it by the verdict's probability,
    where the engine gives it."""
    clip: bool = True
    """Whether the score is clipped to 0 to 1. Pitfalls can make it negative."""
    gate: GateConfig | None = None
    """Cap on the score of a response that fails an item of a kind. null: none."""
    seed: int = 0
    """Seed of the order in which a checklist or an overall rating shows the items."""

    def load(self) -> tuple[RubricItem, ...]:
        """Return the items of the file `items`, read once per process. Raises ConfigError."""
        return () if self.items is None else load_items(self.items)

    @property
    def protocol(self) -> str:
        """The protocol that judges the items."""
        return "single" if self.by == "overall" else "checklist"

    @model_validator(mode="after")
    def _check_overall(self) -> RubricConfig:
        if self.by == "overall" and self.gate:
            raise ValueError("by is overall, which has no verdict on an item: leave gate out")
        if self.by == "overall" and not self.clip:
            raise ValueError("by is overall, whose scores are from 0 to 1 anyway: leave clip out")
        return self


@lru_cache(maxsize=16)
def load_items(path: Path) -> tuple[RubricItem, ...]:
    """Return the rubric items of a YAML or TOML file, under its key `items`.

    Raises ConfigError that names the file and the item.
    """
    try:
        if path.suffix == ".toml":
            data = tomllib.loads(path.read_text(encoding="utf-8"))
        else:
            data = read_yaml(path)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"rubric.items: {path} cannot be read: {error}") from error
    items = data.get("items") if isinstance(data, dict) else data
    try:
        return read_items(items)
    except BadRubric as error:
        raise ConfigError(f"rubric.items: {path}: {error}") from error
