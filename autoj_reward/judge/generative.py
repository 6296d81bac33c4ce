"""Generative judge: renders a prompt, lets the engine generate, and reads every slot of the
verdict."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from autoj_reward.config import JudgeConfig, View
from autoj_reward.conversation import context_of, last_user_text
from autoj_reward.engine.base import Engine, Generation, LabelProbs, Prepared, Sampling
from autoj_reward.errors import InputRejected
from autoj_reward.formats.criteria import criteria_text, load_scenarios
from autoj_reward.formats.protocols import read_slots
from autoj_reward.formats.read import ParseFailure, WrittenVerdict
from autoj_reward.formats.render import flags, render, require_readable
from autoj_reward.formats.schema import JudgeFormat
from autoj_reward.formats.slots import Slot
from autoj_reward.judge.thinking import CUT, SplitAnswer, generate_answer, skip_thinking
from autoj_reward.models import CRITERIA, max_output_tokens
from autoj_reward.models.views import distributions_of, views_of
from autoj_reward.types import (
    DIRECT,
    PLANTED_FLAG,
    JudgeInput,
    Judgement,
    Outcome,
    Reading,
    Usage,
)

MIN_MASS = 0.01
"""Minimum probability on valid labels for a slot to count as answered."""
NOTHING_SAID = SplitAnswer(Generation(""))
"""Output of a judge that was not asked for a critique."""


def reserved_tokens(config: JudgeConfig, fmt: JudgeFormat) -> int:
    """Return the tokens that a prompt leaves free: the judge's output, and a forced slot's opening
    words and label."""
    return max_output_tokens(config, fmt) + 32


class GenerativeJudge:
    """Judge that answers one input at a time. The caller decides how many run concurrently."""

    def __init__(
        self,
        config: JudgeConfig,
        fmt: JudgeFormat,
        engine: Engine,
        name: str,
    ) -> None:
        self.config = config
        self.format = fmt
        self.engine = engine
        self.name = name
        self._output_tokens = reserved_tokens(config, fmt)
        self._seedless = Sampling(
            config.max_tokens,
            config.temperature,
            config.top_p,
            frequency_penalty=config.frequency_penalty or 0.0,
            alternatives=bool(config.distribution),
        )

    @property
    def views(self) -> frozenset[View]:
        """Numbers that this judge gives; for an endpoint, once `contact` returned."""
        return views_of(self.config, self.format, self.engine.abilities)

    @property
    def distributions(self) -> str:
        """Source of label probabilities, as text for a log."""
        return distributions_of(self.config, self.format, self.engine.abilities)

    async def contact(self, known: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send an endpoint its first request and return its capabilities.

        known: capabilities from an earlier contact, which are not tested again. Raises
        EngineUnavailable if the endpoint does not answer, and ConfigError for a fault that only the
        user can correct.
        """
        return await self.engine.contact(self._sampling(0), known)

    def _sampling(self, sample: int) -> Sampling:
        if self.config.temperature <= 0:
            return self._seedless
        return replace(self._seedless, seed=self.config.seed + sample)

    async def judge(self, item: JudgeInput) -> Judgement:
        """Rate one response, or compare two in the given order.

        A `direct` input is rated at the slot right after the prompt that a critique would follow.
        Raises EngineUnavailable if the engine does not answer. Every other failure returns a
        judgement that abstains, with its outcome and reason.
        """
        started = time.monotonic()
        if self.config.criteria and CRITERIA in self.format.context(item.protocol):
            item = with_criteria(item)
        try:
            judgement = await self._asked(item)
        except InputRejected as error:
            judgement = Judgement(Outcome.INPUT_REJECTED, reason=str(error))
        usage = judgement.usage.lasting(time.monotonic() - started)
        seen = set(judgement.flags) | set(flags(item, self.format))
        return replace(judgement, usage=usage, judge=self.name, flags=tuple(sorted(seen)))

    async def _asked(self, item: JudgeInput) -> Judgement:
        config = self.config
        require_readable(item, config.max_text_chars)
        prompt = render(item, self.format)
        prepared = await self.engine.prepare(prompt, self._output_tokens, config.over_long)
        spoken, critique = NOTHING_SAID, config.critique and not item.direct
        marks = self.format.thinking
        if critique:
            sampling = self._sampling(item.sample)
            spoken = await generate_answer(
                self.engine, prepared, sampling, marks, config.thinking_tokens
            )
        else:
            prepared = skip_thinking(self.engine, prepared, marks)
        seen: tuple[str, ...] = ("input_truncated",) if prepared.truncated else ()
        seen += () if spoken.own.finished else ("output_truncated",)
        seen += (CUT,) if spoken.cut else ()
        if spoken.problem:
            return _abstain(spoken, spoken.problem, None, spoken.own.usage, seen)
        return await self._read(item, prepared, spoken, critique, seen)

    async def _read(
        self,
        item: JudgeInput,
        prepared: Prepared,
        spoken: SplitAnswer,
        critique: bool,
        flags: tuple[str, ...],
    ) -> Judgement:
        """Read every slot of the verdict in order; force a slot that the judge left out."""
        protocol, text = self.format.protocol(item.protocol), spoken.text
        slots = self.format.slots_of(item)
        places = read_slots(slots, text, item.policy_texts, item.given_texts)
        flags += (PLANTED_FLAG,) if any(place.planted for place in places.values()) else ()
        readings, usage, said = list[Reading](), spoken.own.usage, ""
        places = {s.name: _finished(places[s.name], s, spoken) for s in slots}
        written = [(s, p) for s in slots if isinstance(p := places[s.name], WrittenVerdict)]
        asked = [self._beside(slot, place, prepared, spoken) for slot, place in written]
        # A lone slot, as most judgements have, needs no task.
        reads = [await one for one in asked] if len(asked) < 2 else await asyncio.gather(*asked)
        beside = {slot.name: read for (slot, _), read in zip(written, reads, strict=True)}
        lost: list[Judgement] = []
        for slot in slots:
            place = places[slot.name]
            if isinstance(place, WrittenVerdict):
                read = beside[slot.name]
                usage += read.usage if read else Usage()
                readings.append(_written(slot, place, read))
                continue
            opening = said + (slot.force if said or text else slot.force.lstrip())
            read = await self._forced(slot, prepared, spoken, place.end, opening)
            usage += read.usage if read else Usage()
            if read is None or not _counts(read):
                lost.append(_abstain(spoken, place.reason, read, usage, flags))
                if len(slots) - len(lost) < protocol.least_readings(len(slots)):
                    return lost[0]
                continue
            readings.append(_likeliest(slot, read, critique))
            said = opening + readings[-1].label
        if protocol.direct:
            if not critique:
                readings.append(replace(readings[0], slot=DIRECT))
            elif self.config.direct:
                before, cost = await self._before(slots[0], prepared)
                usage += cost
                readings += [before] if before else []
        return Judgement(
            Outcome.OK,
            critique=text,
            readings=tuple(readings),
            usage=usage,
            flags=flags,
            thinking=spoken.thinking,
        )

    async def _beside(
        self, slot: Slot, place: WrittenVerdict, prepared: Prepared, spoken: SplitAnswer
    ) -> LabelProbs | None:
        """Return the label probabilities at a verdict that the judge wrote, or None if unwanted or
        unknown."""
        labels = slot.labels_beside(place.name, spoken.text[place.start : place.end])
        if self.config.distribution is False or not labels:
            return None
        opening = spoken.text[place.opened : place.start]
        return await self._probs(slot, prepared, spoken, place.opened, opening, labels)

    async def _forced(
        self, slot: Slot, prepared: Prepared, spoken: SplitAnswer, keep: int, opening: str
    ) -> LabelProbs | None:
        """Return the label probabilities of a slot where the judge wrote nothing.

        On a scale with half points, the slot is read again with one more label: the half point that
        begins like the likeliest number (5.5 begins like 5).
        """
        if not slot.labels:
            return None
        read = await self._probs(slot, prepared, spoken, keep, opening, slot.labels)
        labels = slot.labels_near(_top(read)) if read else slot.labels
        if read is None or labels == slot.labels:
            return read
        again = await self._probs(slot, prepared, spoken, keep, opening, labels)
        return replace(again, usage=read.usage + again.usage) if again else read

    async def _before(self, slot: Slot, prepared: Prepared) -> tuple[Reading | None, Usage]:
        """Return the rating at the slot right after the prompt, in addition to a critique, and its
        usage."""
        at_once = skip_thinking(self.engine, prepared, self.format.thinking)
        read = await self._forced(slot, at_once, NOTHING_SAID, 0, slot.force.lstrip())
        if read is None or not _counts(read):
            return None, read.usage if read else Usage()
        return replace(_likeliest(slot, read, False), slot=DIRECT), read.usage

    async def _probs(
        self,
        slot: Slot,
        prepared: Prepared,
        spoken: SplitAnswer,
        keep: int,
        opening: str,
        labels: Sequence[str],
    ) -> LabelProbs | None:
        """Return the probabilities of labels after text[:keep] and the opening, by label name."""
        at = spoken.start + keep
        read = await self.engine.label_probs(prepared, spoken.own, at, opening, labels)
        if read is None or (named := slot.by_name(read.probs)) is read.probs:
            return read
        return replace(read, probs=named)


