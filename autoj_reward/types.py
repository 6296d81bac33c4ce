"""Records passed from a candidate to its reward. This module imports nothing heavy."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain
from typing import Any

from autoj_reward.conversation import (
    EMPTY_CONTEXT,
    Context,
    Prompt,
    Response,
    Showing,
    before_response,
    context_of,
    media_of,
    show_media,
)
from autoj_reward.media import Media, MediaRules
from autoj_reward.rubric_items import RubricItem
from autoj_reward.thinking import opened_at_end

MAX_FLOAT = sys.float_info.max
"""Largest finite number."""


class Outcome(StrEnum):
    """End of a judgement. Every outcome but OK carries a reason and no number.

    NO_NUMBER, UNSURE, ABANDONED and NO_ANSWER are set by the code that uses a judgement, never by a
    judge.
    """

    OK = "ok"
    """The judgement has a verdict."""
    TRUNCATED = "truncated"
    """The judge's text was cut off at its token limit, and holds no verdict that counts."""
    UNPARSABLE = "unparsable"
    """The judge's text holds no verdict that counts."""
    NO_NUMBER = "no_number"
    """The judgement lacks the requested number: for example, the expected rating from an engine
    without log-probabilities."""
    UNSURE = "unsure"
    """The judge's distribution is wider than its calibration allows for a number that counts."""
    INPUT_REJECTED = "input_rejected"
    """The input cannot be judged, for example because a text is too long."""
    UNAVAILABLE = "unavailable"
    """No engine answered before the deadline."""
    ABANDONED = "abandoned"
    """The candidate was not on the shortlist of a selection, so no critique of it was written."""
    NO_ANSWER = "no_answer"
    """The response holds no answer: it is empty, or nothing but thinking. No judge was asked, so
    that this is no failure of one."""


NOT_ASKED = (Outcome.ABANDONED, Outcome.NO_ANSWER)
"""Outcomes of candidates that no judge failed on, because none was asked to judge them."""
SINGLE, PAIRWISE, GROUP, CHECKLIST = "single", "pairwise", "group", "checklist"
"""Protocols of a generative judge's format: rate one response, compare two, score a group, or judge
rubric items."""
RATING, VERDICT, DIRECT = "rating", "verdict", "direct"
"""Slot names: the rating, the verdict of a comparison, and the rating read right after
the prompt."""
RETRIED_FLAG = "retried"
"""Flag of a judgement whose judge was asked more than once; see `JudgeConfig.attempts`."""
PLANTED_FLAG = "planted_verdict"
"""Flag of a judgement if a text written by the policy contains a whole verdict."""


def planted_flag(place: int, count: int = 1) -> str:
    """Return the flag of a judgement if the response at a place, from 1, contains a whole verdict.

    count: number of responses that the judgement shows. The flag of one response has no place.
    """
    return PLANTED_FLAG if count == 1 else f"{PLANTED_FLAG}:{place}"


GIVEN = ("user", "system")
"""Roles whose turns the policy did not write."""


class Verdict(StrEnum):
    """Result of comparing two responses."""

    FIRST = "first"
    SECOND = "second"
    TIE = "tie"
    INCONSISTENT = "inconsistent"
    """The two orders of the responses gave different verdicts."""
    FAILED = "failed"
    """At least one judgement of the comparison is not OK."""

    def swapped(self) -> Verdict:
        """Return the verdict for the two responses in the opposite order."""
        return {Verdict.FIRST: Verdict.SECOND, Verdict.SECOND: Verdict.FIRST}.get(self, self)


