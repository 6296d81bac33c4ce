"""The generative judge: prompt, engine, parse, and the reading at the rating slot."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeVar

from autoj_reward.config import JudgeConfig, View
from autoj_reward.context import Context
from autoj_reward.conversation import question
from autoj_reward.engine.base import Engine, Generation, LabelProbs, Prepared, Sampling
from autoj_reward.errors import InputRejected
from autoj_reward.formats.comparison import ParsedVerdict, parse_comparison
from autoj_reward.formats.criteria import criteria_text, load_scenarios
from autoj_reward.formats.rating import ParsedRating, parse_rating
from autoj_reward.formats.render import flags, render, require_readable
from autoj_reward.formats.schema import JudgeFormat
from autoj_reward.formats.verdict import ParseFailure
from autoj_reward.judge.thinking import CUT, Spoken, silent, speak
from autoj_reward.models import CRITERIA, frequency_penalty, max_output_tokens
from autoj_reward.models.views import distributions_of, views_of
from autoj_reward.types import (
    PLANTED,
    JudgeInput,
    Judgement,
    Outcome,
    Rating,
    Usage,
    Verdict,
    concurrent_usage,
)

P = TypeVar("P", ParsedRating, ParsedVerdict)
Shown = tuple[Sequence[str], Sequence[str]]
"""The texts of a policy's that a judge read, and the others."""

MIN_MASS = 0.01
"""Least probability on valid labels for a slot to count as an answer."""
BY_RATINGS = "compared_by_ratings"
"""The flag of a comparison that was made of two ratings."""


