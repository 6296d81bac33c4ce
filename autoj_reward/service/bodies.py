"""Request bodies with their limits, answers and errors of the HTTP API."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi.exceptions import RequestValidationError
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    PlainValidator,
    PrivateAttr,
    WithJsonSchema,
    model_validator,
)

from autoj_reward.config import RelativeConfig, RubricConfig, TieBreak, ViewOrAuto
from autoj_reward.conversation import (
    EMPTY_CONTEXT,
    MAX_TURNS,
    NAME,
    RESERVED_NAMES,
    Context,
    Prompt,
    Response,
    before_response,
)
from autoj_reward.errors import BadMessages
from autoj_reward.logs import REQUEST_ID
from autoj_reward.questions.rank import Order, PairScore
from autoj_reward.rubric_items import KIND_POINTS, MAX_POINTS, BadRubric, RubricItem, read_items
from autoj_reward.types import Outcome, Reading, Selection, Usage, Verdict

MAX_INPUTS = 1024
"""Limit on the judge inputs of one request. Each critique of a candidate, each order of a pair and
each comparison that breaks a tie counts."""

MAX_RESPONSES = 64
"""Limit on the responses of one judge input."""


def require_inputs(count: int, field: str) -> None:
    """Raise RequestValidationError if a request would cost more than MAX_INPUTS judge inputs.

    field: the field of the body that the error names.
    """
    if count > MAX_INPUTS:
        message = f"{count} judge inputs: a request may cost {MAX_INPUTS}"
        raise RequestValidationError([{"type": "too_long", "loc": ("body", field), "msg": message}])


def _require_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a text is a string")
    return value


# Any string is valid here: a text that cannot be judged fails its own input, not the request.
Text = Annotated[str, PlainValidator(_require_text), WithJsonSchema({"type": "string"})]


def _read_context(value: Any) -> Context:
    if not isinstance(value, dict):
        raise ValueError("a context is an object of texts by name")
    return Context({name: _require_text(text) for name, text in value.items()})


ContextField = Annotated[
    Context,
    PlainValidator(_read_context),
    WithJsonSchema(
        {
            "type": "object",
            "propertyNames": {
                "pattern": f"^{NAME.pattern}$",
                "not": {"pattern": f"^{RESERVED_NAMES.pattern}$"},
            },
            "additionalProperties": {"type": "string"},
            "default": {},
        }
    ),
]
"""Named texts that the judge's format shows with query and responses."""


def _read_rubric(value: Any) -> tuple[RubricItem, ...]:
    try:
        return read_items(value) if value else ()
    except BadRubric as error:
        raise ValueError(str(error)) from error


RubricField = Annotated[
    tuple[RubricItem, ...],
    PlainValidator(_read_rubric),
    WithJsonSchema(
        {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["criterion"],
                "properties": {
                    "criterion": {"type": "string"},
                    "points": {
                        "type": "number",
                        "default": 1,
                        "minimum": -MAX_POINTS,
                        "maximum": MAX_POINTS,
                    },
                    "kind": {"enum": [*KIND_POINTS]},
                    "choices": {"type": "object", "additionalProperties": {"type": "number"}},
                    "tags": {"type": "array", "items": {"type": "string"}},
                },
            },
            "default": [],
        }
    ),
]
"""Rubric items."""


DESCRIBED = ConfigDict(use_attribute_docstrings=True)
"""Pydantic setting that takes the docstrings of fields into the OpenAPI document."""


class Body(BaseModel):
    """Base class of request bodies: unknown fields are errors, and values are not converted."""

    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)


class MessagePart(BaseModel):
    """A part of a message's content. Text is read. A judge that reads pictures, sound and files
    gets those unchanged; for others `judge.shows_media` decides. Parts of thinking, refusals and
    tools are left out."""

    model_config = DESCRIBED | ConfigDict(extra="allow")

    type: Text
    """Type of the part; `text` for text."""
    text: Text = ""
    """Text of a text part."""


class ChatMessage(BaseModel):
    """One message of a conversation. Of other keys only those of pictures, sound and files are read
    (`images`, `audio`, ...); they stand at the beginning of its text."""

    model_config = DESCRIBED | ConfigDict(extra="allow")

    role: Text
    """Role of the speaker, such as `user` or `assistant`."""
    content: Text | list[MessagePart] | None = None
    """Text, or parts."""
    tool_calls: list[dict[str, Any]] | None = None
    """Tool calls in the form of chat completions."""
    function_call: dict[str, Any] | None = None
    """The one call of older chat completions."""


ChatMessages = Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_TURNS)]
"""The messages of a conversation."""


def _read_response(value: Any) -> Response:
    if isinstance(value, str):
        return Response(value)
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_TURNS:
        raise ValueError(f"a response is a string, or 1 to {MAX_TURNS} messages")
    try:
        return Response.of(value)
    except BadMessages as error:
        raise ValueError(str(error)) from None


ResponseField = Annotated[
    Response, PlainValidator(_read_response, json_schema_input_type=Text | ChatMessages)
]
"""A response: a text, or messages of the assistant and of tools."""


