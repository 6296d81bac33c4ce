"""What a judge's config means, resolved once where a command, a trainer or a service starts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from autoj_reward.config import JudgeConfig, TieBreak, View, ViewOrAuto
from autoj_reward.conversation import ContextColumn
from autoj_reward.errors import ConfigError
from autoj_reward.formats.schema import JudgeFormat, ScalarFormat, load_any_format
from autoj_reward.models import (
    CRITERIA,
    ResolvedModel,
    format_and_wrapper,
    known_models,
    max_output_tokens,
    resolve,
)
from autoj_reward.models.fingerprint import fingerprint, scalar_fingerprint
from autoj_reward.models.views import Use


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

    def context(self, kind: str | None = None) -> dict[str, bool]:
        """Return the context fields that the judge shows in a protocol, or in any, and whether an
        input must bring each; `judge.criteria` brings its own."""
        filled = {CRITERIA} if self.config.criteria else set()
        shown = self.format.context(kind).items()
        return {name: required and name not in filled for name, required in shown}

    def context_columns(
        self, columns: Mapping[str, str], kind: str | None = None
    ) -> tuple[ContextColumn, ...]:
        """Return the context fields that the judge shows in a protocol, or in any, each with the
        column that holds it.

        columns: field to column, where a column has another name. ConfigError for a field that the
        judge does not show.
        """
        fmt = self.format
        if unknown := sorted(set(columns) - set(fmt.context())):
            raise ConfigError(
                f"columns names {unknown[0]!r}, and the judge's format {fmt.name} shows "
                f"{sorted(fmt.context()) or 'no context fields'}: leave it out, or set judge.format"
            )
        return tuple(
            ContextColumn(name, columns.get(name, name), required)
            for name, required in self.context(kind).items()
        )

    def that_reads(self, view: ViewOrAuto, use: Use, rules: Collection[TieBreak] = ()) -> JudgeSpec:
        """Return the judge that reads what the view, and the rules among equals, need.

        A rating right after the prompt is read beside each critique where it counts; an endpoint
        that sends probabilities with the critique alone, hundreds of kB of them, sends them where
        the expected rating counts.
        """
        wanted = (self.preferred or "auto") if view == "auto" else view
        expected = wanted == "expected" or (wanted == "auto" and use == "reward")
        changes = {}
        if wanted == "direct" and self.config.critique:
            changes["direct"] = True
        if self.config.distribution is None and (expected or "expected_rating" in rules):
            changes["distribution"] = True
        return self.with_config(**changes) if changes else self

    def with_config(self, **changes: Any) -> JudgeSpec:
        """Return the spec with other settings of its engine, which leave format and entry alone."""
        return replace(self, config=self.config.model_copy(update=changes))

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def judge_spec(config: JudgeConfig) -> JudgeSpec:
    """Resolve a judge's config. Raises FormatError and ConfigError for what cannot be."""
    name, wrapper = format_and_wrapper(config)
    fmt = load_any_format(name)
    _require_shown(config, fmt)
    if isinstance(fmt, JudgeFormat) and config.cuts_prompts:
        _require_prompt_tokens(config, fmt)
    entry = known_models().get(config.model) if config.kind == "vllm" else None
    if config.frequency_penalty is None:
        penalty = entry.frequency_penalty if entry else 0.0
        config = config.model_copy(update={"frequency_penalty": penalty})
    if entry is None:
        return JudgeSpec(config, fmt, wrapper, None, None)
    return JudgeSpec(config, fmt, wrapper, entry.ratings_tie, entry.view)


def spec_of(judge: JudgeConfig | JudgeSpec) -> JudgeSpec:
    """Return a spec as it is, and that of a config. Raises as `judge_spec` does."""
    return judge if isinstance(judge, JudgeSpec) else judge_spec(judge)


def _require_shown(config: JudgeConfig, fmt: JudgeFormat | ScalarFormat) -> None:
    """Raise ConfigError for criteria that the format would not show."""
    if config.criteria and CRITERIA not in fmt.context():
        raise ConfigError(
            f"judge.criteria is {config.criteria}, and the judge's format {fmt.name} has no field "
            f"{CRITERIA!r} (it shows {sorted(fmt.context()) or 'no context fields'}): leave it "
            "out, or set judge.format to one that shows criteria, such as flow-judge"
        )


def _require_prompt_tokens(config: JudgeConfig, fmt: JudgeFormat) -> None:
    if max_output_tokens(config, fmt) < config.max_model_len:
        return
    thinking = f"thinking_tokens {config.thinking_tokens} and " if fmt.thinking else ""
    raise ConfigError(
        f"format {fmt.name}: {thinking}max_tokens {config.max_tokens} leave no room for the prompt "
        f"in max_model_len {config.max_model_len}: lower them, or raise max_model_len"
    )