@dataclass(frozen=True, slots=True, init=False)
class Candidate:
    """One response to one prompt."""

    prompt: Prompt
    response: Response
    policy_logprob: float | None
    """Log-probability of the whole response under the policy (natural log). None if unknown.

    A value that is not finite raises ValueError.
    """
    group_id: str | None
    """Group to which the candidate belongs; see `group_key`."""
    context: Context
    """Named texts that the judge's format shows with prompt and response, such as a reference."""
    unusable: str
    """Why this candidate cannot be judged for any part of a reward. Empty if it can."""
    group_size: int | None
    """Number of responses in its group, if the others come in other calls and a service gathers
    them. None if all responses of the group are in one call."""
    rubric: tuple[RubricItem, ...]
    """Items of the response's rubric. Empty if it has none."""

    def __init__(
        self,
        prompt: Prompt | str,
        response: Response | str,
        policy_logprob: float | None = None,
        group_id: str | None = None,
        context: Mapping[str, str] = EMPTY_CONTEXT,
        unusable: str = "",
        group_size: int | None = None,
        rubric: tuple[RubricItem, ...] = (),
    ) -> None:
        # An integer can be too large for a float, and then even isfinite raises.
        if policy_logprob is not None and not abs(policy_logprob) <= MAX_FLOAT:
            shown = str(policy_logprob)[:20]
            raise ValueError(f"policy_logprob is {shown}: give a finite number, or None")
        _set_fields(
            self,
            prompt=Prompt.take(prompt),
            response=Response.take(response),
            policy_logprob=policy_logprob,
            group_id=group_id,
            context=context_of(context),
            unusable=unusable,
            group_size=group_size,
            rubric=rubric,
        )

    @classmethod
    def of(cls, messages: Any, context: Mapping[str, str] = EMPTY_CONTEXT) -> Candidate:
        """Return the candidate made of the assistant's last message and the messages before it.

        Raises BadMessages, an InputError, if they are no conversation or the assistant has no turn.
        """
        prompt, response = before_response(messages, answered=False)
        return cls(prompt, response or "", context=context)

    def for_judge(self, showing: Showing) -> Candidate:
        """Return the candidate with the response as the judge reads it; see `JudgeConfig.shows` and
        `JudgeConfig.shows_thinking`."""
        prompt, (response,) = _show_to_judge(self.prompt, (self.response,), showing)
        if prompt is self.prompt and response is self.response:
            return self
        return replace(self, prompt=prompt, response=response)


def _set_fields(record: Any, **fields: Any) -> None:
    """Set the fields of a new frozen record, whose `__init__` also takes plain texts."""
    for name, value in fields.items():
        object.__setattr__(record, name, value)


GroupKey = str | tuple[Prompt, Context, tuple[RubricItem, ...]]
"""Key of a group: its group id, or prompt, context and rubric."""


def group_key(candidate: Candidate) -> GroupKey:
    """Return the key of the candidate's group: its group id, else its prompt, context and rubric.

    Candidates of one group compete: their rewards are whitened together, and their ties are
    counted. Context and rubric belong to the key because the judge sees them. Ratings of responses
    with different references differ for more reasons than the responses.
    """
    if candidate.group_id is not None:
        return candidate.group_id
    return candidate.prompt, candidate.context, candidate.rubric


def _show_to_judge(
    prompt: Prompt, responses: Sequence[Response], showing: Showing
) -> tuple[Prompt, list[Response]]:
    """Return prompt and responses as a judge reads them.

    Without `showing.shows` each response is what its source reads. Otherwise a response begins
    after the user's last turn: turns between it and the given response are moved from the prompt to
    the response.
    """
    opened_by = opened_at_end(prompt.text, showing.thinking_marks)
    if showing.shows is None:
        return prompt, [response.for_judge(showing, opened_by) for response in responses]
    ends = [n for n, turn in enumerate(prompt.turns, 1) if turn.role in GIVEN]
    end = ends[-1] if ends else len(prompt.turns)
    begun_turns = prompt.turns[end:]
    shown_responses = [
        response.for_judge(showing, opened_by, begun_turns) for response in responses
    ]
    return Prompt.of(prompt.turns[:end]) if begun_turns else prompt, shown_responses


