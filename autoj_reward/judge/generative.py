"""Generative judge: renders a prompt, lets the engine generate, and reads every slot of the
verdict."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from autoj_reward.config import MAX_CRITIQUES, JudgeConfig
from autoj_reward.conversation import Context
from autoj_reward.engine.base import Engine, Generation, LabelProbs, Prepared, Sampling
from autoj_reward.errors import InputRejected
from autoj_reward.formats.criteria import criteria_text, load_scenarios
from autoj_reward.formats.protocols import find_quoted, read_slots
from autoj_reward.formats.read import QUOTED, ParseFailure, PlantSearch, WrittenVerdict
from autoj_reward.formats.render import (
    RenderedPrompt,
    find_planting,
    flags,
    render,
    require_readable,
)
from autoj_reward.formats.schema import JudgeFormat
from autoj_reward.formats.slots import Slot
from autoj_reward.judge.texts import TextWork
from autoj_reward.judge.thinking import CUT, SplitAnswer, generate_answer, skip_thinking
from autoj_reward.media import OMITTED_FLAG
from autoj_reward.models import CRITERIA, max_output_tokens
from autoj_reward.models.price import find_price
from autoj_reward.models.views import Abilities
from autoj_reward.types import (
    DIRECT,
    PLANTED_FLAG,
    RETRIED_FLAG,
    JudgeInput,
    Judgement,
    Outcome,
    Reading,
    Usage,
    planted_flag,
)

MIN_MASS = 0.01
"""Minimum probability on valid labels for a slot to count as answered."""
NOT_OPENED = "no slot is opened, because the policy wrote a verdict that the judge would repeat"
"""Note in the reason of a judgement whose slot was not opened for the judge."""
MORE_TEXT = (
    "raise max_tokens, or switch thinking off by judge.chat_template_kwargs or judge.extra_body"
)
"""What a user can do about a judge that only thinks."""
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
        self._marks = fmt.thinking.marks if fmt.thinking else None
        self.engine = engine
        self.name = name
        self._texts = TextWork()
        self._output_tokens = reserved_tokens(config, fmt)
        self._price = find_price(config)
        self._seedless = Sampling(
            config.max_tokens,
            config.temperature,
            config.top_p,
            frequency_penalty=config.frequency_penalty or 0.0,
            alternatives=bool(config.distribution),
        )

    @property
    def abilities(self) -> Abilities:
        """Where the engine tells probabilities; for an endpoint, once `contact` returned."""
        return self.engine.abilities

    async def contact(self, capabilities: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send an endpoint its first request and return its capabilities.

        capabilities: those of an earlier contact, which are not tested again. Raises
        EngineUnavailable if the endpoint does not answer, and ConfigError for a fault that only the
        user can correct.
        """
        sampling = replace(self._make_sampling(0), json_schema=self.format.first_schema)
        return await self.engine.contact(sampling, capabilities)

    def _make_sampling(self, sample: int, attempt: int = 0) -> Sampling:
        if self.config.temperature <= 0:
            return self._seedless
        # Seeds of further attempts lie beyond those of all critiques.
        seed = self.config.seed + sample + attempt * MAX_CRITIQUES
        return replace(self._seedless, seed=seed)

    async def judge(self, item: JudgeInput) -> Judgement:
        """Rate one response, or compare two in the given order.

        A `direct` input is rated at the slot right after the prompt that a critique would follow.
        Raises EngineUnavailable if the engine does not answer. Every other failure returns a
        judgement that abstains, with its outcome and reason.
        """
        started = time.monotonic()
        if self.config.criteria and CRITERIA in self.format.context(item.protocol):
            item = await self._texts.run(item, with_criteria, item)
        search = PlantSearch(self.format.slots_of(item))
        given_item = item
        try:
            item = item.show_media(self.config.media)
            judgement = await self._ask_and_read(item, search)
            found_flags = await self._texts.run(item, self._find_flags, item, search)
            for attempt in range(1, self.config.attempts):
                if not self._may_ask_again(judgement, found_flags):
                    break
                again = await self._ask_and_read(item, search, attempt)
                usage = judgement.usage + again.usage
                judgement = replace(again, usage=usage, flags=(*again.flags, RETRIED_FLAG))
        except InputRejected as error:
            judgement = Judgement(Outcome.INPUT_REJECTED, reason=str(error))
            found_flags = await self._texts.run(item, self._find_flags, item, search)
        usage = judgement.usage.lasting(time.monotonic() - started)
        if self._price:
            usage = replace(usage, usd=self._price.usd(usage))
        omitted = () if item is given_item else (OMITTED_FLAG,)
        flag_names = tuple(sorted({*judgement.flags, *found_flags, *omitted}))
        return replace(judgement, usage=usage, judge=self.name, flags=flag_names)

    def _find_flags(self, item: JudgeInput, search: PlantSearch) -> set[str]:
        """Return the flags of an input. Of several responses, each that plants a verdict has its
        own."""
        flag_names = set(flags(item, self.format, search))
        count = len(item.responses)
        if count > 1 and PLANTED_FLAG in flag_names:
            planting = find_planting(item, self.format, search)
            flag_names |= {planted_flag(place, count) for place in planting}
        return flag_names

    def _may_ask_again(self, judgement: Judgement, found_flags: Collection[str]) -> bool:
        """Return whether a reply without a verdict may be asked for again.

        Not where the engine reads a forced slot, and not where the reply or a response has a
        planted verdict: a policy would get another chance by it. found_flags: those of the input.
        """
        return (
            judgement.outcome is Outcome.UNPARSABLE
            and not self.engine.abilities.slots
            and PLANTED_FLAG not in judgement.flags
            and PLANTED_FLAG not in found_flags
        )

    def _render(self, item: JudgeInput) -> RenderedPrompt:
        require_readable(item, self.config.max_text_chars)
        return render(item, self.format)

    async def prepare(self, item: JudgeInput) -> Prepared:
        """Return the prompt of an input as the engine is given it, up to the judge's own words.

        Raises InputRejected for an input that cannot be judged.
        """
        prompt = await self._texts.run(item, self._render, item)
        prepared = await self.engine.prepare(prompt, self._output_tokens, self.config.over_long)
        begin = self.format.protocol(item.protocol).begin
        if begin and prepared.tail is not None:
            prepared = self.engine.extend_prompt(prepared, Generation(""), begin)
        return prepared

    async def _ask_and_read(
        self, item: JudgeInput, search: PlantSearch, attempt: int = 0
    ) -> Judgement:
        config = self.config
        prepared = await self.prepare(item)
        answer, critique = NOTHING_SAID, config.critique and not item.direct
        marks = self._marks
        if critique:
            schema = self.format.json_schema(item)
            sampling = replace(self._make_sampling(item.sample, attempt), json_schema=schema)
            answer = await generate_answer(
                self.engine, prepared, sampling, marks, config.thinking_tokens
            )
        else:
            prepared = skip_thinking(self.engine, prepared, marks)
        flag_names: tuple[str, ...] = ("input_truncated",) if prepared.truncated else ()
        is_ended = answer.own.finished or bool(answer.own.unknown_end)
        flag_names += () if is_ended else ("output_truncated",)
        flag_names += (CUT,) if answer.cut else ()
        if answer.problem:
            return _abstain(answer, answer.problem, None, answer.own.usage, flag_names)
        places, quoted = await self._texts.run(item, self._read_places, item, answer, search)
        return await self._complete_verdicts(
            item, prepared, answer, critique, flag_names, places, quoted
        )

    def _read_places(
        self, item: JudgeInput, answer: SplitAnswer, search: PlantSearch
    ) -> tuple[dict[str, WrittenVerdict | ParseFailure], dict[str, set[str]]]:
        """Read every slot in the judge's text. The second result is that of `find_quoted`."""
        slots = self.format.slots_of(item)
        own_texts = self.format.protocol(item.protocol).own_texts(item)
        places = dict(
            read_slots(slots, answer.text, item.policy_texts, item.given_texts, own_texts, search)
        )
        for slot in slots:
            places[slot.name] = _reject_unfinished(places[slot.name], slot, answer)
        return places, find_quoted(slots, answer.text, places, own_texts, search)

    async def _complete_verdicts(
        self,
        item: JudgeInput,
        prepared: Prepared,
        answer: SplitAnswer,
        critique: bool,
        flags: tuple[str, ...],
        places: dict[str, WrittenVerdict | ParseFailure],
        quoted: Mapping[str, set[str]],
    ) -> Judgement:
        """Read the probabilities of each verdict in order; force a slot that the judge left out.

        places, quoted: as `_read_places` returns them.
        """
        protocol, text = self.format.protocol(item.protocol), answer.text
        slots = self.format.slots_of(item)
        own_texts = protocol.own_texts(item)
        flags += _flag_planted(places, own_texts, len(item.responses))
        readings, usage, forced_text = list[Reading](), answer.own.usage, ""
        written = [(s, p) for s in slots if isinstance(p := places[s.name], WrittenVerdict)]
        calls = [self._read_written_probs(slot, place, prepared, answer) for slot, place in written]
        # A lone slot, as most judgements have, needs no task.
        written_probs = (
            [await call for call in calls] if len(calls) < 2 else await asyncio.gather(*calls)
        )
        probs_by_slot = {
            slot.name: probs for (slot, _), probs in zip(written, written_probs, strict=True)
        }
        refuted, quoting, checking_usage = await self._check_quoted(
            quoted, slots, places, prepared, answer
        )
        usage += checking_usage
        places |= {name: ParseFailure(QUOTED, len(text)) for name in refuted}
        places |= {name: ParseFailure(QUOTED, len(text), planted=True) for name in quoting}
        # What one response of several planted does not make the others' judgement fail.
        spoiled = {name for name in own_texts if _is_spoiled(places[name])}
        least = max(1, protocol.least_readings(len(slots) - len(spoiled)))
        failures: list[Judgement] = []
        for slot in slots:
            place = places[slot.name]
            if isinstance(place, WrittenVerdict):
                probs = probs_by_slot[slot.name]
                usage += probs.usage if probs else Usage()
                readings.append(_make_written_reading(slot, place, probs))
                continue
            if forced_text:
                opening = forced_text + slot.force_next
            elif text:
                opening = slot.force if place.force is None else place.force
            else:
                opening = slot.force.lstrip()
            probs, reason = refuted.get(slot.name), place.reason
            if place.planted:
                reason += f"; {NOT_OPENED}"
            elif probs is None:
                probs = await self._read_forced_probs(slot, prepared, answer, place.end, opening)
                usage += probs.usage if probs else Usage()
            if probs is None or not _has_enough_mass(probs):
                failures.append(_abstain(answer, reason, probs, usage, flags))
                if len(slots) - len(failures) < least:
                    return failures[0]
                continue
            readings.append(_make_likeliest_reading(slot, probs, critique))
            forced_text = opening + readings[-1].label
        if protocol.direct:
            if not critique:
                readings.append(replace(readings[0], slot=DIRECT))
            elif self.config.direct and not places[slots[0].name].planted:
                direct_reading, direct_usage = await self._read_direct(slots[0], prepared)
                usage += direct_usage
                readings += [direct_reading] if direct_reading else []
        return Judgement(
            Outcome.OK,
            critique=text,
            readings=protocol.conclude(readings),
            usage=usage,
            flags=flags,
            thinking=answer.thinking,
        )

    async def _check_quoted(
        self,
        quoted: Mapping[str, set[str]],
        slots: Sequence[Slot],
        places: Mapping[str, WrittenVerdict | ParseFailure],
        prepared: Prepared,
        answer: SplitAnswer,
    ) -> tuple[dict[str, LabelProbs], set[str], Usage]:
        """Read slots again whose written verdict stands in another response.

        Return the probabilities of those where the judge clearly prefers another label, the slots
        of the responses that the other verdicts were quoted from, and the cost. The other verdicts
        count as written.

        quoted: as `find_quoted` returns it.
        """
        refuted: dict[str, LabelProbs] = {}
        quoting: set[str] = set()
        usage = Usage()
        for slot in (slot for slot in slots if slot.name in quoted):
            place = places[slot.name]
            assert isinstance(place, WrittenVerdict)
            end = len(answer.text)
            probs = await self._read_forced_probs(slot, prepared, answer, end, slot.force)
            usage += probs.usage if probs else Usage()
            if probs and any(p > 0.5 and label != place.name for label, p in probs.probs):
                refuted[slot.name] = probs
            else:
                quoting |= quoted[slot.name]
        return refuted, quoting, usage

    async def _read_written_probs(
        self, slot: Slot, place: WrittenVerdict, prepared: Prepared, answer: SplitAnswer
    ) -> LabelProbs | None:
        """Return the label probabilities at a verdict that the judge wrote, or None if unwanted or
        unknown."""
        labels = slot.labels_beside(place.name, answer.text[place.start : place.end])
        if self.config.distribution is False or not labels:
            return None
        opening = answer.text[place.opened : place.start]
        return await self._read_probs(slot, prepared, answer, place.opened, opening, labels)

    async def _read_forced_probs(
        self, slot: Slot, prepared: Prepared, answer: SplitAnswer, keep: int, opening: str
    ) -> LabelProbs | None:
        """Return the label probabilities of a slot where the judge wrote nothing.

        On a scale with half points, the slot is read again with one more label: the half point that
        begins like the likeliest number (5.5 begins like 5).
        """
        if not slot.labels:
            return None
        probs = await self._read_probs(slot, prepared, answer, keep, opening, slot.labels)
        labels = slot.labels_near(_find_likeliest_label(slot, probs)) if probs else slot.labels
        if probs is None or labels == slot.labels:
            return probs
        finer_probs = await self._read_probs(slot, prepared, answer, keep, opening, labels)
        return replace(finer_probs, usage=probs.usage + finer_probs.usage) if finer_probs else probs

    async def _read_direct(self, slot: Slot, prepared: Prepared) -> tuple[Reading | None, Usage]:
        """Return the rating at the slot right after the prompt, in addition to a critique, and its
        usage."""
        without_thinking = skip_thinking(self.engine, prepared, self._marks)
        probs = await self._read_forced_probs(
            slot, without_thinking, NOTHING_SAID, 0, slot.force.lstrip()
        )
        if probs is None or not _has_enough_mass(probs):
            return None, probs.usage if probs else Usage()
        return replace(_make_likeliest_reading(slot, probs, False), slot=DIRECT), probs.usage

    async def _read_probs(
        self,
        slot: Slot,
        prepared: Prepared,
        answer: SplitAnswer,
        keep: int,
        opening: str,
        labels: Sequence[str],
    ) -> LabelProbs | None:
        """Return the probabilities of labels after text[:keep] and the opening, by label name."""
        end = answer.start + keep
        probs = await self.engine.label_probs(prepared, answer.own, end, opening, labels)
        if probs is None or (named_probs := slot.by_name(probs.probs)) is probs.probs:
            return probs
        return replace(probs, probs=named_probs)