class PromptFields(Body):
    """The prompt of a response: either a query, or the messages before the response."""

    query: Text = ""
    """The prompt as text."""
    messages: ChatMessages | None = None
    """The prompt as a conversation."""
    context: ContextField = EMPTY_CONTEXT
    """Named texts that the judge's format shows, such as a reference answer."""
    _prompt: Prompt | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _require_one_prompt(self) -> PromptFields:
        if (self.messages is None) != ("query" in self.model_fields_set):
            raise ValueError("give either query or messages")
        if self.messages is not None:
            try:
                messages = [message.model_dump(exclude_unset=True) for message in self.messages]
                self._prompt = self._read_prompt(messages)
            except BadMessages as error:
                raise ValueError(str(error)) from None
        return self

    @staticmethod
    def _read_prompt(messages: list[dict[str, Any]]) -> Prompt:
        return before_response(messages, answered=True)[0]

    @property
    def prompt(self) -> Prompt:
        """The query, or the conversation."""
        return self._prompt or Prompt(self.query)


class JudgeItem(PromptFields):
    """One judge input. The roles of its messages may be in any order."""

    protocol: str = "single"
    """A protocol of the judge's format: `single` rates one response, `pairwise` compares two in
    this order."""
    responses: list[ResponseField] = Field(min_length=1, max_length=MAX_RESPONSES)
    """The responses that the protocol lays out. Of messages the judge sees every turn."""
    sample: int = Field(0, ge=0, le=2**31 - 1)
    """Index of this critique among several of the same input."""
    direct: bool = False
    """Read only the rating right after the prompt."""
    items: RubricField = ()
    """Rubric items to judge, for the protocol `checklist`."""

    @staticmethod
    def _read_prompt(messages: list[dict[str, Any]]) -> Prompt:
        return Prompt.of(messages)


class JudgeBody(Body):
    """Body of POST /v1/judge."""

    items: list[JudgeItem] = Field(min_length=1, max_length=MAX_INPUTS)
    """Inputs to judge."""


class ScoreItem(PromptFields):
    """One response to one prompt."""

    response: ResponseField
    """The response to rate. Of messages the judge reads what the service's `judge.shows` says, by
    default every turn."""
    rubric: RubricField = ()
    """Items of a rubric to score the response by."""


class ScoreBody(Body):
    """Body of POST /v1/score."""

    candidates: list[ScoreItem] = Field(min_length=1, max_length=MAX_INPUTS)
    """Responses to rate. Identical ones are judged once."""
    group_id: Annotated[str, Field(max_length=200)] | None = None
    """Group to which these responses belong, if they are to be judged together with others that
    come in other requests. An id is used for one group of a run (`X-Run`) only."""
    group_size: int | None = Field(None, ge=2, le=MAX_RESPONSES)
    """Number of responses in the whole group. The answer waits for them, for half of the request's
    deadline at most."""
    relative: RelativeConfig | None = None
    """How the group is judged; see POST /v1/rank."""
    rubric: RubricConfig | None = None
    """How rubric items are judged, as in a run file without `items`. null: one by one if the
    judge's format takes one item, else all together, else in one rating."""

    @model_validator(mode="after")
    def _require_whole_group(self) -> ScoreBody:
        if (self.group_id is None) != (self.group_size is None):
            raise ValueError("give group_id and group_size together")
        if self.relative is not None and self.group_id is None:
            raise ValueError("relative judges a group: give group_id and group_size")
        return self

    @model_validator(mode="after")
    def _require_rubrics(self) -> ScoreBody:
        has_rubric = [bool(candidate.rubric) for candidate in self.candidates]
        if any(has_rubric) != all(has_rubric) or (self.rubric is not None and not any(has_rubric)):
            raise ValueError("give every candidate a rubric, or none")
        if any(has_rubric) and self.group_id is not None:
            raise ValueError("a rubric scores a response alone: leave group_id out")
        if self.rubric is not None and self.rubric.items is not None:
            raise ValueError("items is a file of a run: send the items with each candidate")
        return self


class CompareItem(PromptFields):
    """A pair of responses to one prompt."""

    first: ResponseField
    """One response."""
    second: ResponseField
    """The other response."""


