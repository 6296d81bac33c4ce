"""Engine interface: what a judge, a policy or a scalar reward model needs of a backend."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, TypeVar

from autoj_reward.config import OverLong
from autoj_reward.errors import EngineUnavailable, InputRejected
from autoj_reward.formats.render import RenderedPrompt
from autoj_reward.formats.tokens import PromptTokenizer
from autoj_reward.models.views import Abilities
from autoj_reward.types import Usage

T = TypeVar("T")
ROUNDING = 0.01
"""Amount by which a probability in half precision may exceed 1."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Decoding parameters of a request."""

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    index: int = 0
    """Number of this answer among several to one prompt, which differ in their seeds. A scripted
    engine has no seed and goes by this number."""
    logprob: bool = False
    """Whether to return the summed log-probability of each sampled answer."""
    frequency_penalty: float = 0.0
    """Amount that a token's logit loses for each earlier occurrence in the answer."""
    alternatives: bool = False
    """Whether label probabilities will be requested at a verdict that the judge wrote."""
    json_schema: str | None = None
    """JSON schema that the answer follows, as JSON text; None leaves the answer free. An endpoint
    that does not support schemas is asked without it."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prompt that fits the context window, tokenized if the engine tokenizes."""

    prompt: RenderedPrompt
    ids: tuple[int, ...] = ()
    """Token ids; empty if an endpoint tokenizes."""
    truncated: bool = False
    """Whether a response was cut to fit."""
    tail: str | None = None
    """Last part of the model's input as text; None if an endpoint assembles the prompt."""
    answers: dict[Hashable, Any] = field(default_factory=dict, compare=False, repr=False)
    """Answers to requests of one token after this prompt, by their input; see `ask_once`. Prompts
    that extend this one share them."""

    async def ask_once(
        self, key: Hashable, ask: Callable[[], Awaitable[tuple[T, Usage]]]
    ) -> tuple[T, Usage]:
        """Return the answer of `ask`, or that of an earlier call with the same key at no cost.

        A judgement reads a slot with several lists of labels, and for several readings.
        """
        if key in self.answers:
            return self.answers[key], Usage()
        answer, usage = await ask()
        self.answers[key] = answer
        return answer, usage


Alternatives = tuple[tuple[bytes, float], ...]
"""Possible next tokens as UTF-8 bytes, each with its natural log-probability."""


class WrittenToken(NamedTuple):
    """One token that an endpoint generated."""

    text: bytes
    """The token as UTF-8 bytes."""
    alternatives: Callable[[], Alternatives]
    """Read the alternatives at this token. Raises EngineUnavailable if they are malformed.

    Reading is deferred because only the tokens at the verdict are needed, of hundreds with 20
    alternatives each.
    """


@dataclass(frozen=True, slots=True)
class Generation:
    """One generated answer."""

    text: str
    ids: tuple[int, ...] = ()
    """Token ids of the answer; empty if an endpoint tokenizes."""
    finished: bool = True
    """False if the answer reached max_tokens, or ended early for a reason such as a
    content filter."""
    logprob: float | None = None
    """Natural log-probability of the whole answer at temperature 1 and top_p 1, if requested."""
    usage: Usage = Usage()
    reasoning: str = ""
    """Thinking that an endpoint returned apart from the text."""
    tokens: tuple[WrittenToken, ...] = ()
    """Generated tokens with their alternatives, if an endpoint sent them."""
    ended: str = ""
    """Reason of an end that is neither the model's own nor max_tokens; else empty."""
    unknown_end: str = ""
    """Word of an endpoint for an end that nobody knows, if the answer is shorter than the limit.
    The answer counts as finished if it has a verdict at its slot."""


def require_one(generations: list[Generation]) -> Generation:
    """Return the only answer. Raises EngineUnavailable if there are none or several."""
    if len(generations) != 1:
        raise EngineUnavailable(f"the engine gave {len(generations)} answers in place of 1")
    return generations[0]


