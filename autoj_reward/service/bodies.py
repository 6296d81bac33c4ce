"""What the HTTP edge reads and writes: request bodies with their limits, answers and errors."""

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
    WithJsonSchema,
    model_validator,
)

from autoj_reward.config import RelativeConfig, TieBreak, View, ViewOrAuto
from autoj_reward.conversation import (
    MAX_TURNS,
    NAME,
    NOTHING,
    OWN,
    BadMessages,
    Context,
    Turn,
    before_response,
    plain,
    turns_of,
)
from autoj_reward.logs import REQUEST_ID
from autoj_reward.questions.rank import Order, PairScore
from autoj_reward.types import Outcome, Reading, Selection, Usage, Verdict

MAX_INPUTS = 1024
"""Judge inputs of one request: each critique of a candidate, each order of a pair, those that break
ties included."""

MAX_RESPONSES = 64
"""Responses of one judge input."""


def require_inputs(count: int, field: str) -> None:
    """RequestValidationError for more judge inputs than one request may cost."""
    if count > MAX_INPUTS:
        told = f"{count} judge inputs: a request may cost {MAX_INPUTS}"
        raise RequestValidationError([{"type": "too_long", "loc": ("body", field), "msg": told}])


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a text is a string")
    return value


# Whatever is in it: a text that cannot be judged costs its input, not the request.
Text = Annotated[str, PlainValidator(_text), WithJsonSchema({"type": "string"})]


def _context(value: Any) -> Context:
    if not isinstance(value, dict):
        raise ValueError("a context is an object of texts by name")
    return Context({name: _text(text) for name, text in value.items()})


ContextField = Annotated[
    Context,
    PlainValidator(_context),
    WithJsonSchema(
        {
            "type": "object",
            "propertyNames": {
                "pattern": f"^{NAME.pattern}$",
                "not": {"pattern": f"^{OWN.pattern}$"},
            },
            "additionalProperties": {"type": "string"},
            "default": {},
        }
    ),
]
"""Named texts that the judge's format shows beside query and responses."""


class Body(BaseModel):
    """A request body: every unknown field is an error, and no value is bent into another type."""

    model_config = ConfigDict(extra="forbid", strict=True)


class MessagePart(BaseModel):
    """A part of a message. Those that are text are read."""

    type: Text
    text: Text = ""


class ChatMessage(BaseModel):
    """One message of a conversation. content: text, or parts of which the text ones are read.
    tool_calls: as chat completions have them."""

    role: Text
    content: Text | list[MessagePart] | None = None
    tool_calls: list[dict[str, Any]] | None = None


ChatMessages = Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_TURNS)]
"""The messages of a conversation."""


class PromptFields(Body):
    """The prompt of responses: a query, or the messages of a conversation up to them."""

    query: Text = ""
    messages: ChatMessages | None = None
    context: ContextField = NOTHING

    @model_validator(mode="after")
    def _either(self) -> PromptFields:
        if (self.messages is None) != ("query" in self.model_fields_set):
            raise ValueError("give either query or messages")
        if self.messages is not None:
            try:
                turns = self._turns([message.model_dump() for message in self.messages])
            except BadMessages as error:
                raise ValueError(str(error)) from None
            self.query, self.context = plain(turns), self.context.after(turns)
        return self

    @staticmethod
    def _turns(messages: list[dict[str, Any]]) -> tuple[Turn, ...]:
        return before_response(messages, answered=True)[0]


class JudgeItem(PromptFields):
    """One judge input. protocol: the one of the judge's format that lays it out: `single` rates
    one response, `pairwise` compares two in this order. direct: read only the rating slot right
    after the prompt. Turns may be in any order."""

    protocol: str = "single"
    responses: list[Text] = Field(min_length=1, max_length=MAX_RESPONSES)
    sample: int = Field(0, ge=0, le=2**31 - 1)
    direct: bool = False

    @staticmethod
    def _turns(messages: list[dict[str, Any]]) -> tuple[Turn, ...]:
        return turns_of(messages)


class JudgeBody(Body):
    """The body of POST /v1/judge."""

    items: list[JudgeItem] = Field(min_length=1, max_length=MAX_INPUTS)


class ScoreItem(PromptFields):
    """One response to one query."""

    response: Text


class ScoreBody(Body):
    """The body of POST /v1/score."""

    candidates: list[ScoreItem] = Field(min_length=1, max_length=MAX_INPUTS)


class CompareItem(PromptFields):
    """Two responses to one query."""

    first: Text
    second: Text