class GenerativeJudge:
    """Judges one input at a time; many at once is the caller's business.

    tie: with a number, two responses are compared by their ratings, and tie at most so far apart.
    """

    def __init__(
        self,
        config: JudgeConfig,
        fmt: JudgeFormat,
        engine: Engine,
        name: str,
        tie: float | None = None,
    ) -> None:
        self.config = config
        self.format = fmt
        self.engine = engine
        self.name = name
        self.tie = tie
        self._alone = Readings(self._asked)

    @property
    def views(self) -> frozenset[View]:
        """The numbers that this judge gives; of an endpoint, once `contact` has returned."""
        return views_of(self.config, self.engine.abilities)

    @property
    def distributions(self) -> str:
        """Where label probabilities come from, for a log."""
        return distributions_of(self.config, self.engine.abilities)

    async def contact(self, known: Mapping[str, Any]) -> Mapping[str, Any]:
        """Ask an endpoint what it can, unless `known` says; return what is known then. Raises
        EngineUnavailable if nobody answers, ConfigError for what only the user can mend."""
        return await self.engine.contact(self._sampling(0), known)

    def _sampling(self, sample: int) -> Sampling:
        config = self.config
        return Sampling(
            config.max_tokens,
            config.temperature,
            config.top_p,
            seed=config.seed + sample if config.temperature > 0 else None,
            frequency_penalty=frequency_penalty(config),
            alternatives=bool(config.distribution),
        )

    async def judge(self, item: JudgeInput) -> Judgement:
        """Rate one response, or compare two in the given order. A `direct` input is rated at the
        slot right after the prompt, the same prompt that a critique would follow.

        Raises EngineUnavailable when the engine does not answer; every other failure comes back
        as a judgement that abstains with its outcome and reason.
        """
        started = time.monotonic()
        if self.config.criteria and CRITERIA in self.format.context(item.kind):
            item = with_criteria(item)
        try:
            judgement = await self._judge(item)
        except InputRejected as error:
            judgement = Judgement(Outcome.INPUT_REJECTED, reason=str(error))
        usage = judgement.usage.lasting(time.monotonic() - started)
        seen = set(judgement.flags) | set(flags(item, self.format))
        return replace(judgement, usage=usage, judge=self.name, flags=tuple(sorted(seen)))

    async def _judge(self, item: JudgeInput) -> Judgement:
        if item.kind == "single" or self.tie is None:
            return await self._asked(item)
        alone = (replace(item, responses=(text,), direct=True) for text in item.responses)
        return by_ratings(await asyncio.gather(*map(self._alone.read, alone)), self.tie)

    async def _asked(self, item: JudgeInput) -> Judgement:
        config = self.config
        require_readable(item, config.max_text_chars)
        # Room for the forced slot: its own words and the label's tokens.
        output = max_output_tokens(config, self.format) + 32
        prepared = await self.engine.prepare(render(item, self.format), output, config.over_long)
        spoken, critique = Spoken(Generation("")), config.critique and not item.direct
        marks = self.format.thinking
        if critique:
            sampling = self._sampling(item.sample)
            spoken = await speak(self.engine, prepared, sampling, marks, config.thinking_tokens)
        else:
            prepared = silent(self.engine, prepared, marks)
        shown = (item.policy_texts, item.given_texts)
        if spoken.problem:
            judgement = _abstain(spoken.own, spoken.problem, None, spoken.own.usage, ())
        elif item.kind == "single":
            judgement = await self._rating(prepared, spoken, shown, critique)
        else:
            judgement = await self._verdict(prepared, spoken, shown, critique)
        seen = judgement.flags
        seen += ("input_truncated",) if prepared.truncated else ()
        seen += () if spoken.own.finished else ("output_truncated",)
        seen += (CUT,) if spoken.cut else ()
        return replace(judgement, critique=spoken.text, thinking=spoken.thinking, flags=seen)

    async def _rating(
        self, prepared: Prepared, spoken: Spoken, shown: Shown, critique: bool
    ) -> Judgement:
        slot, scale, own = self.format.slot("single"), self.format.scale, spoken.own
        parsed = _finished(parse_rating(spoken.text, self.format, *shown), spoken)
        flags = (PLANTED,) if parsed.planted else ()
        forced, labels = critique and isinstance(parsed, ParseFailure), scale.labels
        if isinstance(parsed, ParseFailure):
            keep, opening = parsed.end, slot.force if spoken.text else slot.force.lstrip()
        else:
            keep, opening = parsed.opened, spoken.text[parsed.opened : parsed.start]
            labels = scale.with_half(parsed.value)  # 5.5 begins like 5
        read = None
        if isinstance(parsed, ParseFailure):
            read = await self._halved(prepared, spoken, keep, opening)
        elif self.config.distribution is not False:
            read = await self._slot(prepared, spoken, keep, opening, labels)
        usage = own.usage + (read.usage if read else Usage())
        if isinstance(parsed, ParseFailure):
            if read is None or not _counts(read):
                return _abstain(own, parsed.reason, read, usage, flags)
            value = _likeliest(read)
        else:
            value = parsed.value
        if read is None:
            return Judgement(Outcome.OK, rating=Rating(value), usage=usage, flags=flags)
        before = None if critique else read
        if critique and self.config.direct:
            nothing, force = Spoken(Generation("")), slot.force.lstrip()
            at_once = silent(self.engine, prepared, self.format.thinking)
            before = await self._halved(at_once, nothing, 0, force)
            usage += before.usage if before else Usage()
        rating = Rating(
            value=value,
            distribution=read.probs,
            expected=_expected(read),
            direct=_expected(before),
            outside=read.outside,
            forced=forced,
            unknown=read.unknown,
        )
        return Judgement(Outcome.OK, rating=rating, forced=forced, usage=usage, flags=flags)

    async def _slot(
        self, prepared: Prepared, spoken: Spoken, keep: int, opening: str, labels: Sequence[str]
    ) -> LabelProbs | None:
        """The probabilities of the scale's numbers after text[:keep] and the opening."""
        at = spoken.start + keep
        read = await self.engine.label_probs(prepared, spoken.own, at, opening, labels)
        return replace(read, probs=self.format.scale.numbered(read.probs)) if read else None

    async def _halved(
        self, prepared: Prepared, spoken: Spoken, keep: int, opening: str
    ) -> LabelProbs | None:
        """The probabilities of a slot where the judge wrote nothing, with the half point told apart
        that begins like the likeliest number."""
        scale = self.format.scale
        read = await self._slot(prepared, spoken, keep, opening, scale.labels)
        labels = scale.with_half(_likeliest(read) + 0.5) if read else scale.labels
        if read is None or labels == scale.labels:
            return read
        again = await self._slot(prepared, spoken, keep, opening, labels)
        return replace(again, usage=read.usage + again.usage) if again else read

    async def _verdict(
        self, prepared: Prepared, spoken: Spoken, shown: Shown, critique: bool
    ) -> Judgement:
        slot, own = self.format.pairwise, spoken.own
        assert slot is not None  # render() has refused formats without one
        parsed = parse_comparison(spoken.text, self.format, *shown)
        if not slot.comes_first:
            parsed = _finished(parsed, spoken)
        flags = (PLANTED,) if parsed.planted else ()
        if not isinstance(parsed, ParseFailure):
            return Judgement(Outcome.OK, verdict=parsed.verdict, usage=own.usage, flags=flags)
        if not slot.canonical:  # two numbers, of which no one slot knows the order
            return _abstain(own, parsed.reason, None, own.usage, flags)
        force = slot.force if spoken.text else slot.force.lstrip()
        at = spoken.start + parsed.end
        read = await self.engine.label_probs(prepared, own, at, force, list(slot.canonical))
        usage = own.usage + (read.usage if read else Usage())
        if read is None or not _counts(read):
            return _abstain(own, parsed.reason, read, usage, flags)
        label = max(read.probs, key=lambda pair: pair[1])[0]
        confidence = tuple((slot.canonical[name].value, p) for name, p in read.probs)
        return Judgement(
            Outcome.OK,
            verdict=slot.canonical[label],
            confidence=confidence,
            forced=critique,
            usage=usage,
            flags=flags,
        )


