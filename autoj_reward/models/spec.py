"""Judge specification: a judge's config, resolved once where a process starts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from autoj_reward.config import JudgeConfig, View
from autoj_reward.formats.schema import JudgeFormat, ScalarFormat
from autoj_reward.models import (
    ResolvedModel,
    format_and_wrapper,
    format_of,
    frequency_penalty,
    ratings_tie,
    resolve,
)
from autoj_reward.models.fingerprint import fingerprint, scalar_fingerprint
from autoj_reward.models.views import entry_view


@dataclass(frozen=True)
class JudgeSpec:
    """Resolved judge config, with its model's entry and its format's files.

    Make one with `judge_spec`. The spec is sent to replicas with its format, so a replica reads no
    format files and can use a custom protocol. Each machine looks up the model itself.
    """

    config: JudgeConfig
    format: JudgeFormat | ScalarFormat
    """Loaded format."""
    wrapper: str
    """Name of the prompt wrapper; see `PromptTokenizer`."""
    ratings_tie: float | None
    """If set, responses are compared by ratings, and such a difference is a tie; see `Compare`."""
    preferred: View | None
    """View that the model's entry names."""

    @cached_property
    def model(self) -> ResolvedModel:
        """Model on this machine. A built-in model is built if necessary. Raises ModelError."""
        return resolve(self.config)

    @cached_property
    def name(self) -> str:
        """Fingerprint of the judge. Raises ModelError."""
        if isinstance(self.format, ScalarFormat):
            return scalar_fingerprint(self.config, self.format, self.model)
        return fingerprint(self.config, self.format, self.wrapper, self.model)

    @property
    def scale(self) -> tuple[float, float] | None:
        """Lowest and highest rating. None for a scalar reward model."""
        if isinstance(self.format, ScalarFormat):
            return None
        return self.format.scale.low, self.format.scale.high

    @property
    def critiques(self) -> int:
        """Return the number of critiques per response: always 1 for a scalar reward model."""
        return 1 if isinstance(self.format, ScalarFormat) else self.config.critiques

    @property
    def compares(self) -> bool:
        """Whether the judge can break a tie of ratings by comparing responses.

        A scalar reward model cannot: a comparison by equal scores is a tie again.
        """
        return isinstance(self.format, JudgeFormat) and self.format.pairwise is not None

    def with_config(self, **changes: Any) -> JudgeSpec:
        """Return the spec with changed engine settings. Format and model entry stay as they are."""
        return replace(self, config=self.config.model_copy(update=changes))

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def judge_spec(config: JudgeConfig) -> JudgeSpec:
    """Resolve a judge's config. Raises FormatError or ConfigError if it is invalid."""
    wrapper, fmt = format_and_wrapper(config)[1], format_of(config)
    tie, view = ratings_tie(config), entry_view(config)
    config = config.model_copy(update={"frequency_penalty": frequency_penalty(config)})
    return JudgeSpec(config, fmt, wrapper, tie, view)
