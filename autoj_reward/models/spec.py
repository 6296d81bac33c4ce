"""What a judge's config means, resolved once where a command, a trainer or a service starts."""

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
    """A judge as its config, its model's entry and its format's files define it. Make one with
    `judge_spec`.

    It travels to replicas as it is, its format with it: a replica reads no file of the format, and
    knows protocols that it has never heard of. Where the model lies, each machine finds itself.

    wrapper: how prompts become the model's input. ratings_tie: with a number, two responses are
    compared by their ratings; see `Compare`. preferred: the view that the model's entry names.
    """

    config: JudgeConfig
    format: JudgeFormat | ScalarFormat
    wrapper: str
    ratings_tie: float | None
    preferred: View | None

    @cached_property
    def model(self) -> ResolvedModel:
        """Where the model is on this machine; a built-in one is built. Raises ModelError."""
        return resolve(self.config)

    @cached_property
    def name(self) -> str:
        """The judge's fingerprint. Raises ModelError."""
        if isinstance(self.format, ScalarFormat):
            return scalar_fingerprint(self.config, self.format, self.model)
        return fingerprint(self.config, self.format, self.wrapper, self.model)

    @property
    def scale(self) -> tuple[float, float] | None:
        """The lowest and the highest rating; None for a scalar model's scores."""
        if isinstance(self.format, ScalarFormat):
            return None
        return self.format.scale.low, self.format.scale.high

    @property
    def critiques(self) -> int:
        """How many critiques of a response are asked for; a scalar model says one thing."""
        return 1 if isinstance(self.format, ScalarFormat) else self.config.critiques

    @property
    def compares(self) -> bool:
        """Whether the judge can break a tie of ratings by comparing; equal scores of a scalar model
        stay equal when it does."""
        return isinstance(self.format, JudgeFormat) and self.format.pairwise is not None

    def with_config(self, **changes: Any) -> JudgeSpec:
        """Return the spec with other settings of its engine, which leave format and entry alone."""
        return replace(self, config=self.config.model_copy(update=changes))

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def judge_spec(config: JudgeConfig) -> JudgeSpec:
    """Resolve a judge's config. Raises FormatError and ConfigError for what cannot be."""
    wrapper, fmt = format_and_wrapper(config)[1], format_of(config)
    tie, view = ratings_tie(config), entry_view(config)
    config = config.model_copy(update={"frequency_penalty": frequency_penalty(config)})
    return JudgeSpec(config, fmt, wrapper, tie, view)