@dataclass(frozen=True, slots=True, init=False)
class Pair:
    """Two responses to one prompt that are to be compared, with their context."""

    prompt: Prompt
    first: Response
    second: Response
    context: Context
    """Named texts that the judge's format shows with prompt and responses."""

    def __init__(
        self,
        prompt: Prompt | str,
        first: Response | str,
        second: Response | str,
        context: Mapping[str, str] = EMPTY_CONTEXT,
    ) -> None:
        _set_fields(
            self,
            prompt=Prompt.take(prompt),
            first=Response.take(first),
            second=Response.take(second),
            context=context_of(context),
        )

    @classmethod
    def of(cls, first: Candidate, second: Candidate) -> Pair:
        """Return the pair of two candidates' responses, with prompt and context of the first."""
        return cls(first.prompt, first.response, second.response, first.context)

    def for_judge(self, showing: Showing) -> Pair:
        """Return the pair with the responses as the judge reads them; see `JudgeConfig.shows` and
        `JudgeConfig.shows_thinking`."""
        prompt, (first, second) = _show_to_judge(self.prompt, (self.first, self.second), showing)
        return Pair(prompt, first, second, self.context)

    def inputs(self, swap: bool = True, sample: int = 0) -> list[JudgeInput]:
        """Return the judge inputs: the given order, then with `swap` the opposite order."""
        orders = ((self.first, self.second), (self.second, self.first))[: 1 + swap]
        return [JudgeInput(PAIRWISE, self.prompt, o, sample, context=self.context) for o in orders]


@dataclass(frozen=True, slots=True, init=False)
class JudgeInput:
    """Input of one judge call: a prompt, its context and the responses to judge, in order."""

    protocol: str
    """Name of a protocol of the judge's format, such as `single` or `pairwise`."""
    prompt: Prompt
    responses: tuple[Response, ...]
    """Responses, in the order in which the judge sees them."""
    sample: int
    """Index of this critique among the k sampled ones, from 0. It sets the seed."""
    direct: bool
    """Whether only the rating slot right after the prompt is read, without a critique."""
    context: Context
    """Named texts that the judge's format shows with prompt and responses."""
    items: tuple[RubricItem, ...]
    """Rubric items that are shown and judged. Empty for a protocol without items."""
    points: tuple[float, ...] = field(compare=False)
    """Points of the rubric items, for a journal's reader; empty if unknown. The judge does not see
    them, so inputs that differ in them alone are equal."""

    def __init__(
        self,
        protocol: str,
        prompt: Prompt | str,
        responses: Sequence[Response | str],
        sample: int = 0,
        direct: bool = False,
        context: Mapping[str, str] = EMPTY_CONTEXT,
        items: tuple[RubricItem, ...] = (),
        points: tuple[float, ...] = (),
    ) -> None:
        _set_fields(
            self,
            protocol=protocol,
            prompt=Prompt.take(prompt),
            responses=tuple(map(Response.take, responses)),
            sample=sample,
            direct=direct,
            context=context_of(context),
            items=items,
            points=points,
        )

    @property
    def unreadable(self) -> str:
        """Why no judge can read the input: a prompt or response that was given as no text."""
        reasons = (self.prompt.unreadable, *(response.unreadable for response in self.responses))
        return next(filter(None, reasons), "")

    @property
    def unanswered(self) -> str:
        """Why no judge is asked about the input: a response without an answer. Empty if each has
        one."""
        return next((r.unanswered for r in self.responses if r.unanswered), "")

    @property
    def media(self) -> list[Media]:
        """Pictures, sound and files in the turns that a judge sees."""
        response_media = (media_of(response.shown_turns) for response in self.responses)
        return [*media_of(self.prompt.turns), *chain.from_iterable(response_media)]

    @property
    def untrusted(self) -> tuple[str, ...]:
        """All texts in the judge's prompt that are not the format's own: prompt, responses, context
        and rubric items."""
        responses = (response.text for response in self.responses)
        return (self.prompt.text, *responses, *self._context_texts)

    @property
    def _context_texts(self) -> tuple[str, ...]:
        """Texts of the context, and of the rubric items."""
        texts = self.context.values() if self.context else ()
        return (*texts, *(text for item in self.items for text in item.texts))

    @property
    def policy_texts(self) -> tuple[str, ...]:
        """Texts in which a policy could plant a verdict: those of all responses."""
        return self._policy_texts(self.responses)

    def policy_texts_of(self, place: int) -> tuple[str, ...]:
        """Return the texts in which the policy of the response at a place, from 1, could plant a
        verdict.

        Those are the response and each of its turns, and earlier assistant and tool turns. The same
        policy may have written an assistant's earlier turn, and it chooses what a tool outputs.
        """
        return self._policy_texts(self.responses[place - 1 : place])

    def _policy_texts(self, responses: Sequence[Response]) -> tuple[str, ...]:
        texts = (response.text for response in responses)
        turn_texts = (turn.text for response in responses for turn in response.shown_turns)
        earlier_texts = (turn.text for turn in self.prompt.turns if turn.role not in GIVEN)
        return (*texts, *turn_texts, *earlier_texts)

    @property
    def given_texts(self) -> tuple[str, ...]:
        """Texts that the policy did not write: the user's and system turns, context and rubric
        items."""
        prompt_texts = (turn.text for turn in self.prompt.as_turns if turn.role in GIVEN)
        return (*prompt_texts, *self._context_texts)

    def show_media(self, rules: MediaRules) -> JudgeInput:
        """Return the input as a judge with these rules reads it; itself if nothing is omitted.

        Raises InputRejected for media that the judge is not sent and the rules do not omit.
        """
        if not self.media:
            return self
        prompt = Prompt.of(show_media(self.prompt.as_turns, rules))
        responses = []
        for response in self.responses:
            turns = show_media(response.shown_turns, rules)
            responses.append(Response.of(turns) if media_of(response.shown_turns) else response)
        shown = replace(self, prompt=prompt, responses=tuple(responses))
        return self if shown == self else shown

    def record(self, whole: bool = False) -> dict[str, Any]:
        """Return the input as JSON data. Fields without a value are left out. whole: as for
        `messages_of`."""
        data: dict[str, Any] = {"protocol": self.protocol} | self.prompt.record(whole)
        data["responses"] = [response.record(whole) for response in self.responses]
        data["sample"] = self.sample
        data |= {"direct": True} if self.direct else {}
        data |= {"context": dict(self.context)} if self.context else {}
        return data | ({"items": [item.record() for item in self.items]} if self.items else {})


