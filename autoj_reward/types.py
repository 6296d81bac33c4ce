"""The records that travel from a candidate to its reward. No heavy imports."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple

from autoj_reward.conversation import NOTHING, Turn, before_response, context_of, messages_of, plain

Asking = str | tuple[Turn, ...]
"""A query, or the turns of a conversation."""


class Outcome(StrEnum):
    """How a judgement ended. Anything but OK carries a reason and no number.

    No judge gives the last two. NO_NUMBER: the judgement lacks the number that was asked for, such
    as the expected rating from a judge that tells no probabilities. ABANDONED: a selection on a
    budget gave the candidate up before its critique.
    """

    OK = "ok"
    TRUNCATED = "truncated"
    UNPARSABLE = "unparsable"
    NO_NUMBER = "no_number"
    INPUT_REJECTED = "input_rejected"
    UNAVAILABLE = "unavailable"
    ABANDONED = "abandoned"


PLANTED = "planted_verdict"
"""The flag of a judgement on text of a policy's that holds a verdict of its own."""
GIVEN = ("user", "system")
"""Roles whose turns no policy writes."""


class Verdict(StrEnum):
    """Result of comparing two responses. INCONSISTENT: the two orders disagree."""

    FIRST = "first"
    SECOND = "second"
    TIE = "tie"
    INCONSISTENT = "inconsistent"
    FAILED = "failed"

    def swapped(self) -> Verdict:
        """The same verdict named for the exchanged order."""
        return {Verdict.FIRST: Verdict.SECOND, Verdict.SECOND: Verdict.FIRST}.get(self, self)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One response to one query.

    query: of a conversation, whatever it is given as, the plain text of the context's turns.
    policy_logprob: sequence log-probability under the policy (natural log), None if unknown;
        ValueError where it is not finite.
    group_id: names the candidate's group; see `group_key`.
    context: named texts that the judge's format shows beside the two, such as a reference.
    unusable: why no part of a reward can be asked about it, "" if it can.
    """

    query: str
    response: str
    policy_logprob: float | None = None
    group_id: str | None = None
    context: Mapping[str, str] = NOTHING
    unusable: str = ""

    def __post_init__(self) -> None:
        if self.policy_logprob is not None and not math.isfinite(self.policy_logprob):
            raise ValueError(
                f"policy_logprob is {self.policy_logprob}: give a finite number, or None"
            )
        object.__setattr__(self, "context", context_of(self.context))
        object.__setattr__(self, "query", _asked(self.query, self.context))

    @classmethod
    def of(cls, messages: Any, context: Mapping[str, str] = NOTHING) -> Candidate:
        """The assistant's last turn, after those before it. BadMessages, an InputError, for
        messages that are no conversation or without a turn to rate."""
        turns, response = before_response(messages, answered=False)
        return after(turns, response or "", context)


GroupKey = str | tuple[str, Mapping[str, str]]


def group_key(candidate: Candidate) -> GroupKey:
    """Return the key of the candidate's group: its group id, else its query and context.

    The candidates of a group compete with each other: they are whitened together, and their ties
    are counted. A judge shows the context, so ratings beside different references differ by more
    than the responses.
    """
    if candidate.group_id is not None:
        return candidate.group_id
    return candidate.query, candidate.context


def after(
    turns: tuple[Turn, ...], response: str, context: Mapping[str, str] = NOTHING
) -> Candidate:
    """A response to a conversation."""
    return Candidate(plain(turns), response, context=context_of(context).after(turns))


def turns_in(context: Mapping[str, str]) -> tuple[Turn, ...]:
    """The conversation that a context holds; () where the query is all there is."""
    return context_of(context).turns


def _asked(query: str, context: Mapping[str, str]) -> str:
    turns = turns_in(context)
    return plain(turns) if turns else query


class Contest(NamedTuple):
    """Two responses to one query that are to be compared, and what the judge knows beside them."""

    query: str
    first: str
    second: str
    context: Mapping[str, str] = NOTHING

    def inputs(self, swap: bool = True, sample: int = 0) -> list[JudgeInput]:
        """What a judge is asked: the pair as it is, then with swap in the other order."""
        orders = ((self.first, self.second), (self.second, self.first))[: 1 + swap]
        return [JudgeInput(self.query, o, sample, context=self.context) for o in orders]


@dataclass(frozen=True, slots=True)
class JudgeInput:
    """What one judge call reads: one response to rate, or two to compare in this order.

    sample: which of k sampled critiques this is (0 when k is 1).
    direct: only the rating slot right after the prompt is read, whatever the judge else writes.
    context: named texts that the judge's format shows beside query and responses.
    Raises ValueError for two responses with direct: comparisons have no rating slot.
    """

    query: str
    responses: tuple[str, ...]
    sample: int = 0
    direct: bool = False
    context: Mapping[str, str] = NOTHING

    def __post_init__(self) -> None:
        object.__setattr__(self, "context", context_of(self.context))
        object.__setattr__(self, "query", _asked(self.query, self.context))
        if self.direct and len(self.responses) != 1:
            raise ValueError(f"direct reads the rating of one response, not {len(self.responses)}")

    @property
    def kind(self) -> str:
        return "single" if len(self.responses) == 1 else "pairwise"

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The conversation that the responses answer; () where the query is all of it."""
        return turns_in(self.context)

    @property
    def untrusted(self) -> tuple[str, ...]:
        """Every text that the judge is shown and that is not the format's own."""
        known = self.context.values() if self.context else ()
        return (self.query, *self.responses, *known)

    @property
    def policy_texts(self) -> tuple[str, ...]:
        """The texts in which a policy could plant a verdict: the responses, and the turns before
        them but the user's and the system's. An assistant's earlier turn may be the same policy's,
        and a tool says what it was asked to."""
        earlier = (turn.text for turn in self.turns if turn.role not in GIVEN)
        return (*self.responses, *earlier)

    @property
    def given_texts(self) -> tuple[str, ...]:
        """The other texts: the query, or the user's and the system's turns, and the context."""
        spoken = (turn.text for turn in self.turns if turn.role in GIVEN)
        asked = spoken if self.turns else (self.query,)
        return (*asked, *(self.context.values() if self.context else ()))

    def record(self) -> dict[str, Any]:
        """As JSON holds it; without what it does not have."""
        turns = messages_of(self.turns)
        found: dict[str, Any] = {"messages": turns} if turns else {"query": self.query}
        found["responses"] = list(self.responses)
        found["sample"] = self.sample
        found |= {"direct": True} if self.direct else {}
        return found | ({"context": dict(self.context)} if self.context else {})