def _flag_planted(
    places: Mapping[str, WrittenVerdict | ParseFailure],
    own_texts: Mapping[str, Sequence[str]],
    count: int,
) -> tuple[str, ...]:
    """Return the flags for planted verdicts that were found by the judge's own opening.

    own_texts: as `JudgeProtocol.own_texts` returns them; its slots are those of the `count`
    responses, in order, or there are none.
    """
    if not any(place.planted for place in places.values()):
        return ()
    response_places = enumerate(own_texts, 1)
    names = (planted_flag(n, count) for n, slot in response_places if places[slot].planted)
    return (PLANTED_FLAG, *names)


def _is_spoiled(place: WrittenVerdict | ParseFailure) -> bool:
    """Return whether a slot has no verdict that is believed, over a text with a planted one."""
    return isinstance(place, ParseFailure) and place.planted


def _reject_unfinished(
    place: WrittenVerdict | ParseFailure, slot: Slot, answer: SplitAnswer
) -> WrittenVerdict | ParseFailure:
    """Return a parse failure for a verdict in an unfinished text, unless the slot comes first.

    A verdict that follows its reason is valid only if the judge finished its text.
    """
    is_ended = answer.own.finished or bool(answer.own.unknown_end)
    if is_ended or slot.comes_first or isinstance(place, ParseFailure):
        return place
    reason = "the verdict stands in a text without an end"
    return ParseFailure(reason, len(answer.text), place.planted)


