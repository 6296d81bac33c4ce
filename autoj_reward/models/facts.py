"""Facts of a judge: what it can do, and how its numbers are read. Beside them, what a caller asks.

The facts belong to the judge, wherever it runs. The asks belong to the caller, also where a service
judges for it. A question is made from both, by one function for each kind of question.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, PlainSerializer, WithJsonSchema

from autoj_reward.config import JudgeConfig, RelativeConfig, RubricConfig, View, Vote
from autoj_reward.conversation import Shows
from autoj_reward.errors import ConfigError
from autoj_reward.media import MediaRules
from autoj_reward.models.views import VIEWS, Abilities
from autoj_reward.thinking import KNOWN_MARKS, Marks

Views = Annotated[frozenset[View], PlainSerializer(sorted, list[View])]
"""A set of views. As JSON it is a sorted list."""
Scale = Annotated[
    tuple[float, float],
    # FastAPI writes the items of a tuple in a form that OpenAPI 3.1 no longer has.
    WithJsonSchema({"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}),
]
"""Lowest and highest rating."""


class JudgeFacts(BaseModel):
    """What a judge can do, and how its numbers are read.

    An endpoint's are complete after its first contact: `views` and `distributions` depend on what
    it tells. Until then they are those of an engine that tells everything.
    """

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    views: Views = VIEWS
    """The views (`rating`, `expected`, `direct`) that the judge can give. Empty if it rates no
    single response."""
    preferred: View | None = None
    """The view that the model's entry in `judges.yaml` prefers; null if it names none."""
    scale: Scale | None = None
    """Lowest and highest rating; null for a scalar model's scores."""
    distributions: str = Abilities().about
    """Where label probabilities come from, or why there are none, in words."""
    compares: bool = True
    """Whether the judge compares two responses. A scalar model does not: equal scores stay
    equal."""
    tie: float | None = None
    """A number if this judge compares by ratings: two responses tie if their expected ratings right
    after the prompt differ by at most this. null for a judge that compares in one call."""
    max_group: int | None = None
    """Responses that one listwise judgement scores at most. null without a group protocol."""
    max_items: int | None = None
    """Rubric items that one judgement answers at most. null without a checklist protocol."""
    rates_by_rubric: bool = False
    """Whether a rating can show the items of a rubric, which scores the whole rubric at once."""
    reads_media: bool = False
    """Whether the judge reads pictures, sound and files whose content stands in the message."""
    fetches_media: bool = False
    """Whether it also reads those that stand at an address."""
    omits_media: bool = False
    """Whether it reads a mark in place of others. Else it rejects their input."""

    @property
    def media(self) -> MediaRules:
        """Which media the judge is sent."""
        return MediaRules(self.reads_media, self.fetches_media, self.omits_media)

    @property
    def default_relative(self) -> RelativeConfig:
        """How a group is ranked if nothing is configured.

        It is listwise if the judge's format has a group protocol, else by comparisons.
        """
        return RelativeConfig(by="comparisons" if self.max_group is None else "listwise")

    @property
    def default_rubric(self) -> RubricConfig:
        """How a rubric is scored if nothing is configured.

        Items are judged one at a time, or together if the format is made for that, or overall if it
        has no checklist protocol.
        """
        if self.max_items is None:
            return RubricConfig(by="overall")
        return RubricConfig(by="items" if self.max_items == 1 else "checklist")

    def require_relative(self, relative: RelativeConfig, key: str = "relative") -> None:
        """Raise ConfigError naming `key` if the judge cannot rank groups this way."""
        if relative.by == "listwise" and self.max_group is None:
            raise ConfigError(
                f"{key}.by is listwise, and the judge's format has no group protocol: set "
                "judge.format to one that has, such as listwise or listwise-brief, or set "
                f"{key}.by to comparisons"
            )
        if relative.by == "comparisons" and not self.compares:
            raise ConfigError(
                f"{key}.by is comparisons, and the judge's format has no pairwise protocol: set "
                f"judge.format to one that has, such as general, or set {key}.by to listwise"
            )

    def require_rubric(self, rubric: RubricConfig, asks: Asks, key: str = "rubric") -> None:
        """Raise ConfigError naming `key` if the judge cannot score rubrics this way."""
        if rubric.by == "overall":
            if not self.rates_by_rubric:
                raise ConfigError(
                    f"{key}.by is overall, and the judge's format rates without a field 'rubric': "
                    "set judge.format to one that shows it, such as rubric-overall"
                )
        elif self.max_items is None:
            raise ConfigError(
                f"{key}.by is {rubric.by}, and the judge's format has no checklist protocol: set "
                "judge.format to one that has, such as rubric-item or rubric-checklist"
            )
        elif asks.critiques > 1:
            raise ConfigError(
                f"{key}.by is {rubric.by}, which takes one critique, and judge.critiques is "
                f"{asks.critiques}: leave it out, or set {key}.by to overall"
            )


class JudgeDescription(JudgeFacts):
    """Description that a service gives of itself (GET /v1/judge)."""

    judge: str
    """Fingerprint of the judge: it identifies model, format and decoding."""
    in_flight: int | None = None
    """Judge inputs that the service processes at a time. Further ones wait."""


@dataclass(frozen=True, slots=True)
class Asks:
    """What a caller wants of a judge, mostly the keys of `JudgeConfig` of these names."""

    critiques: int = 1
    """Critiques sampled of each response."""
    vote: Vote = "mean"
    """How the numbers of a response's critiques make one."""
    shows: Shows | None = None
    """What the judge reads of a response of several turns."""
    shows_thinking: bool = False
    """Whether the judge reads the policy's thinking."""
    thinking_marks: tuple[Marks, ...] = KNOWN_MARKS
    """Marks around the policy's thinking."""
    judges_unanswered: bool = False
    """Whether the judge is asked about a response without an answer. No key of a judge: rewards
    set it."""

    @classmethod
    def of(cls, config: JudgeConfig) -> Asks:
        """Return what a judge's config asks."""
        marks = config.thinking_marks
        return cls(
            config.critiques,
            config.vote,
            config.shows,
            config.shows_thinking,
            KNOWN_MARKS if marks is None else tuple(Marks(*pair) for pair in marks.items()),
        )