class CompareBody(Body):
    """Body of POST /v1/compare."""

    pairs: list[CompareItem] = Field(min_length=1, max_length=MAX_INPUTS // 2)
    """Pairs to compare."""
    swap: bool = True
    """Whether each pair is judged in both orders."""


class BestOfNBody(PromptFields):
    """Body of POST /v1/best_of_n."""

    responses: list[ResponseField] = Field(min_length=1, max_length=MAX_INPUTS)
    """Responses to choose from."""
    policy_logprobs: list[FiniteFloat] | None = Field(None, max_length=MAX_INPUTS)
    """Natural log of each response's probability under the policy."""
    view: ViewOrAuto = "auto"
    """The number that ranks; `auto` as in a best-of-N job."""
    tie_break: list[TieBreak] = Field(
        ["policy_logprob", "expected_rating", "pairwise", "first"], max_length=4
    )
    """Tie-break rules, applied in this order."""

    @model_validator(mode="after")
    def _require_equal_counts(self) -> BestOfNBody:
        if self.policy_logprobs is not None and len(self.policy_logprobs) != len(self.responses):
            raise ValueError(
                f"policy_logprobs has {len(self.policy_logprobs)} entries for "
                f"{len(self.responses)} responses"
            )
        return self


class RankBody(PromptFields):
    """Body of POST /v1/rank: one group."""

    responses: list[ResponseField] = Field(min_length=2, max_length=MAX_RESPONSES)
    """Responses of the group."""
    relative: RelativeConfig | None = None
    """How the group is judged, as in a run file. null: listwise if the judge's format has a group
    protocol, else by comparisons."""


Distribution = tuple[tuple[str, float], ...]
"""(label, probability) pairs."""


@dataclass(frozen=True, slots=True)
class RatingAnswer:
    """A rating; see `types.Reading`."""

    value: float | None
    """The rating: written by the judge, or the most probable one if forced. A mean if there are
    several critiques."""
    distribution: Distribution | None
    """Probability of each rating at the verdict; null if the engine gives no log-probabilities."""
    expected: float | None
    """Mean of the distribution after renormalising; null without one, or with too little of it on
    ratings."""
    outside: float | None
    """Probability, 0 to 1, of tokens that are no rating, the unknown part included."""
    forced: bool
    """Whether the judge wrote no rating and was forced to give one."""
    direct: float | None
    """Expected rating right after the prompt."""
    unknown: float
    """Part of `outside`, 0 to 1, that may belong to a rating: the engine does not tell."""


@dataclass(frozen=True, slots=True)
class JudgementAnswer:
    """A judgement, as `types.Judgement.record` writes it."""

    outcome: Outcome
    """How the judgement ended; only `ok` has numbers."""
    reason: str
    """Why the judgement failed; empty if it is ok."""
    critique: str
    """The critique that the judge wrote."""
    rating: RatingAnswer | None
    """The rating among the readings."""
    verdict: Verdict | None
    """The comparison's verdict among the readings."""
    confidence: Distribution | None
    """Distribution of the comparison's verdict."""
    forced: bool
    """Whether the verdict was forced."""
    readings: tuple[Reading, ...]
    """What was read in each slot of the protocol."""
    usage: Usage
    """Tokens and seconds that the judgement cost."""
    judge: str
    """Fingerprint of the judge."""
    flags: tuple[str, ...]
    """What was done to the input or seen in it, such as `input_truncated` or `planted_verdict`."""
    thinking: str
    """Thinking block of the judge; empty if it has none."""


@dataclass(frozen=True, slots=True)
class ComparisonAnswer:
    """A comparison of two responses; see `types.Comparison`."""

    verdict: Verdict
    """Joint verdict of the orders."""
    orders: tuple[JudgementAnswer, ...]
    """Judgement of (first, second), then of (second, first) unless `swap` was false."""
    reason: str
    """Why the comparison failed; empty if it did not."""


@dataclass(frozen=True, slots=True)
class ScoreAnswer:
    """Answer of POST /v1/score."""

    __pydantic_config__ = DESCRIBED

    judgements: tuple[JudgementAnswer, ...]
    """One judgement for each candidate, in order."""


@dataclass(frozen=True, slots=True)
class CompareAnswer:
    """Answer of POST /v1/compare."""

    __pydantic_config__ = DESCRIBED

    comparisons: tuple[ComparisonAnswer, ...]
    """One comparison for each pair, in order."""


@dataclass(frozen=True, slots=True)
class BestOfNAnswer:
    """Answer of POST /v1/best_of_n."""

    __pydantic_config__ = DESCRIBED

    selection: Selection
    """The chosen response."""
    judgements: tuple[JudgementAnswer, ...]
    """One judgement for each response, in order."""


@dataclass(frozen=True, slots=True)
class RankAnswer:
    """Answer of POST /v1/rank; see `questions.rank.Ranking`."""

    __pydantic_config__ = DESCRIBED

    scores: tuple[float | None, ...]
    errors: tuple[float | None, ...]
    reasons: tuple[str, ...]
    orders: tuple[Order, ...]
    matches: tuple[PairScore, ...]
    order_spread: float | None
    position_correlation: float | None
    judgements: tuple[JudgementAnswer, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """Body of every error."""

    __pydantic_config__ = DESCRIBED

    detail: str
    """What is wrong, in words."""
    field: str
    """Path of the field in the request, such as `candidates.3.response`; empty for an error of the
    whole request."""
    request_id: str
    """Id of the request, which the log also holds."""


def problem(detail: str, field: str) -> bytes:
    """Return the JSON body of an error; see `Problem`."""
    record = {"detail": detail, "field": field, "request_id": REQUEST_ID.get()}
    return json.dumps(record).encode()


class Refused(Exception):
    """Error that ends a request with a status, a detail and the field that it concerns."""

    def __init__(self, status: int, detail: str, field: str = "") -> None:
        super().__init__(detail)
        self.status, self.detail, self.field = status, detail, field
