"""The records that travel from a candidate to its reward. No heavy imports."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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


SINGLE, PAIRWISE, GROUP = "single", "pairwise", "group"
"""Protocols by name: one response is rated, two are compared, or a group is scored together."""
RATING, VERDICT, DIRECT = "rating", "verdict", "direct"
"""Slots by name: of a rating, of a comparison, and of a rating read right after the prompt."""
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


class Pair(NamedTuple):
    """Two responses to one query that are to be compared, and what the judge knows beside them."""

    query: str
    first: str
    second: str
    context: Mapping[str, str] = NOTHING

    @classmethod
    def of(cls, first: Candidate, second: Candidate) -> Pair:
        """Return the pair of two responses to the first one's query."""
        return cls(first.query, first.response, second.response, first.context)

    def inputs(self, swap: bool = True, sample: int = 0) -> list[JudgeInput]:
        """Return the judge inputs: the pair as it is, then with swap in the other order."""
        orders = ((self.first, self.second), (self.second, self.first))[: 1 + swap]
        return [JudgeInput(PAIRWISE, self.query, o, sample, context=self.context) for o in orders]


@dataclass(frozen=True, slots=True)
class JudgeInput:
    """What one judge call reads: the responses to one query that a protocol lays out, in order.

    protocol: the name of one of the format's protocols, such as `single` or `pairwise`.
    sample: which of k sampled critiques this is (0 when k is 1).
    direct: only the rating slot right after the prompt is read, whatever the judge else writes.
    context: named texts that the judge's format shows beside query and responses.
    """

    protocol: str
    query: str
    responses: tuple[str, ...]
    sample: int = 0
    direct: bool = False
    context: Mapping[str, str] = NOTHING

    def __post_init__(self) -> None:
        object.__setattr__(self, "context", context_of(self.context))
        object.__setattr__(self, "query", _asked(self.query, self.context))

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
        found: dict[str, Any] = {"protocol": self.protocol}
        found |= {"messages": turns} if turns else {"query": self.query}
        found["responses"] = list(self.responses)
        found["sample"] = self.sample
        found |= {"direct": True} if self.direct else {}
        return found | ({"context": dict(self.context)} if self.context else {})


@dataclass(frozen=True, slots=True)
class Reading:
    """What a judge said in one slot of a protocol.

    slot: the slot's name. label: what the judge wrote there, by its name in the format (`7.5`,
        `first`); the most probable one if forced.
    value: the number that the label stands for (half points are legal), or the score of a scalar
        reward model; None where a label is no number. A mean over k critiques where several count.
    distribution: (label, probability) for every label of the slot, as read there and not
        renormalised; of a rating every whole number, and the half point that was written or may
        have been. None where the engine gives no log-probabilities.
    expected: mean of the distribution after renormalising; None without one, with less than 1 % of
        the probability on labels, with more of it unknown than known, or without numbers.
    outside: probability at the slot that belongs to no valid label, 0..1, the unknown included.
    unknown: the part of it, 0..1, that may belong to a label: an endpoint that tells the
        alternatives of each written token says P("1") where the judge wrote 7, and not how much of
        that is 10.
    forced: the judge was to write a verdict and did not, so the slot was forced (`Rating: [[`).
    """

    slot: str
    label: str
    value: float | None = None
    distribution: tuple[tuple[str, float], ...] | None = None
    expected: float | None = None
    outside: float | None = None
    unknown: float = 0.0
    forced: bool = False


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