@dataclass(frozen=True, slots=True)
class Reading:
    """Verdict of a judge in one slot of a protocol, with its distribution."""

    slot: str
    """Name of the slot."""
    label: str
    """Name of the label in the format (`7.5`, `first`). In a forced slot the most
    probable label."""
    value: float | None = None
    """Number of the label, half points included, or the score of a scalar reward model.

    The mean if several critiques count. None if the label stands for no number.
    """
    distribution: tuple[tuple[str, float], ...] | None = None
    """Pairs (label, probability) as read at the slot, not renormalised. None without
    log-probabilities.

    A rating has every whole number here. It also has the half point that the judge wrote or may
    have been about to write.
    """
    expected: float | None = None
    """Mean of the distribution after renormalising.

    None if there is no distribution or its labels are no numbers. Also None if the labels have less
    than 1 % of the probability, or if `unknown` exceeds the probability that is known.
    """
    outside: float | None = None
    """Probability at the slot that belongs to no valid label, 0..1. It includes `unknown`."""
    unknown: float = 0.0
    """Part of `outside` that may belong to a label, 0..1.

    An endpoint that returns alternatives only for each written token causes it. Where the judge
    wrote 7 it returns P("1"), but not how much of that belongs to 10.
    """
    forced: bool = False
    """Whether the judge wrote no verdict and the slot was forced (`Rating: [[` was appended)."""

    def record(self) -> dict[str, Any]:
        """Return the reading as JSON data."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Usage:
    """Cost of a judgement inside its replica."""

    tokens_in: int = 0
    """Prompt tokens."""
    tokens_cached: int = 0
    """Prompt tokens that came from the prefix cache."""
    tokens_out: int = 0
    """Generated tokens."""
    latency_s: float = 0.0
    """Seconds that the judgement took, without the time in the engine's queue."""
    queued_s: float = 0.0
    """Seconds that the judgement waited for a free place in the engine."""
    usd: float = 0.0
    """US dollars, by `judge.price`; 0 without one."""

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.tokens_in + other.tokens_in,
            self.tokens_cached + other.tokens_cached,
            self.tokens_out + other.tokens_out,
            self.latency_s + other.latency_s,
            self.queued_s + other.queued_s,
            self.usd + other.usd,
        )

    def record(self) -> dict[str, float]:
        """Return the usage as JSON data. Dollars are left out if there are none."""
        data: dict[str, float] = {
            "tokens_in": self.tokens_in,
            "tokens_cached": self.tokens_cached,
            "tokens_out": self.tokens_out,
            "latency_s": self.latency_s,
            "queued_s": self.queued_s,
        }
        return data | ({"usd": self.usd} if self.usd else {})

    def lasting(self, seconds: float) -> Usage:
        """Return the usage with `seconds` as its total time, split into waiting and latency."""
        queued = min(self.queued_s, seconds)
        return replace(self, latency_s=seconds - queued, queued_s=queued)