@dataclass(frozen=True, slots=True)
class Rating:
    """A rating on the judge format's scale, or the score of a scalar reward model in every view.

    value: the rating the judge wrote (half points are legal); the most probable one if forced.
    distribution: (label, probability) for every whole rating of the scale, as read at the
        rating slot and not renormalised, and for the half point that was written or may have been;
        None where the engine gives no log-probabilities.
    expected: mean of the distribution after renormalising; None without one, with less than 1 % of
        the probability on the scale, or with more of it unknown than known.
    outside: probability at the slot that belongs to no valid rating, 0..1, the unknown included.
    unknown: the part of it, 0..1, that may belong to a rating: an endpoint that tells the
        alternatives of each written token says P("1") where the judge wrote 7, and not how much of
        that is 10.
    forced: the judge was to write a rating and did not, so the slot was forced (`Rating: [[`).
    direct: expected rating at a slot right after the prompt, before any critique; None where it was
        not asked for or cannot be read.
    """

    value: float
    distribution: tuple[tuple[str, float], ...] | None = None
    expected: float | None = None
    outside: float | None = None
    forced: bool = False
    direct: float | None = None
    unknown: float = 0.0


NUMBERS: dict[str, Callable[[Rating], float | None]] = {
    "rating": lambda rating: rating.value,
    "expected": lambda rating: rating.expected,
    "direct": lambda rating: rating.direct,
}
"""The views of a rating."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Cost of a judgement inside its replica.

    tokens_in, tokens_cached, tokens_out: tokens read, of these from the prefix cache, and written.
    latency_s: seconds that the judgement took, without those in which it waited for its engine.
    queued_s: seconds that it waited for a place in the engine.
    """

    tokens_in: int = 0
    tokens_cached: int = 0
    tokens_out: int = 0
    latency_s: float = 0.0
    queued_s: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.tokens_in + other.tokens_in,
            self.tokens_cached + other.tokens_cached,
            self.tokens_out + other.tokens_out,
            self.latency_s + other.latency_s,
            self.queued_s + other.queued_s,
        )

    def lasting(self, seconds: float) -> Usage:
        """The same for what has taken so many seconds in all, its wait included."""
        queued = min(self.queued_s, seconds)
        return replace(self, latency_s=seconds - queued, queued_s=queued)