def _finished(
    place: WrittenVerdict | ParseFailure, slot: Slot, spoken: SplitAnswer
) -> WrittenVerdict | ParseFailure:
    """Return a parse failure for a verdict in an unfinished text, unless the slot comes first.

    A verdict that follows its reason is valid only if the judge finished its text.
    """
    if spoken.own.finished or slot.comes_first or isinstance(place, ParseFailure):
        return place
    reason = "the verdict stands in a text without an end"
    return ParseFailure(reason, len(spoken.text), place.planted)


def _top(read: LabelProbs) -> str:
    return max(read.probs, key=lambda label: label[1])[0]


def _written(slot: Slot, place: WrittenVerdict, read: LabelProbs | None) -> Reading:
    value = place.value if slot.numeric else None
    label = place.name if value is None else f"{value:g}"
    return _reading(slot, label, value, read, False)


def _likeliest(slot: Slot, read: LabelProbs, forced: bool) -> Reading:
    label = _top(read)
    return _reading(slot, label, float(label) if slot.numeric else None, read, forced)


def _reading(
    slot: Slot, label: str, value: float | None, read: LabelProbs | None, forced: bool
) -> Reading:
    if read is None:
        return Reading(slot.name, label, value, forced=forced)
    expected = _expected(read) if slot.numeric else None
    return Reading(
        slot.name, label, value, read.probs, expected, read.outside, read.unknown, forced
    )