def concurrent_usage(usages: Sequence[Usage]) -> Usage:
    """Return the cost of concurrent work: all tokens, and the times of the slowest part."""
    longest = max(usages, key=lambda u: u.latency_s + u.queued_s, default=Usage())
    total = sum(usages, Usage())
    return replace(total, latency_s=longest.latency_s, queued_s=longest.queued_s)


_VIEWS = ("rating", "expected", "direct", "pessimistic")
_READ_OUTCOMES = (Outcome.OK, Outcome.UNPARSABLE, Outcome.TRUNCATED, Outcome.NO_NUMBER)
"""Outcomes of judgements whose judge read the response and gave a verdict or none."""
OF_DISTRIBUTION = ("expected", "pessimistic")
"""Views that are computed from the rating's distribution."""
RISK = 1.0
"""Temperature b of the view `pessimistic`, in rating points."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """Verdict and critique for one `JudgeInput`, or the outcome and reason if there is none."""

    outcome: Outcome
    """OK if and only if there are readings."""
    reason: str = ""
    """Why the outcome is not OK. Empty if it is."""
    critique: str = ""
    """Text that the judge wrote, without its thinking."""
    readings: tuple[Reading, ...] = ()
    """One reading for each slot of the protocol, and one named `direct` if that rating was read."""
    usage: Usage = field(default_factory=Usage)
    """Cost of the judgement."""
    judge: str = ""
    """Fingerprint of the judge."""
    flags: tuple[str, ...] = ()
    """Names of findings about the input and changes to it, such as `planted_verdict` and
    `input_truncated`."""
    thinking: str = ""
    """Text of the judge's thinking block. It is never read as a verdict."""

    def __post_init__(self) -> None:
        if (self.outcome is Outcome.OK) != bool(self.readings):
            raise ValueError(f"outcome {self.outcome} with the readings {self.readings}")

    @classmethod
    def of_score(cls, score: float) -> Judgement:
        """Return the judgement of a scalar reward model. The score is its value in every view."""
        label = f"{score:g}"
        readings = (Reading(name, label, score, expected=score) for name in (RATING, DIRECT))
        return cls(Outcome.OK, readings=tuple(readings))

    @classmethod
    def of_verdict(cls, verdict: Verdict) -> Judgement:
        """Return the judgement of a comparison without a distribution."""
        return cls(Outcome.OK, readings=(Reading(VERDICT, verdict.value),))

    @property
    def ok(self) -> bool:
        """Whether the outcome is OK."""
        return self.outcome is Outcome.OK

    @property
    def why(self) -> str:
        """Outcome and reason in one line, for errors and logs."""
        return f"{self.outcome}: {self.reason}"

    def spoiled(self, place: int = 1, count: int = 1) -> bool:
        """Return whether a number that this judgement lacks counts as the lowest for a response.

        It does where the response contains a whole verdict and the judge's output has none that is
        believed: else a policy could plant a verdict to escape a low rating. It does not where the
        judge never read the response, or where its verdict was read and is only uncertain.

        place: number of the response, from 1, among the `count` that the judgement shows.
        """
        return planted_flag(place, count) in self.flags and self.outcome in _READ_OUTCOMES

    @property
    def forced(self) -> bool:
        """Whether any slot was forced."""
        return any(reading.forced for reading in self.readings)

    def reading(self, slot: str) -> Reading | None:
        """Return the reading of a slot. None if the judgement has no such slot or is not OK."""
        for reading in self.readings:
            if reading.slot == slot:
                return reading
        return None

    @property
    def rating(self) -> float | None:
        """Rating that the judge wrote, or the most probable one of a forced slot."""
        reading = self.reading(RATING)
        return reading.value if reading else None

    @property
    def expected(self) -> float | None:
        """Mean of the rating's distribution."""
        reading = self.reading(RATING)
        return reading.expected if reading else None

    @property
    def pessimistic(self) -> float | None:
        """Soft minimum of the rating's distribution, with b = RISK; see `soft_minimum`.

        A scalar reward model's score has no distribution and counts as certain.
        """
        reading = self.reading(RATING)
        if reading is None or reading.expected is None or reading.distribution is None:
            return reading.expected if reading else None
        return soft_minimum([(float(label), p) for label, p in reading.distribution], RISK)

    @property
    def direct(self) -> float | None:
        """Expected rating read right after the prompt, before any critique."""
        reading = self.reading(DIRECT)
        return reading.expected if reading else None

    @property
    def verdict(self) -> Verdict | None:
        """FIRST, SECOND or TIE if this is a comparison; else None."""
        reading = self.reading(VERDICT)
        return Verdict(reading.label) if reading else None

    @property
    def confidence(self) -> tuple[tuple[str, float], ...] | None:
        """Pairs (verdict, probability) at the slot of a comparison. None if they were not read."""
        reading = self.reading(VERDICT)
        return reading.distribution if reading else None

    def view(self, name: str) -> float | None:
        """Return the number named `rating`, `expected`, `direct` or `pessimistic`.

        None if the judgement is not OK or lacks it. Raises ValueError for another name.
        """
        if name not in _VIEWS:
            raise ValueError(f"no view {name!r}: name one of {', '.join(_VIEWS)}")
        number: float | None = getattr(self, name)
        return number

    def spread(self, view: str) -> float | None:
        """Return the standard deviation of the distribution behind a view, in rating points.

        None without a distribution. With several critiques it is that of their mean distribution,
        so critiques that disagree widen it.
        """
        reading = self.reading(DIRECT if view == "direct" else RATING)
        if reading is None or reading.expected is None or reading.distribution is None:
            return None
        numbers = [(float(label), p) for label, p in reading.distribution]
        total = sum(p for _, p in numbers)
        mean = sum(p * number for number, p in numbers) / total
        return math.sqrt(sum(p * (number - mean) ** 2 for number, p in numbers) / total)

    def with_number(self, view: str) -> Judgement:
        """Return the judgement, with outcome NO_NUMBER if it is OK but lacks the view."""
        if not self.ok or self.view(view) is not None:
            return self
        rating_note = f" beside its rating {self.rating:g}" if self.rating is not None else ""
        reason = f"the judge gave no {view} number{rating_note}: {self._explain_lack()}"
        return replace(self, outcome=Outcome.NO_NUMBER, reason=reason, readings=())

    def with_direct(self, direct: Judgement) -> Judgement:
        """Return this rating with the rating of `direct` added as its `direct` reading.

        The cost is the sum of both. A judgement without a rating is returned unchanged.
        """
        direct_reading = direct.reading(RATING)
        if self.rating is None or direct_reading is None:
            return self if self.rating is None else replace(self, usage=self.usage + direct.usage)
        others = (reading for reading in self.readings if reading.slot != DIRECT)
        readings = (*others, replace(direct_reading, slot=DIRECT))
        return replace(self, readings=readings, usage=self.usage + direct.usage)

    def lacks(self, view: str) -> bool:
        """Return whether the view needs probabilities and this rating came without them."""
        reading = self.reading(RATING)
        if view not in OF_DISTRIBUTION or reading is None:
            return False
        return reading.expected is None and reading.distribution is None

    def _explain_lack(self) -> str:
        reading = self.reading(RATING)
        if reading is None or reading.distribution is None:
            return "its engine told no probabilities"
        return f"{1 - (reading.outside or 0):.4f} of the probability is on the scale"

    def record(self) -> dict[str, Any]:
        """Return the judgement as JSON data.

        Besides the readings it holds `rating`, `verdict` and `confidence` under the names of result
        fields.
        """
        rating = self.reading(RATING)
        return {
            "outcome": self.outcome.value,
            "reason": self.reason,
            "critique": self.critique,
            "rating": _make_rating_record(rating, self.direct) if rating else None,
            "verdict": self.verdict.value if self.verdict else None,
            "confidence": self.confidence,
            "forced": self.forced,
            "readings": [reading.record() for reading in self.readings],
            "usage": self.usage.record(),
            "judge": self.judge,
            "flags": self.flags,
            "thinking": self.thinking,
        }