_VIEWS = ("rating", "expected", "direct")


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the judge said of one `JudgeInput`, or why it said nothing usable.

    readings: one for each slot of the protocol, and one named `direct` where the rating right after
    the prompt was read; none where the judge abstains. thinking: what the judge wrote to itself
    before it spoke, in no case a verdict. flags name what was done to or seen in the input, for
    example `input_truncated` or `planted_verdict`. judge is the fingerprint of the judge.
    """

    outcome: Outcome
    reason: str = ""
    critique: str = ""
    readings: tuple[Reading, ...] = ()
    usage: Usage = field(default_factory=Usage)
    judge: str = ""
    flags: tuple[str, ...] = ()
    thinking: str = ""

    def __post_init__(self) -> None:
        if (self.outcome is Outcome.OK) != bool(self.readings):
            raise ValueError(f"outcome {self.outcome} with the readings {self.readings}")

    @classmethod
    def of_score(cls, score: float) -> Judgement:
        """Return the judgement of a score, which stands for a rating in every view."""
        label = f"{score:g}"
        readings = (Reading(name, label, score, expected=score) for name in (RATING, DIRECT))
        return cls(Outcome.OK, readings=tuple(readings))

    @classmethod
    def of_verdict(cls, verdict: Verdict) -> Judgement:
        """Return the judgement of a comparison that has no distribution."""
        return cls(Outcome.OK, readings=(Reading(VERDICT, verdict.value),))

    @property
    def ok(self) -> bool:
        return self.outcome is Outcome.OK

    @property
    def why(self) -> str:
        """The outcome and its reason, as an error or a log names them."""
        return f"{self.outcome}: {self.reason}"

    @property
    def forced(self) -> bool:
        """Whether any slot was forced."""
        return any(reading.forced for reading in self.readings)

    def reading(self, slot: str) -> Reading | None:
        """Return what was said in a slot; None if the judgement has no such slot, or abstains."""
        return next((own for own in self.readings if own.slot == slot), None)

    @property
    def rating(self) -> float | None:
        """The rating that the judge wrote, or the most probable one of a forced slot."""
        own = self.reading(RATING)
        return own.value if own else None

    @property
    def expected(self) -> float | None:
        """The mean of the rating's distribution."""
        own = self.reading(RATING)
        return own.expected if own else None

    @property
    def direct(self) -> float | None:
        """The expected rating right after the prompt, before any critique."""
        own = self.reading(DIRECT)
        return own.expected if own else None

    @property
    def verdict(self) -> Verdict | None:
        """FIRST, SECOND or TIE of a comparison."""
        own = self.reading(VERDICT)
        return Verdict(own.label) if own else None

    @property
    def confidence(self) -> tuple[tuple[str, float], ...] | None:
        """The probabilities of the verdicts at the slot of a comparison, if they were read."""
        own = self.reading(VERDICT)
        return own.distribution if own else None

    def view(self, name: str) -> float | None:
        """Return the number named `rating`, `expected` or `direct`; None if the judgement abstains
        or lacks it. Raises ValueError for another name."""
        if name not in _VIEWS:
            raise ValueError(f"no view {name!r}: name one of {', '.join(_VIEWS)}")
        number: float | None = getattr(self, name)
        return number

    def with_number(self, view: str) -> Judgement:
        """Return the judgement, or one that abstains if it is OK and lacks the number of a view."""
        if not self.ok or self.view(view) is not None:
            return self
        wrote = f" beside its rating {self.rating:g}" if self.rating is not None else ""
        why = f"the judge gave no {view} number{wrote}: {self._lack()}"
        return replace(self, outcome=Outcome.NO_NUMBER, reason=why, readings=())

    def with_direct(self, read: Judgement) -> Judgement:
        """Return a rating with the one read right after the prompt, and the cost of both."""
        own = read.reading(RATING)
        if self.rating is None or own is None:
            return self if self.rating is None else replace(self, usage=self.usage + read.usage)
        others = (reading for reading in self.readings if reading.slot != DIRECT)
        readings = (*others, replace(own, slot=DIRECT))
        return replace(self, readings=readings, usage=self.usage + read.usage)

    def lacks(self, view: str) -> bool:
        """Whether it is OK and the engine told no probabilities, where the view needs them."""
        own = self.reading(RATING)
        if view != "expected" or own is None:
            return False
        return own.expected is None and own.distribution is None

    def _lack(self) -> str:
        own = self.reading(RATING)
        if own is None or own.distribution is None:
            return "its engine told no probabilities"
        return f"{1 - (own.outside or 0):.4f} of the probability is on the scale"

    def record(self) -> dict[str, Any]:
        """Return all of it as JSON holds it: the readings, and beside them what they say of a
        rating or a comparison, by today's names of result fields."""
        rating = self.reading(RATING)
        return {
            "outcome": self.outcome.value,
            "reason": self.reason,
            "critique": self.critique,
            "rating": _rating_record(rating, self.direct) if rating else None,
            "verdict": self.verdict.value if self.verdict else None,
            "confidence": self.confidence,
            "forced": self.forced,
            "readings": [
                {name: getattr(own, name) for name in Reading.__slots__} for own in self.readings
            ],
            "usage": {name: getattr(self.usage, name) for name in Usage.__slots__},
            "judge": self.judge,
            "flags": self.flags,
            "thinking": self.thinking,
        }


def _rating_record(rating: Reading, direct: float | None) -> dict[str, Any]:
    return {
        "value": rating.value,
        "distribution": rating.distribution,
        "expected": rating.expected,
        "outside": rating.outside,
        "forced": rating.forced,
        "direct": direct,
        "unknown": rating.unknown,
    }


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

    rule: `only` | `rating` | `expected` | `direct` | `relative` | a tie-break name | `all_failed`.
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