def _find_likeliest_label(slot: Slot, probs: LabelProbs) -> str:
    """Return the most probable label. Words that stand for one number count together."""
    totals = defaultdict[float | str, float](float)
    for label, p in probs.probs:
        totals[_find_meaning(slot, label)] += p
    return max(probs.probs, key=lambda pair: (totals[_find_meaning(slot, pair[0])], pair[1]))[0]


def _find_meaning(slot: Slot, label: str) -> float | str:
    number = slot.value(label)
    return label if number is None else number


def _make_written_reading(slot: Slot, place: WrittenVerdict, probs: LabelProbs | None) -> Reading:
    return _make_reading(slot, place.name, probs, False)


def _make_likeliest_reading(slot: Slot, probs: LabelProbs, forced: bool) -> Reading:
    return _make_reading(slot, _find_likeliest_label(slot, probs), probs, forced)


def _make_reading(slot: Slot, label: str, probs: LabelProbs | None, forced: bool) -> Reading:
    value = slot.value(label)
    if probs is None:
        return Reading(slot.name, label, value, forced=forced)
    expected = _compute_expected(slot, probs)
    distribution = slot.distribution(probs.probs)
    return Reading(
        slot.name, label, value, distribution, expected, probs.outside, probs.unknown, forced
    )


def _has_enough_mass(probs: LabelProbs) -> bool:
    """Return whether labels hold enough of the probability, and at least as much as is unknown."""
    return probs.mass >= MIN_MASS and probs.mass >= probs.unknown


