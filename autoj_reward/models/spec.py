"""Judge specification: a judge's config, resolved once where a process starts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from autoj_reward.config import (
    JudgeConfig,
    PanelJudge,
    RelativeConfig,
    RubricConfig,
    Scoring,
    TieBreak,
    View,
    ViewOrAuto,
)
from autoj_reward.conversation import Context, ContextColumn
from autoj_reward.errors import ConfigError
from autoj_reward.formats.protocols import Group
from autoj_reward.formats.schema import JudgeFormat, ScalarFormat, load_any_format
from autoj_reward.io.paths import ROW_FIELDS
from autoj_reward.models import (
    CRITERIA,
    ResolvedModel,
    format_and_wrapper,
    known_models,
    max_output_tokens,
    resolve,
)
from autoj_reward.models.facts import Asks, JudgeFacts
from autoj_reward.models.fingerprint import fingerprint, scalar_fingerprint
from autoj_reward.models.price import Spending, limit_spending
from autoj_reward.models.views import Abilities, Use, distributions_of, views_of
from autoj_reward.rubric_items import RUBRIC
from autoj_reward.types import CHECKLIST, GROUP, OF_DISTRIBUTION


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
    spending: Spending | None = field(default=None, compare=False)
    """Limit on what the run spends. Judges of one run share it."""
    judges_unanswered: bool = False
    """Whether the judge is asked about responses without an answer."""

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

    @cached_property
    def facts(self) -> JudgeFacts:
        """What the judge can do on an engine that tells every probability, as replicas do."""
        return self.facts_on(Abilities())

    def facts_on(self, abilities: Abilities) -> JudgeFacts:
        """Return what the judge can do on an engine with these abilities."""
        fmt = self.format
        views = views_of(self.config, fmt, abilities)
        distributions = distributions_of(self.config, fmt, abilities)
        rates_by_rubric = self.rates and RUBRIC in fmt.context("single")
        media = self.config.media
        if isinstance(fmt, ScalarFormat):
            # A scalar model compares by its scores, which breaks no tie between them.
            return JudgeFacts(
                views=views,
                distributions=distributions,
                compares=False,
                rates_by_rubric=rates_by_rubric,
                omits_media=media.omits,
            )
        group, checklist = fmt.protocols.get(GROUP), fmt.protocols.get(CHECKLIST)
        return JudgeFacts(
            views=views,
            preferred=self.preferred,
            scale=(fmt.scale.low, fmt.scale.high),
            distributions=distributions,
            compares=fmt.pairwise is not None,
            tie=self.ratings_tie,
            max_group=group.max_responses if isinstance(group, Group) else None,
            max_items=checklist.most_items if checklist else None,
            rates_by_rubric=rates_by_rubric,
            reads_media=media.reads,
            fetches_media=media.fetches,
            omits_media=media.omits,
        )

    @property
    def asks(self) -> Asks:
        """What this config asks of the judge. A scalar model gives one number and no critique."""
        asks = replace(Asks.of(self.config), judges_unanswered=self.judges_unanswered)
        if isinstance(self.format, ScalarFormat):
            return replace(asks, critiques=1, vote="mean")
        return asks

    @property
    def rates(self) -> bool:
        """Whether the judge rates a response alone; a scalar model does."""
        return not isinstance(self.format, JudgeFormat) or self.format.single is not None

    def context(self, kind: str | None = None) -> dict[str, bool]:
        """Return the context fields that the judge shows, and whether an input must have each.

        They are those of protocol `kind`, or of any protocol. `judge.criteria` fills one by itself.
        """
        filled = {CRITERIA} if self.config.criteria else set()
        fields = self.format.context(kind).items()
        return {name: required and name not in filled for name, required in fields}

    def shown_context(self, context: Context, kind: str) -> Context:
        """Return a context without the fields that the judge does not show.

        A judge rejects an input with such a field. kind: name of the protocol.
        """
        shown = self.context(kind)
        return Context({name: text for name, text in context.items() if name in shown})

    def context_columns(
        self,
        columns: Mapping[str, str],
        kind: str | None = None,
        rubric: RubricConfig | None = None,
    ) -> tuple[ContextColumn, ...]:
        """Return the context fields that the judge shows, with their columns.

        They are those of protocol `kind`, or of any protocol. `columns` maps a field to its column
        if the column has another name. With `rubric` the field of that name holds rubric items.
        Raises ConfigError for a field that the judge does not show.
        """
        fmt, items = self.format, {RUBRIC} if rubric else set()
        if unknown := sorted(set(columns) - set(fmt.context()) - items - set(ROW_FIELDS)):
            raise ConfigError(
                f"columns names {unknown[0]!r}, and the judge's format {fmt.name} shows "
                f"{sorted(fmt.context()) or 'no context fields'}: leave it out, or set judge.format"
            )
        fields = self.context(kind) | dict.fromkeys(items, False)
        return tuple(
            ContextColumn(name, columns.get(name, name), required, name in items)
            for name, required in fields.items()
        )

    def that_scores(self, scoring: Scoring, parent: str = "") -> JudgeSpec:
        """Return the spec with the readings turned on that this way of scoring needs.

        parent: keys before `relative` or `rubric` in a run file, such as `reward.`, for errors.
        Raises ConfigError if the judge cannot score this way, or if the file of rubric items
        cannot be read.
        """
        if isinstance(scoring, RelativeConfig):
            self.facts.require_relative(scoring, f"{parent}relative")
        else:
            self.facts.require_rubric(scoring, self.asks, f"{parent}rubric")
            scoring.load()
        return self.that_reads("expected", "reward")

    def that_reads(self, view: ViewOrAuto, use: Use, rules: Collection[TieBreak] = ()) -> JudgeSpec:
        """Return the spec with the readings turned on that the view and the tie-break rules need.

        The direct rating is read in addition to each critique if the view is `direct`. Some
        endpoints send probabilities only with the whole critique, hundreds of kB. They are
        requested only if the expected rating is needed.
        """
        needed_view = (self.preferred or "auto") if view == "auto" else view
        expected = needed_view in OF_DISTRIBUTION or (needed_view == "auto" and use == "reward")
        changes = {}
        if needed_view == "direct" and self.config.critique:
            changes["direct"] = True
        if self.config.distribution is None and (expected or "expected_rating" in rules):
            changes["distribution"] = True
        return self.with_config(**changes) if changes else self

    def limited(
        self, max_usd: float | None, panel: Mapping[str, PanelJudge] | None = None
    ) -> JudgeSpec:
        """Return the spec with a limit on what the run spends on this judge and those of a panel.

        Raises ConfigError without their prices.
        """
        judges = {"judge": self.config}
        for name, member in (panel or {}).items():
            judges[f"panel.{name}.judge"] = member.judge
        return replace(self, spending=limit_spending(max_usd, judges))

    def with_config(self, **changes: Any) -> JudgeSpec:
        """Return the spec with changed engine settings. Format and model entry stay as they are."""
        return replace(self, config=self.config.model_copy(update=changes))

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def join_context_columns(
    judges: Sequence[tuple[JudgeSpec, str | None]],
    columns: Mapping[str, str],
    rubric: RubricConfig | None = None,
) -> tuple[ContextColumn, ...]:
    """Return the context columns of several judges, each with the protocol that it is asked by.

    A column is required if any judge needs it. columns, rubric: as for
    `JudgeSpec.context_columns`. Raises ConfigError for a field that no judge shows.
    """
    if len(judges) == 1:
        [(judge, kind)] = judges
        return judge.context_columns(columns, kind, rubric)
    joined: dict[str, ContextColumn] = {}
    shown = {name for judge, _ in judges for name in judge.format.context()}
    if unknown := sorted(set(columns) - set(ROW_FIELDS) - shown):
        raise ConfigError(f"columns names {unknown[0]!r}, which no judge shows: leave it out")
    for judge, kind in judges:
        known = {*ROW_FIELDS, *judge.format.context()}
        own = {name: column for name, column in columns.items() if name in known}
        for column in judge.context_columns(own, kind, rubric):
            if column.required or column.field not in joined:
                joined[column.field] = column
    return tuple(joined.values())


def judge_spec(config: JudgeConfig) -> JudgeSpec:
    """Resolve a judge's config.

    Raises FormatError for an invalid format. Raises ConfigError if `criteria` are set and the
    format shows none, and if critique and thinking leave no tokens for the prompt.
    """
    name, wrapper = format_and_wrapper(config)
    fmt = load_any_format(name)
    _require_shown(config, fmt)
    if isinstance(fmt, JudgeFormat) and config.cuts_prompts:
        _require_prompt_tokens(config, fmt)
    if isinstance(fmt, JudgeFormat) and fmt.chat_template_kwargs:
        values = fmt.chat_template_kwargs | config.chat_template_kwargs
        config = config.model_copy(update={"chat_template_kwargs": values})
    entry = known_models().get(config.model) if config.kind == "vllm" else None
    if config.frequency_penalty is None:
        penalty = entry.frequency_penalty if entry else 0.0
        config = config.model_copy(update={"frequency_penalty": penalty})
    if entry is None:
        return JudgeSpec(config, fmt, wrapper, None, None)
    return JudgeSpec(config, fmt, wrapper, entry.ratings_tie, entry.view)


def spec_of(judge: JudgeConfig | JudgeSpec) -> JudgeSpec:
    """Return a spec as it is, or the spec of a config. Raises like `judge_spec`."""
    return judge if isinstance(judge, JudgeSpec) else judge_spec(judge)


def _require_shown(config: JudgeConfig, fmt: JudgeFormat | ScalarFormat) -> None:
    """Raise ConfigError if criteria are set and the format shows none."""
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