class CompareBody(Body):
    """The body of POST /v1/compare. swap: judge both orders."""

    pairs: list[CompareItem] = Field(min_length=1, max_length=MAX_INPUTS // 2)
    swap: bool = True


class BestOfNBody(PromptFields):
    """The body of POST /v1/best_of_n.

    policy_logprobs: natural log of each response's probability under the policy.
    view: the number that ranks, `auto` as in a best-of-N job. tie_break: what decides among equals,
    in order.
    """

    responses: list[Text] = Field(min_length=1, max_length=MAX_INPUTS)
    policy_logprobs: list[FiniteFloat] | None = Field(None, max_length=MAX_INPUTS)
    view: ViewOrAuto = "auto"
    tie_break: list[TieBreak] = Field(
        ["policy_logprob", "expected_rating", "pairwise", "first"], max_length=4
    )

    @model_validator(mode="after")
    def _as_many(self) -> BestOfNBody:
        if self.policy_logprobs is not None and len(self.policy_logprobs) != len(self.responses):
            raise ValueError(
                f"policy_logprobs has {len(self.policy_logprobs)} entries for "
                f"{len(self.responses)} responses"
            )
        return self


class RankBody(PromptFields):
    """The body of POST /v1/rank: one group.

    relative: how it is judged, as in a run file; null is listwise where the judge's format
    can, else by comparisons.
    """

    responses: list[Text] = Field(min_length=2, max_length=MAX_RESPONSES)
    relative: RelativeConfig | None = None


@dataclass(frozen=True, slots=True)
class JudgeDescription:
    """The answer of GET /v1/judge.

    judge: the fingerprint. views: the numbers that the judge gives. view: the one that its entry
    names, which is preferred. in_flight: judge inputs that the service takes on at a time; a client
    that sends more waits. scale: lowest and highest rating; null for a scalar model's scores.
    distributions: where they come from, or why there are none, in words. ratings_tie: with a
    number, this judge compares by ratings: two responses whose expected ratings right after the
    prompt are at most so far apart tie; null for one that compares by itself. max_group: responses
    that one listwise judgement scores at most; null where the format has none. compares: whether
    the judge compares two responses.
    """

    judge: str
    views: tuple[View, ...]
    view: View | None
    in_flight: int
    scale: list[float] | None
    distributions: str
    ratings_tie: float | None
    max_group: int | None
    compares: bool


Distribution = tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class RatingAnswer:
    """A rating; see `types.Reading`. direct: expected rating right after the prompt."""

    value: float | None
    distribution: Distribution | None
    expected: float | None
    outside: float | None
    forced: bool
    direct: float | None
    unknown: float


@dataclass(frozen=True, slots=True)
class JudgementAnswer:
    """A judgement as `types.Judgement.record` writes it: its readings, and beside them what they
    say of a rating or a comparison."""

    outcome: Outcome
    reason: str
    critique: str
    rating: RatingAnswer | None
    verdict: Verdict | None
    confidence: Distribution | None
    forced: bool
    readings: tuple[Reading, ...]
    usage: Usage
    judge: str
    flags: tuple[str, ...]
    thinking: str


@dataclass(frozen=True, slots=True)
class ComparisonAnswer:
    """Two responses compared; see `types.Comparison`."""

    verdict: Verdict
    orders: tuple[JudgementAnswer, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class ScoreAnswer:
    """The answer of POST /v1/score: one judgement a candidate, in order."""

    judgements: tuple[JudgementAnswer, ...]


@dataclass(frozen=True, slots=True)
class CompareAnswer:
    """The answer of POST /v1/compare: one comparison a pair, in order."""

    comparisons: tuple[ComparisonAnswer, ...]


@dataclass(frozen=True, slots=True)
class BestOfNAnswer:
    """The answer of POST /v1/best_of_n: the choice, and one judgement a response, in order."""

    selection: Selection
    judgements: tuple[JudgementAnswer, ...]


@dataclass(frozen=True, slots=True)
class RankAnswer:
    """The answer of POST /v1/rank; see `questions.rank.Ranking`. judgements: those behind the
    scores, in the order in which they were asked for."""

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
    """The body of every answer that is an error. field: where in the request, such as
    `candidates.3.response`; empty for what concerns the whole."""

    detail: str
    field: str
    request_id: str


def problem(detail: str, field: str) -> bytes:
    """The body of an error: see `Problem`."""
    told = {"detail": detail, "field": field, "request_id": REQUEST_ID.get()}
    return json.dumps(told).encode()


class Refused(Exception):
    """A request that ends here, with the status and what its caller is told."""

    def __init__(self, status: int, detail: str, field: str = "") -> None:
        super().__init__(detail)
        self.status, self.detail, self.field = status, detail, field
