"""The engine seam: what a generative judge and what a scalar reward model need of a backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from autoj_reward.config import OverLong
from autoj_reward.errors import EngineUnavailable, InputRejected
from autoj_reward.formats.render import Prompt
from autoj_reward.formats.tokens import PromptTokenizer
from autoj_reward.models.views import Abilities
from autoj_reward.types import Usage

ROUNDING = 0.01
"""By how much a probability in half precision may pass 1."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to decode. logprob asks for the summed log-probability of what was sampled.

    frequency_penalty: what a token's logit loses for each time that the answer has it already.
    alternatives: whether label probabilities at a written verdict will be asked for.
    """

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    n: int = 1
    logprob: bool = False
    frequency_penalty: float = 0.0
    alternatives: bool = False


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prompt ready to be asked: token ids where the engine tokenizes, and if it was cut.

    tail: the end of what the model reads, as text; None where an endpoint puts it together.
    """

    prompt: Prompt
    ids: tuple[int, ...] = ()
    truncated: bool = False
    tail: str | None = None


Alternatives = tuple[tuple[bytes, float], ...]
"""Next tokens as UTF-8 bytes, each with its natural log-probability."""


class WrittenToken(NamedTuple):
    """One token that an endpoint wrote, as UTF-8 bytes.

    alternatives: reads what it might have written there. Of hundreds of tokens with 20 alternatives
    each, only those at the verdict are read. Raises EngineUnavailable for what is none.
    """

    text: bytes
    alternatives: Callable[[], Alternatives]


@dataclass(frozen=True, slots=True)
class Generation:
    """One answer. finished is False when it ran into max_tokens, or ended for another reason than
    its own end, such as a content filter.

    logprob: natural log of the probability of the whole answer under the model at temperature 1 and
        top_p 1, if asked.
    reasoning: what an endpoint says that the model thought before the text.
    tokens: the written tokens with their alternatives, where an endpoint sent them.
    ended: what an endpoint says of an end that is neither its own nor max_tokens.
    """

    text: str
    ids: tuple[int, ...] = ()
    finished: bool = True
    logprob: float | None = None
    usage: Usage = Usage()
    reasoning: str = ""
    tokens: tuple[WrittenToken, ...] = ()
    ended: str = ""


def counted(found: list[Generation], n: int) -> list[Generation]:
    """The n answers that were asked for. EngineUnavailable if there are more or fewer."""
    if len(found) != n:
        raise EngineUnavailable(f"the engine gave {len(found)} answers in place of {n}")
    return found


@dataclass(frozen=True, slots=True)
class LabelProbs:
    """Probability of each label as the continuation at a slot, not renormalised, and the cost.

    unknown: probability, 0..1, of which the engine does not tell to which label it belongs, if any.
    Raises EngineUnavailable for what is no probability: a number made of it would be none either.
    """

    probs: tuple[tuple[str, float], ...]
    usage: Usage = Usage()
    unknown: float = 0.0

    def __post_init__(self) -> None:
        for label, p in (*self.probs, ("unknown", self.unknown)):
            if not 0 <= p <= 1 + ROUNDING:
                raise EngineUnavailable(f"the engine gives the label {label!r} probability {p}")
        if not self.mass + self.unknown <= 1 + ROUNDING:
            raise EngineUnavailable(
                f"the engine gives the labels probability {self.mass + self.unknown} together"
            )

    @property
    def mass(self) -> float:
        """Probability of the labels together."""
        return sum(p for _, p in self.probs)

    @property
    def outside(self) -> float:
        """Probability of everything that is no label, the unknown included."""
        return min(1.0, max(0.0, 1.0 - self.mass))


@dataclass(frozen=True, slots=True)
class Score:
    """The one output of a sequence classifier with one label, without any activation."""

    value: float
    usage: Usage = Usage()


class Backing(Protocol):
    """What every engine can do.

    Every method of an engine raises InputRejected for an input that can never be answered and
    EngineUnavailable when nobody answers.
    """

    async def start(self) -> None:
        """Load the model or reach the endpoint."""

    async def prepare(self, prompt: Prompt, max_tokens: int, over_long: OverLong) -> Prepared:
        """Tokenize and make the prompt fit beside max_tokens of output."""

    async def check(self) -> None:
        """Raise EngineUnavailable if the engine is dead."""

    async def close(self) -> None:
        """Free the model."""


class Engine(Backing, Protocol):
    """Answers prompts with text."""

    @property
    def problem(self) -> str:
        """What keeps an endpoint from answering at the moment; empty if nothing does."""
        return ""

    @property
    def abilities(self) -> Abilities:
        """Where label probabilities can be told; of an endpoint, once `contact` has returned."""
        return Abilities()

    async def contact(self, sampling: Sampling, known: Mapping[str, Any]) -> Mapping[str, Any]:
        """Ask an endpoint once, and find out what it can unless `known` says; return what is known
        then, for JSON. Nothing is to be found out of an engine in this process.

        Raises EngineUnavailable if nobody answers, ConfigError for what only the user can mend.
        """
        return {}

    async def generate(self, prepared: Prepared, sampling: Sampling) -> list[Generation]:
        """Answer once, or sampling.n times."""

    def continued(self, prepared: Prepared, own: Generation, text: str) -> Prepared:
        """The prompt with what the judge wrote and, as if it had written that too, the text. Asked
        only of an engine whose prompts have a tail."""

    async def label_probs(
        self, prepared: Prepared, own: Generation, keep: int, slot: str, labels: Sequence[str]
    ) -> LabelProbs | None:
        """Probabilities of the labels after own.text[:keep] + slot; None if it cannot be known."""


class Scorer(Backing, Protocol):
    """Answers prompts with one number each."""

    async def score(self, prepared: Prepared) -> Score:
        """The number for a query with its response."""


def fitted(
    tokens: PromptTokenizer,
    prompt: Prompt,
    max_model_len: int,
    max_tokens: int,
    over_long: OverLong,
) -> Prepared:
    """Tokenize; cut over-long responses as told, or raise InputRejected with the numbers."""
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


def continued(tokens: PromptTokenizer, prepared: Prepared, own: Generation, text: str) -> Prepared:
    """The prompt with what the judge wrote and the text after it, by the ids that it wrote where
    they are known."""
    more = [*own.ids, *tokens.written(text)] if own.ids else tokens.written(own.text + text)
    ids = (*prepared.ids, *more)
    return replace(prepared, ids=ids, tail=tokens.tail(ids))