def _compute_expected(slot: Slot, probs: LabelProbs) -> float | None:
    """Return the mean of the labels' numbers; None for labels without one, or with little mass."""
    if not slot.numeric or not _has_enough_mass(probs):
        return None
    weighted = [(slot.value(label), p) for label, p in probs.probs]
    return sum(number * p for number, p in weighted if number is not None) / probs.mass


def _abstain(
    answer: SplitAnswer, reason: str, probs: LabelProbs | None, usage: Usage, flags: tuple[str, ...]
) -> Judgement:
    generation = answer.own
    outcome = Outcome.UNPARSABLE if generation.finished else Outcome.TRUNCATED
    if generation.reasoning and not generation.text.strip():
        reason = (
            f"content empty, {len(generation.reasoning)} characters of reasoning: {MORE_TEXT}; "
            f"{reason}"
        )
    if generation.ended:
        reason += f"; the endpoint ended the text with {generation.ended}"
    elif not generation.finished:
        reason += f" within {len(generation.ids) or 'the allowed'} tokens"
    if probs is not None:
        reason += f"; the forced slot puts {1 - probs.outside:.4f} on valid labels"
    return Judgement(
        outcome,
        reason=reason,
        critique=answer.text,
        usage=usage,
        flags=flags,
        thinking=answer.thinking,
    )


def with_criteria(item: JudgeInput) -> JudgeInput:
    """Return the input with the criteria of its query's scenario, unless it has criteria
    already."""
    if CRITERIA in item.context:
        return item
    texts = dict(item.context) | {CRITERIA: criteria_of(item.prompt.last_user_text)}
    return replace(item, context=Context(texts))


@lru_cache(maxsize=256)  # responses to one query are judged close together
def criteria_of(query: str) -> str:
    """Return the criteria of the scenario that the bundled classifier predicts for a query."""
    from autoj_reward.models.scenarios import shipped_classifier  # imports numpy only if needed

    [prediction] = shipped_classifier().classify([query])
    return criteria_text(load_scenarios()[prediction.scenario])