def concurrent_usage(usages: Sequence[Usage]) -> Usage:
    """Return the cost of what was done at the same time: the sum of the tokens, and the seconds
    of the one that took longest, its wait included."""
    longest = max(usages, key=lambda u: u.latency_s + u.queued_s, default=Usage())
    total = sum(usages, Usage())
    return replace(total, latency_s=longest.latency_s, queued_s=longest.queued_s)


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the judge said of one `JudgeInput`, or why it said nothing usable.

    rating is set for an OK single judgement, verdict (FIRST, SECOND or TIE) for an OK pairwise
    one; both are None otherwise. confidence: probabilities of the three verdicts at the verdict
    slot, where they were read. thinking: what the judge wrote to itself before it spoke, in no case
    a verdict. flags name what was done to or seen in the input, for example `input_truncated` or
    `planted_verdict`. judge is the fingerprint of the judge.
    """

    outcome: Outcome
    reason: str = ""
    critique: str = ""
    rating: Rating | None = None
    verdict: Verdict | None = None
    confidence: tuple[tuple[str, float], ...] | None = None
    forced: bool = False
    usage: Usage = field(default_factory=Usage)
    judge: str = ""
    flags: tuple[str, ...] = ()
    thinking: str = ""

    def __post_init__(self) -> None:
        numbered = self.rating is not None or self.verdict is not None
        if (self.outcome is Outcome.OK) != numbered:
            raise ValueError(f"outcome {self.outcome} with rating {self.rating}, {self.verdict}")

    @property
    def ok(self) -> bool:
        return self.outcome is Outcome.OK

    @property
    def why(self) -> str:
        """The outcome and its reason, as an error or a log names them."""
        return f"{self.outcome}: {self.reason}"

    def view(self, name: str) -> float | None:
        """Return the number named `rating`, `expected` or `direct`; None if the judgement abstains
        or lacks it. Raises ValueError for another name."""
        if name not in NUMBERS:
            raise ValueError(f"no view {name!r}: name one of {', '.join(NUMBERS)}")
        return None if self.rating is None else NUMBERS[name](self.rating)

    def with_number(self, view: str) -> Judgement:
        """Return the judgement, or one that abstains if it is OK and lacks the number of a view."""
        if not self.ok or self.view(view) is not None:
            return self
        wrote = f" beside its rating {self.rating.value:g}" if self.rating else ""
        why = f"the judge gave no {view} number{wrote}: {self._lack()}"
        return replace(self, outcome=Outcome.NO_NUMBER, reason=why, rating=None, verdict=None)

    def with_direct(self, read: Judgement) -> Judgement:
        """Return a rating with the one read right after the prompt, and the cost of both."""
        if self.rating is None:
            return self
        rating = replace(self.rating, direct=read.view("expected"))
        return replace(self, rating=rating, usage=self.usage + read.usage)

    def lacks(self, view: str) -> bool:
        """Whether it is OK and the engine told no probabilities, where the view needs them."""
        own = self.rating
        if view != "expected" or own is None:
            return False
        return own.expected is None and own.distribution is None

    def _lack(self) -> str:
        if self.rating is None or self.rating.distribution is None:
            return "its engine told no probabilities"
        return f"{1 - (self.rating.outside or 0):.4f} of the probability is on the scale"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two responses compared in both orders (paper, section 5.1).

    orders: the judgement of (first, second), then of (second, first) unless it was turned off.
    """

    verdict: Verdict
    orders: tuple[Judgement, ...]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Selection:
    """The chosen candidate of a group and the rule that decided.

    rule: `only` | `rating` | `expected` | `direct` | a tie-break name | `all_failed`.
    tied: indices that shared the best value before tie-breaking.
    comparisons: knock-out matches played, as (index, index, verdict).
    """

    index: int
    rule: str
    tied: tuple[int, ...] = ()
    comparisons: tuple[tuple[int, int, Verdict], ...] = ()


@dataclass(frozen=True, slots=True)
class BadRow:
    """An input row that was left out: where it stands and what is wrong with it."""

    file: str
    line: int
    field: str
    reason: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}"
        return (
            f"{where}: field {self.field!r}: {self.reason}"
            if self.field
            else f"{where}: {self.reason}"
        )