def _finished(parsed: P | ParseFailure, spoken: Spoken) -> P | ParseFailure:
    """A verdict stands only at the end of a text that has one."""
    if spoken.own.finished or isinstance(parsed, ParseFailure):
        return parsed
    return ParseFailure(
        "the verdict stands in a text without an end", len(spoken.text), parsed.planted
    )


def _likeliest(read: LabelProbs) -> float:
    return float(max(read.probs, key=lambda label: label[1])[0])


def _counts(read: LabelProbs) -> bool:
    """Whether enough of the probability lies on labels, and more than on what is unknown."""
    return read.mass >= MIN_MASS and read.mass >= read.unknown


def _expected(read: LabelProbs | None) -> float | None:
    if read is None or not _counts(read):
        return None
    return sum(float(label) * p for label, p in read.probs) / read.mass


def _abstain(
    own: Generation, reason: str, read: LabelProbs | None, usage: Usage, flags: tuple[str, ...]
) -> Judgement:
    outcome = Outcome.UNPARSABLE if own.finished else Outcome.TRUNCATED
    if own.ended:
        reason += f"; the endpoint ended the text with {own.ended}"
    elif not own.finished:
        reason += f" within {len(own.ids) or 'the allowed'} tokens"
    if read is not None:
        reason += f"; the forced slot puts {1 - read.outside:.4f} on valid labels"
    return Judgement(outcome, reason=reason, usage=usage, flags=flags)


def with_criteria(item: JudgeInput) -> JudgeInput:
    """The input with the criteria of its query's scenario, unless it brings its own."""
    if CRITERIA in item.context:
        return item
    known = dict(item.context) | {CRITERIA: criteria_of(question(item.query, item.turns))}
    return replace(item, context=Context(known, item.turns))


@lru_cache(maxsize=256)  # responses to one query come together
def criteria_of(query: str) -> str:
    """The criteria of the scenario that the shipped classifier finds."""
    from autoj_reward.models.scenarios import shipped_classifier  # numpy, which others do without

    [found] = shipped_classifier().classify([query])
    return criteria_text(load_scenarios()[found.scenario])


@lru_cache
def criteria_digest() -> str:
    """Names the classifier and every criterion: with others it may be another judgement."""
    from autoj_reward.models.scenarios import CLASSIFIER_FILES

    texts = "\0".join(criteria_text(scenario) for scenario in load_scenarios())
    files = [(CLASSIFIER_FILES / name).read_bytes() for name in ("vocabulary.json", "weights.npz")]
    return hashlib.sha256(b"\0".join([*files, texts.encode()])).hexdigest()[:16]


def by_ratings(alone: Sequence[Judgement], tie: float) -> Judgement:
    """The verdict of the judgements of two responses, each rated alone, for a model
    whose own comparisons mean nothing.

    A small judge may name the response shown second whatever the two say. Rated alone, each at the
    slot right after the prompt, the responses have no place to be preferred for.

    The higher expected rating wins; at most `tie` apart, they tie. Where either abstains, so does
    the verdict, with that one's outcome and reason.
    """
    usage = concurrent_usage([judgement.usage for judgement in alone])
    flags = tuple(sorted({BY_RATINGS, *(flag for judgement in alone for flag in judgement.flags)}))
    values = [judgement.view("expected") for judgement in alone]
    for place, (judgement, value) in enumerate(zip(alone, values, strict=True), 1):
        if value is None:
            outcome = Outcome.UNPARSABLE if judgement.ok else judgement.outcome
            reason = f"response {place} has no expected rating: {judgement.reason}"
            return Judgement(outcome, reason=reason, usage=usage, flags=flags)
    first, second = (value for value in values if value is not None)
    verdict = Verdict.FIRST if first > second else Verdict.SECOND
    if abs(first - second) <= tie:
        verdict = Verdict.TIE
    return Judgement(Outcome.OK, verdict=verdict, usage=usage, flags=flags)


class Readings:
    """Ratings of responses alone: one that is under way is read once, whoever asks for it, since
    both orders of a pair do. It costs the first who asked, and ends with the last who waits."""

    def __init__(self, ask: Callable[[JudgeInput], Coroutine[Any, Any, Judgement]]) -> None:
        self._ask = ask
        self._under_way: dict[JudgeInput, asyncio.Task[Judgement]] = {}
        self._waiting: Counter[JudgeInput] = Counter()

    async def read(self, item: JudgeInput) -> Judgement:
        """The judgement of one response."""
        first = item not in self._under_way
        if first:
            self._under_way[item] = asyncio.create_task(self._ask(item))
        task = self._under_way[item]
        self._waiting[item] += 1
        try:
            judgement = await asyncio.shield(task)
        finally:
            self._waiting[item] -= 1
            if not self._waiting[item]:
                del self._waiting[item], self._under_way[item]
                task.cancel()
        return judgement if first else replace(judgement, usage=Usage())