@dataclass(frozen=True, slots=True)
class LabelProbs:
    """Probability of each label as the continuation at a slot, not renormalised.

    Raises EngineUnavailable for a value that is no probability, so that no number is computed from
    it.
    """

    probs: tuple[tuple[str, float], ...]
    """(label, probability) pairs."""
    usage: Usage = Usage()
    unknown: float = 0.0
    """Probability, 0..1, that the engine cannot assign to one label."""
    mass: float = field(init=False)
    """Summed probability of the labels."""

    def __post_init__(self) -> None:
        for label, p in (*self.probs, ("unknown", self.unknown)):
            if not 0 <= p <= 1 + ROUNDING:
                raise EngineUnavailable(f"the engine gives the label {label!r} probability {p}")
        object.__setattr__(self, "mass", sum(p for _, p in self.probs))
        if not self.mass + self.unknown <= 1 + ROUNDING:
            raise EngineUnavailable(
                f"the engine gives the labels probability {self.mass + self.unknown} together"
            )

    @property
    def outside(self) -> float:
        """Probability of everything that is no label, including `unknown`."""
        return min(1.0, max(0.0, 1.0 - self.mass))


@dataclass(frozen=True, slots=True)
class Score:
    """Output of a sequence classifier with one label, without any activation function."""

    value: float
    usage: Usage = Usage()


class BaseEngine(Protocol):
    """Methods that every engine has.

    Each raises InputRejected for an input that can never be answered, and EngineUnavailable if the
    engine or endpoint does not answer.
    """

    async def start(self) -> None:
        """Load the model, or prepare the connection to the endpoint."""

    async def prepare(
        self, prompt: RenderedPrompt, max_tokens: int, over_long: OverLong
    ) -> Prepared:
        """Tokenize the prompt and make it fit beside max_tokens of output."""

    async def check(self) -> None:
        """Raise EngineUnavailable if the engine is dead."""

    async def close(self) -> None:
        """Free the model."""


class Engine(BaseEngine, Protocol):
    """Engine that answers prompts with text."""

    @property
    def problem(self) -> str:
        """Reason why an endpoint does not answer at the moment; empty if it does."""
        return ""

    @property
    def abilities(self) -> Abilities:
        """Positions at which label probabilities can be read; for an endpoint, once `contact`
        returned."""
        return Abilities()

    async def contact(
        self, sampling: Sampling, capabilities: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Send an endpoint its first request and return its capabilities, as JSON-compatible
        values.

        capabilities: those of an earlier contact, which are not tested again. An engine in this
        process returns {}. Raises EngineUnavailable if the endpoint does not answer, and
        ConfigError for a fault that only the user can correct.
        """
        return {}

    async def generate(self, prepared: Prepared, sampling: Sampling) -> list[Generation]:
        """Return a list with the answer to the prompt; an endpoint's may have another length."""

    def extend_prompt(self, prepared: Prepared, generation: Generation, text: str) -> Prepared:
        """Return the prompt followed by the judge's answer and by `text`, as if the judge had
        written both.

        Only for prompts whose `tail` is known.
        """

    async def label_probs(
        self,
        prepared: Prepared,
        generation: Generation,
        keep: int,
        slot: str,
        labels: Sequence[str],
    ) -> LabelProbs | None:
        """Return the probabilities of the labels after generation.text[:keep] + slot, or None if
        unavailable."""


class Scorer(BaseEngine, Protocol):
    """Engine that answers each prompt with one number."""

    async def score(self, prepared: Prepared) -> Score:
        """Return the score of a prompt that holds a query and a response."""


def fit_prompt(
    tokens: PromptTokenizer,
    prompt: RenderedPrompt,
    max_model_len: int,
    max_tokens: int,
    over_long: OverLong,
) -> Prepared:
    """Tokenize a prompt that leaves max_tokens of the context window for output.

    over_long: how to shorten responses that do not fit. With "reject", raises InputRejected with
    the token counts instead.
    """
    budget = max_model_len - max_tokens
    if over_long != "reject":
        prompt, ids, cut = tokens.fit(prompt, budget, over_long)
        return Prepared(prompt, tuple(ids), cut, tokens.tail(ids))
    ids = tokens.ids(prompt)
    if len(ids) > budget:
        raise InputRejected(
            f"the prompt has {len(ids)} tokens and max_model_len leaves {budget} beside "
            f"{max_tokens} tokens of output"
        )
    return Prepared(prompt, tuple(ids), tail=tokens.tail(ids))


def extend_prompt(
    tokens: PromptTokenizer, prepared: Prepared, generation: Generation, text: str
) -> Prepared:
    """Return the prompt followed by the judge's answer and by `text`.

    Uses the answer's own token ids where they are known, else tokenizes its text.
    """
    new_ids = (
        [*generation.ids, *tokens.written(text)]
        if generation.ids
        else tokens.written(generation.text + text)
    )
    ids = (*prepared.ids, *new_ids)
    return replace(prepared, ids=ids, tail=tokens.tail(ids))