def soft_minimum(weighted: Sequence[tuple[float, float]], b: float) -> float:
    """Return -b log E[exp(-r/b)] of numbers r, given as (number, weight) pairs.

    It lies between the least number, which it nears as b falls to 0, and the mean, which it nears
    as b grows. For a normal distribution it is the mean less the variance over 2b. Weights of 0 do
    not count, and at least one must be above 0. Raises ValueError for b of 0 or less.
    """
    if b <= 0:
        raise ValueError(f"b is {b}: give a number above 0")
    counted = [(number, weight) for number, weight in weighted if weight > 0]
    least, total, scaled = min(counted)[0], 0.0, 0.0
    for number, weight in counted:
        total += weight
        # Relative to the least number no exponent is positive, so that nothing overflows.
        scaled += weight * math.exp((least - number) / b)
    return least - b * math.log(scaled / total)


def _make_rating_record(rating: Reading, direct: float | None) -> dict[str, Any]:
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
    """Two responses compared in both orders (paper, section 5.1)."""

    verdict: Verdict
    """Verdict over both orders."""
    orders: tuple[Judgement, ...]
    """Judgement of (first, second), then of (second, first) unless that was turned off."""
    reason: str = ""
    """Why the verdict is INCONSISTENT or FAILED. Empty otherwise."""

    def record(self) -> dict[str, Any]:
        """Return the comparison as JSON data."""
        orders = [judgement.record() for judgement in self.orders]
        return {"verdict": self.verdict.value, "orders": orders, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class Selection:
    """Chosen candidate of a group, and the rule that decided."""

    index: int
    """Index of the chosen candidate in its group."""
    rule: str
    """`only`, `rating`, `expected`, `direct`, `relative`, a tie-break's name, or `all_failed`."""
    tied: tuple[int, ...] = ()
    """Indices of the candidates that shared the best value before tie-breaking."""
    comparisons: tuple[tuple[int, int, Verdict], ...] = ()
    """Knock-out matches played, as (index, index, verdict)."""


@dataclass(frozen=True, slots=True)
class BadRow:
    """Input row that was left out: its place and what is wrong with it."""

    file: str
    line: int
    """Line number, from 1."""
    field: str
    """Name of the field at fault. Empty if the whole row is."""
    reason: str
    layout: str = ""
    """How the row was read. Empty for the package's own names, and where no layout fits."""

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}"
        layout = f" (layout {self.layout})" if self.layout else ""
        if not self.field:
            return f"{where}: {self.reason}{layout}"
        return f"{where}: field {self.field!r}: {self.reason}{layout}"