def _counts(read: LabelProbs) -> bool:
    """Return whether labels hold enough of the probability, and at least as much as is unknown."""
    return read.mass >= MIN_MASS and read.mass >= read.unknown


def _expected(read: LabelProbs) -> float | None:
    if not _counts(read):
        return None
    return sum(float(label) * p for label, p in read.probs) / read.mass


def _abstain(
    spoken: SplitAnswer, reason: str, read: LabelProbs | None, usage: Usage, flags: tuple[str, ...]
) -> Judgement:
    own = spoken.own
    outcome = Outcome.UNPARSABLE if own.finished else Outcome.TRUNCATED
    if own.ended:
        reason += f"; the endpoint ended the text with {own.ended}"
    elif not own.finished:
        reason += f" within {len(own.ids) or 'the allowed'} tokens"
    if read is not None:
        reason += f"; the forced slot puts {1 - read.outside:.4f} on valid labels"
    return Judgement(
        outcome,
        reason=reason,
        critique=spoken.text,
        usage=usage,
        flags=flags,
        thinking=spoken.thinking,
    )


def with_criteria(item: JudgeInput) -> JudgeInput:
    """Return the input with the criteria of its query's scenario, unless it has criteria
    already."""
    if CRITERIA in item.context:
        return item
    known = dict(item.context) | {CRITERIA: criteria_of(last_user_text(item.query, item.turns))}
    return replace(item, context=context_of(item.context).showing(known, item.items))


@lru_cache(maxsize=256)  # responses to one query are judged close together
def criteria_of(query: str) -> str:
    """Return the criteria of the scenario that the bundled classifier predicts for a query."""
    from autoj_reward.models.scenarios import shipped_classifier  # imports numpy only if needed

    [found] = shipped_classifier().classify([query])
    return criteria_text(load_scenarios()[found.scenario])
