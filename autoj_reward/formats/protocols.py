"""Protocols of judge formats: how a judge call is laid out, and which slots its output has.

A protocol is a class with the responses that it shows, their names in templates, and its slots. A
format defines each protocol by name (`single`, `pairwise`, `group`, `checklist`). Judge, journal,
service and pages treat all protocols alike. To add one, add it to `PROTOCOLS`.
"""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import Field, model_validator

from autoj_reward.config import Block
from autoj_reward.errors import InputRejected
from autoj_reward.formats.places import JsonField, Row
from autoj_reward.formats.read import (
    ParseFailure,
    PlantSearch,
    WrittenVerdict,
    list_written,
    read_slot,
)
from autoj_reward.formats.scale import Scale, require_few
from autoj_reward.formats.slots import ChoiceSlot, RatingSlot, Slot, narrow
from autoj_reward.rubric_items import YES_NO, Choices
from autoj_reward.types import (
    CHECKLIST,
    GROUP,
    PAIRWISE,
    RATING,
    SINGLE,
    VERDICT,
    JudgeInput,
    Reading,
    Verdict,
)

LABEL, RESPONSE, ITEM, CHOICES = "{label}", "{response}", "{item}", "{choices}"
"""Places in the texts of a group or checklist protocol."""
TEXT, SCORE, ANSWER = "text", "score", "answer"
"""What a field of JSON holds: no verdict, the score of a response, the answer to a rubric item."""
SCORE_1, SCORE_2, RANKING = "score_1", "score_2", "ranking"
"""Slots of a comparison by numbers, and what fields of JSON with them hold."""
NUMBER = r"\d{1,3}(?:\.\d{1,3})?"
"""Regular expression of a number in a row."""


class SlotTexts(NamedTuple):
    """Where a slot stands in a judge's text: what `Slot` has by the same names."""

    open: str
    close: str
    force: str
    place: JsonField | Row | None = None
    open_any: str = ""


class MessageBlock(Block):
    """One message of a judge's prompt, or the turns of the conversation as messages."""

    role: str = ""
    """Role of the message: `system`, `user`, `assistant`, or one of the model's own that its chat
    template knows."""
    template: str = ""
    """File name of the message's template, in the format's folder."""
    text: str = ""
    """The template itself, in place of a file. A message without any text is left out."""
    turns: Literal["", "query"] = ""
    """`query` for the turns of the conversation, each as a message of its own role."""

    @model_validator(mode="after")
    def _check_kind(self) -> MessageBlock:
        kinds = [name for name in ("template", "text", "turns") if getattr(self, name)]
        if len(kinds) != 1:
            raise ValueError(f"a message has one of template, text and turns, not {kinds}")
        if bool(self.role) == bool(self.turns):
            raise ValueError("a message has a role, unless it is the turns of the conversation")
        return self


class JudgeProtocol(Block):
    """Base class of protocols. Its fields are the keys of the protocol's block in format.yaml."""

    template: str = ""
    """File name of the user message's template, in the format's folder."""
    system: str | None = None
    """File name of the system message's template, in the same folder. null for no system
    message."""
    messages: tuple[MessageBlock, ...] = Field((), exclude_if=lambda messages: not messages)
    """Messages of the prompt in their order, for a judge that wants others than `system` and
    `template`."""
    json_texts: bool = Field(False, exclude_if=lambda is_json: not is_json)
    """Whether texts of an input stand inside of strings of JSON, and are escaped for that."""
    begin: str = Field("", exclude_if=lambda text: not text)
    """Text with which the judge's answer is begun, such as `<think>`. An endpoint that tokenizes on
    its side is asked without it."""
    fields: dict[str, str]
    """Placeholders of the templates, each with the text that it shows.

    - `query`: the query.
    - `response`, or `response_1`, `response_2`, … if there are several: a response.
    - `items`, in a checklist: the rubric items.
    - The name of a constant, or of a context field (`reference`, `rubric`, any name).
    """
    optional: dict[str, str] = Field(default_factory=dict, exclude_if=lambda texts: not texts)
    """Placeholders of optional fields, each with the text that replaces the placeholder.

    The text contains the placeholder again, for the field's value. If an input lacks the field,
    nothing is shown. All other fields are required.
    """
    open: str = ""
    """Regular expression of the text before the verdict in the judge's output.

    The last match counts. The expression begins with `\\A` if the verdict comes first and its
    reason follows. Otherwise nothing may follow the verdict, unless `remarks` allows it. It is left
    out with `json`.
    """
    close: str = ""
    """Regular expression of the text after the verdict.

    If it is empty and the verdict comes first, the verdict must end its line.
    """
    force: str = ""
    """Text appended to an unfinished judgement so that the verdict comes next. It is left out with
    `json`."""
    json_fields: dict[str, str] = Field({}, alias="json", exclude_if=lambda fields: not fields)
    """Fields of the JSON object that the judge writes, in their order, each with what it holds.

    - `text`: a text, such as a critique.
    - The protocol's verdict: `rating` (single), `score` (group) or `answer` (checklist); in a
      comparison `verdict` where it has `labels`, else `score_1` and `score_2`, `ranking` or all
      three.

    A dot leads into an object: `overall.rating`. The name of a `score` or `answer` contains
    {label}. The last whole object that has the field counts.
    """
    sends_schema: bool = Field(False, alias="schema", exclude_if=lambda sends: not sends)
    """Whether the judge is held to the JSON schema of these fields, by vLLM's structured outputs or
    an endpoint's `response_format`. What it writes is read as without a schema. An endpoint that
    refuses schemas is asked without."""
    remarks: bool = Field(False, exclude_if=lambda remarks: not remarks)
    """Whether the judge may go on with remarks after its verdict.

    The verdict must then end its sentence or line, or punctuation or a conjunction must join the
    remark to it ("Response 2, which ...", "Response 2 because ..."). It is none if the remark names
    another label as an alternative or as the better one, doubts it, takes it back or asks.
    Leave it out if `open` begins with `\\A`: the reason follows such a verdict anyway.
    """

    responses: ClassVar[int] = 1
    """Number of responses in one input, or the least number."""
    direct: ClassVar[bool] = False
    """Whether an input may ask only for the slot right after the prompt."""
    verdict_names: ClassVar[tuple[str, ...]] = ()
    """What the fields of JSON with the verdict are said to hold."""
    labelled: ClassVar[bool] = False
    """Whether each slot has a label of its own, so that the texts around it have {label}."""

    @model_validator(mode="after")
    def _check_messages(self) -> JudgeProtocol:
        if bool(self.template) == bool(self.messages):
            raise ValueError("template missing, or messages in its place: write one of the two")
        if self.messages and self.system:
            raise ValueError("messages have the system message among them: leave out system")
        return self

    @cached_property
    def layout(self) -> tuple[MessageBlock, ...]:
        """Return the messages of the prompt in order: those of `messages`, or the system message
        and the user's template."""
        if self.messages:
            return self.messages
        user = MessageBlock(role="user", template=self.template)
        return (MessageBlock(role="system", template=self.system), user) if self.system else (user,)

    @model_validator(mode="after")
    def _check_place(self) -> JudgeProtocol:
        if not self.json_fields:
            if self.sends_schema:
                raise ValueError("schema is that of the fields of json: write these")
            given = self.model_fields_set
            if missing := [name for name in ("open", "force") if name not in given]:
                raise ValueError(f"{' and '.join(missing)} missing, or json in their place")
            return self
        if self.open or self.close or self.force:
            raise ValueError("json tells where the verdict stands: leave out open, close and force")
        held = [holds for holds in self.json_fields.values() if holds != TEXT]
        wanted = self.list_held()
        if not wanted or sorted(held) != sorted(wanted):
            raise ValueError(
                f"json must have fields that hold {' and '.join(wanted) or 'a verdict'}, and the "
                f"others {TEXT}: it has {held}"
            )
        if any(self.labelled != (LABEL in self._field_name(holds)) for holds in held):
            must = "must" if self.labelled else "must not"
            raise ValueError(f"json {must} have {LABEL} in the name of its verdict")
        return self

    @model_validator(mode="after")
    def _check_remarks(self) -> JudgeProtocol:
        if self.remarks and self.comes_first:
            raise ValueError("open begins with \\A, so the reason follows anyway: omit remarks")
        return self

    @property
    def comes_first(self) -> bool:
        """Whether the verdict begins the judge's output, so that its reason follows."""
        return self.open.startswith(r"\A")

    def list_held(self) -> tuple[str, ...]:
        """Return what the fields of JSON with the verdict have to hold."""
        return self.verdict_names

    def conclude(self, readings: Sequence[Reading]) -> tuple[Reading, ...]:
        """Return the readings of all slots, with those that follow from them."""
        return tuple(readings)

    def conclude_written(
        self, found: Mapping[str, WrittenVerdict | ParseFailure]
    ) -> Mapping[str, WrittenVerdict | ParseFailure]:
        """Return what stands in the slots of a text, with what follows from it."""
        return found

    def _field_name(self, holds: str) -> str:
        """Return the name of the field of JSON with a verdict."""
        return next(name for name, held in self.json_fields.items() if held == holds)

    def find_texts(
        self, holds: str, quoted: bool, label: str = "", any_label: str = ""
    ) -> SlotTexts:
        """Return where a verdict stands in the judge's text.

        holds: what a field of JSON with it is said to hold. quoted: whether it is a string there.
        label: the text that replaces {label}. any_label: regular expression of all such texts.
        """
        if not self.json_fields:
            if not self.labelled:
                return SlotTexts(self.open, self.close, self.force)
            opening = self.open.replace(LABEL, re.escape(label))
            force = self.force.replace(LABEL, label)
            open_any = self.open.replace(LABEL, any_label)
            return SlotTexts(opening, self.close, force, open_any=open_any)
        field = JsonField(self._field_name(holds).replace(LABEL, label), quoted)
        return SlotTexts(field.open, "", field.force, field)

    def json_schema(self, slots: Sequence[Slot]) -> dict[str, Any] | None:
        """Return the JSON schema of the judge's object with these slots; None if the judge is held
        to none."""
        if not self.sends_schema:
            return None
        values = {}
        for slot in slots:
            if isinstance(slot.place, JsonField):
                values[slot.place.name] = slot.json_value
        schema = _make_object_schema()
        for name, holds in self.json_fields.items():
            if holds == TEXT:
                _add_property(schema, name, {"type": "string"})
            elif name in values:
                _add_property(schema, name, values[name])
            elif LABEL in name:
                # Each slot has a field of this name with its own label.
                for slot_name, value in values.items():
                    _add_property(schema, slot_name, value)
        return schema

    @property
    def most_responses(self) -> int:
        """Largest number of responses in one input."""
        return self.responses

    def response_names(self, count: int) -> tuple[str, ...]:
        """Return the names in a template of so many responses, in order. Responses of one name
        stand there one after the other."""
        numbers = range(1, count + 1)
        return tuple(f"response_{n}" for n in numbers) if count > 1 else ("response",)

    @property
    def most_items(self) -> int:
        """Largest number of rubric items in one input. 0 for a protocol without items."""
        return 0

    @property
    def item_text(self) -> str:
        """Text that shows one rubric item; see `Checklist.each`."""
        return ""

    def around(self, place: int, count: int) -> tuple[str, str]:
        """Return the text before and after the response at a place of `count`, counted from 1."""
        return "", ""

    def inert(self, text: str) -> str:
        """Return an untrusted text with every imitation of the text around a response broken up."""
        return text

    def require(self, item: JudgeInput) -> None:
        """Raise InputRejected for a wrong number of responses or rubric items.

        Also raise it for a `direct` input of a protocol that has no rating.
        """
        require_responses(item, type(self), self.most_responses)
        if len(item.items) > self.most_items:
            allowed = f"at most {self.most_items}" if self.most_items else "none"
            raise InputRejected(
                f"{len(item.items)} rubric items, and the protocol {item.protocol} shows {allowed}"
            )

    @abstractmethod
    def slots(self, scale: Scale, count: int) -> tuple[Slot, ...]:
        """Return the slots for `count` responses, in the order in which they are read."""

    def slots_of(self, scale: Scale, item: JudgeInput) -> tuple[Slot, ...]:
        """Return the slots in which a judgement of this input is read, in order.

        Only a protocol with rubric items has slots that depend on more than the number of
        responses.
        """
        return self.slots(scale, len(item.responses))

    def own_texts(self, item: JudgeInput) -> dict[str, tuple[str, ...]]:
        """Return, by slot, the texts of the only policy that gains by the slot's verdict.

        A slot that is not named may hold a verdict that any policy gains by.
        """
        return {}

    def least_readings(self, slots: int) -> int:
        """Return how many of `slots` slots must be read. A judgement with fewer abstains."""
        return slots


def _make_object_schema() -> dict[str, Any]:
    return {"type": "object", "properties": {}, "required": [], "additionalProperties": False}


def _add_property(schema: dict[str, Any], name: str, value: Mapping[str, Any]) -> None:
    """Add a required property to the schema of an object, in the objects that its name leads to."""
    *heads, key = name.split(".")
    for head in heads:
        if head not in schema["properties"]:
            _add_property(schema, head, _make_object_schema())
        schema = schema["properties"][head]
    schema["properties"][key] = value
    schema["required"].append(key)


def require_responses(item: JudgeInput, protocol: type[JudgeProtocol], most: int = 0) -> None:
    """Raise InputRejected for a wrong number of responses, or for `direct` without a rating.

    most: the largest number, where the protocol's `responses` is the least.
    """
    count, least = len(item.responses), protocol.responses
    if not least <= count <= max(least, most):
        allowed = f"{least} to {most}" if most > least else str(least)
        raise InputRejected(f"{count} responses, and the protocol {item.protocol} shows {allowed}")
    if item.direct and not protocol.direct:
        raise InputRejected(f"direct reads a rating, and the protocol {item.protocol} has none")


class Single(JudgeProtocol):
    """Protocol that rates one response."""

    direct: ClassVar[bool] = True
    verdict_names: ClassVar[tuple[str, ...]] = (RATING,)

    def slots(self, scale: Scale, count: int) -> tuple[Slot, ...]:
        """Return the slot of the rating."""
        texts = self.find_texts(RATING, bool(scale.words))
        return (_make_rating_slot(RATING, texts, scale, self.remarks),)


class Ranking(Block):
    """Number by which a judge says which of two responses is better. The middle is a tie."""

    low: int = 1
    """Lowest number."""
    high: int
    """Highest number."""
    first: Literal["low", "high"] = "low"
    """End of the scale at which the first response is better."""
    open: str = ""
    """As `open` of the protocol, for a ranking beside two scores in a row."""
    close: str = ""
    """As `close` of the protocol."""
    force: str = ""
    """As `force` of the protocol."""

    @cached_property
    def scale(self) -> Scale:
        """All numbers of the ranking."""
        return Scale(low=self.low, high=self.high)

    def decide(self, number: float) -> Verdict:
        """Return the verdict that a number stands for."""
        middle = (self.low + self.high) / 2
        if number == middle:
            return Verdict.TIE
        return Verdict.FIRST if (number < middle) == (self.first == "low") else Verdict.SECOND


class Pairwise(JudgeProtocol):
    """Protocol that compares two responses."""

    labels: dict[Literal["first", "second", "tie"], tuple[str, ...]] = Field(default_factory=dict)
    """Spellings of each verdict, the canonical one first."""
    scores: str = Field("", exclude_if=lambda between: not between)
    """Regular expression between two numbers, for a judge that writes two scores in a row.

    It replaces `labels`. The response with the higher number wins. `open` stands before the first
    number, `close` after the second one.
    """
    force_next: str = Field(" ", exclude_if=lambda text: text == " ")
    """Text that leads from the first number to the second, in the judge's own style."""
    ranking: Ranking | None = Field(None, exclude_if=lambda ranking: ranking is None)
    """Number that tells which response is better, and by how much. Beside two scores it breaks
    their tie."""

    responses: ClassVar[int] = 2

    @model_validator(mode="after")
    def _check_labels(self) -> Pairwise:
        if self.by_numbers:
            if self.labels:
                raise ValueError("labels stand beside no scores and no ranking: leave them out")
            if self.scores and self.ranking and not (self.ranking.open and self.ranking.force):
                raise ValueError("a ranking beside scores in a row has open and force of its own")
            return self
        if not {"first", "second"} <= set(self.labels) or not all(self.labels.values()):
            raise ValueError("labels must spell out at least first and second")
        require_few([s for spellings in self.labels.values() for s in spellings], "labels")
        return self

    @property
    def has_scores(self) -> bool:
        """Whether each response gets a number of its own."""
        return bool(self.scores) or SCORE_1 in self.json_fields.values()

    @property
    def by_numbers(self) -> bool:
        """Whether the verdict follows from numbers."""
        return self.has_scores or self.ranking is not None

    @property
    def canonical(self) -> dict[str, Verdict]:
        """Verdicts by their canonical spelling."""
        return {spellings[0]: Verdict(name) for name, spellings in self.labels.items()}

    def list_held(self) -> tuple[str, ...]:
        if not self.by_numbers:
            return (VERDICT,)
        scores = (SCORE_1, SCORE_2) if self.has_scores else ()
        return (*scores, RANKING) if self.ranking else scores

    def slots(self, scale: Scale, count: int) -> tuple[Slot, ...]:
        """Return the slot of the verdict, or those of the numbers that it follows from."""
        if not self.by_numbers:
            texts = self.find_texts(VERDICT, True)
            choices = tuple((str(n), s) for n, s in self.labels.items())
            return (
                ChoiceSlot(
                    VERDICT,
                    texts.open,
                    texts.close,
                    texts.force,
                    choices,
                    remarks=self.remarks,
                    place=texts.place,
                ),
            )
        slot_texts: dict[str, SlotTexts] = {}
        if self.json_fields:
            slot_texts = {name: self.find_texts(name, False) for name in self.list_held()}
        elif self.scores:
            row = place_in_row(self, self.scores, 2)
            slot_texts = dict(zip((SCORE_1, SCORE_2), row, strict=True))
        scales = {SCORE_1: scale, SCORE_2: scale}
        if self.ranking:
            scales[RANKING] = self.ranking.scale
            # Beside two scores the ranking has an opening of its own.
            block = self.ranking if self.scores else self
            slot_texts.setdefault(RANKING, SlotTexts(block.open, block.close, block.force))
        return tuple(
            _make_rating_slot(name, slot_texts[name], scales[name], self.remarks, strict=True)
            for name in slot_texts
        )

    def spell(self, verdict: Verdict, scale: Scale) -> list[str]:
        """Return a label for each slot that together stand for a verdict, as in a sample output.

        A verdict that the judge does not know is spelled by its first label.
        """
        if not self.by_numbers:
            spelled = {name: label for label, name in self.canonical.items()}
            return [spelled.get(verdict) or next(iter(self.canonical))]
        labels = sorted(scale.labels, key=scale.value)
        best, middle, worst = labels[-1], labels[len(labels) // 2], labels[0]
        pairs = {Verdict.FIRST: [best, worst], Verdict.SECOND: [worst, best]}
        scores = pairs.get(verdict, [middle, middle]) if self.has_scores else []
        if self.ranking is None:
            return scores
        ranks = self.ranking.scale.labels
        fitting = [rank for rank in ranks if self.ranking.decide(float(rank)) is verdict]
        return [*scores, (fitting or ranks)[0]]

    def decide(self, numbers: Mapping[str, float]) -> Verdict:
        """Return the verdict that follows from the numbers of the slots."""
        shares = self._weigh({name: ((number, 1.0),) for name, number in numbers.items()})
        return max(shares, key=shares.__getitem__)

    def conclude(self, readings: Sequence[Reading]) -> tuple[Reading, ...]:
        """Return the readings, those of numbers after the verdict that follows from them.

        The numbers' distributions give the verdict's, as if they did not depend on one another.
        """
        if not self.by_numbers:
            return tuple(readings)
        numbers = {r.slot: r.value for r in readings if r.value is not None}
        verdict = str(self.decide(numbers))
        forced = any(reading.forced for reading in readings)
        tables = {}
        for reading in readings:
            if reading.distribution is not None:
                tables[reading.slot] = [(float(n), p) for n, p in reading.distribution]
        if len(tables) < len(readings):
            return (Reading(VERDICT, verdict, forced=forced), *readings)
        distribution = tuple((str(name), p) for name, p in self._weigh(tables).items())
        outside = min(1.0, max(0.0, 1.0 - sum(p for _, p in distribution)))
        unknown = min(outside, sum(reading.unknown for reading in readings))
        concluded = Reading(VERDICT, verdict, None, distribution, None, outside, unknown, forced)
        return (concluded, *readings)

    def conclude_written(
        self, found: Mapping[str, WrittenVerdict | ParseFailure]
    ) -> Mapping[str, WrittenVerdict | ParseFailure]:
        if not self.by_numbers:
            return found
        numbers = {}
        for name, place in found.items():
            if isinstance(place, ParseFailure):
                return {VERDICT: place, **found}
            numbers[name] = place
        places = list(numbers.values())
        verdict = str(self.decide({name: place.rating for name, place in numbers.items()}))
        written = replace(places[0], name=verdict, value=None, end=places[-1].end)
        return {VERDICT: written, **found}

    def _weigh(self, tables: Mapping[str, Sequence[tuple[float, float]]]) -> dict[Verdict, float]:
        """Return the probability of each verdict from those of the numbers of each slot."""
        shares = {Verdict.FIRST: 0.0, Verdict.SECOND: 0.0, Verdict.TIE: 1.0}
        if self.has_scores:
            shares = _compare_numbers(tables[SCORE_1], tables[SCORE_2])
        if self.ranking is None:
            return shares
        tied = shares[Verdict.TIE]
        shares[Verdict.TIE] = 0.0
        for number, p in tables[RANKING]:
            shares[self.ranking.decide(number)] += tied * p
        return shares


def _compare_numbers(
    first: Sequence[tuple[float, float]], second: Sequence[tuple[float, float]]
) -> dict[Verdict, float]:
    """Return the probability that the first of two numbers is higher, lower and equal."""
    shares = {Verdict.FIRST: 0.0, Verdict.SECOND: 0.0, Verdict.TIE: 0.0}
    below = 0.0
    above = sum(p for _, p in second)
    others = sorted(second)
    for number, p in sorted(first):
        # Both tables are passed once, from the lowest number to the highest.
        while others and others[0][0] < number:
            below += others[0][1]
            above -= others.pop(0)[1]
        equal = sum(q for other, q in others[:1] if other == number)
        shares[Verdict.FIRST] += p * below
        shares[Verdict.TIE] += p * equal
        shares[Verdict.SECOND] += p * max(0.0, above - equal)
    return shares


def place_in_row(protocol: Pairwise | Group, between: str, count: int) -> list[SlotTexts]:
    """Return where each of several numbers in a row stands.

    between: regular expression of the text between two numbers. A row of another length is none.
    """
    groups = [f"(?P<number_{n}>{NUMBER})" for n in range(1, count + 1)]
    numbers = f"(?:{between})".join(groups)
    end = f"(?:{protocol.close})" if protocol.close else r"[ \t]*(?=\n|\Z)"
    pattern = f"(?:{protocol.open}){numbers}{end}"
    texts = []
    for n in range(1, count + 1):
        row = Row(pattern, n, protocol.force_next, protocol.comes_first)
        if n == 1:
            texts.append(SlotTexts(protocol.open, protocol.close, protocol.force, row))
        else:
            texts.append(SlotTexts(between, protocol.close, protocol.force_next, row))
    return texts


class Group(JudgeProtocol):
    """Scores every response of a group in one judgement.

    A field named `responses` shows the responses one after the other. `open` and `force` contain
    {label}: a score is read by the label of its response, and not by its place in the judge's text,
    unless the judge writes `scores` in a row. The scores end the text, in any order.
    """

    each: str
    """Text that shows one response, with {label} and then {response}.

    In untrusted text the marks around them are broken up with a zero-width space, so that no
    response can close its own block or open another one.
    """
    between: str = Field("", exclude_if=lambda text: not text)
    """Text between two responses."""
    labels: tuple[str, ...] = tuple("ABCDEFGHIJKLMNOP")
    """Labels of the responses in order. They consist of letters and digits."""
    max_responses: int = Field(16, ge=2)
    """Largest number of responses in one judge call. A larger group takes several calls."""
    scores: str = Field("", exclude_if=lambda between: not between)
    """Regular expression between two scores, for a judge that writes them in a row, in the order of
    the responses. `open` stands before the first one and `close` after the last. A row of another
    length is not read. `open` and `force` then have no {label}."""
    force_next: str = Field(" ", exclude_if=lambda text: text == " ")
    """Text that leads from one score of a row to the next, in the judge's own style."""

    responses: ClassVar[int] = 2
    verdict_names: ClassVar[tuple[str, ...]] = (SCORE,)
    labelled: ClassVar[bool] = True

    @model_validator(mode="after")
    def _check_labels(self) -> Group:
        head, *tail = self.each.split(RESPONSE)
        if len(tail) != 1 or LABEL not in head or not head.replace(LABEL, "").strip():
            raise ValueError(f"each must have words with {LABEL} and, after them, {RESPONSE} once")
        for name in () if self.json_fields or self.scores else ("open", "force"):
            if LABEL not in getattr(self, name):
                raise ValueError(f"{name} must have {LABEL}, so that each score has its own words")
        if self.comes_first:
            raise ValueError("the scores of a group stand at the end: open cannot begin with \\A")
        if self.max_responses > len(self.labels):
            raise ValueError(f"max_responses is {self.max_responses}: write as many labels")
        folded = {label.casefold() for label in self.labels}
        if len(folded) < len(self.labels) or not all(label.isalnum() for label in self.labels):
            raise ValueError("labels are letters and digits, and differ by more than their case")
        return self

    @cached_property
    def _marks(self) -> re.Pattern[str]:
        return _compile_marks(self.each.split(RESPONSE))

    def response_names(self, count: int) -> tuple[str, ...]:
        return ("responses",) * count

    def around(self, place: int, count: int) -> tuple[str, str]:
        head, tail = self.each.replace(LABEL, self.labels[place - 1]).split(RESPONSE)
        return head, tail if place == count else tail + self.between

    def inert(self, text: str) -> str:
        return _break_marks(self._marks, text)

    @property
    def most_responses(self) -> int:
        return self.max_responses

    def slots(self, scale: Scale, count: int) -> tuple[Slot, ...]:
        labels = self.labels[:count]
        any_label = f"(?:{'|'.join(map(re.escape, labels))})"
        quoted = bool(scale.words)
        if self.scores:
            texts = place_in_row(self, self.scores, count)
        else:
            texts = [self.find_texts(SCORE, quoted, label, any_label) for label in labels]
        return tuple(
            _make_rating_slot(f"response_{n}", slot_texts, scale, self.remarks)
            for n, slot_texts in enumerate(texts, 1)
        )

    def own_texts(self, item: JudgeInput) -> dict[str, tuple[str, ...]]:
        """Return for the score of each response the texts of its policy."""
        places = range(1, len(item.responses) + 1)
        return {f"response_{n}": item.policy_texts_of(n) for n in places}

    def least_readings(self, slots: int) -> int:
        return math.ceil(slots / 2)


class Checklist(JudgeProtocol):
    """Judges a response by rubric items: one verdict for each item.

    A field named `items` shows the items one after the other. `open` and `force` contain {label},
    the item's number, by which its verdict is read. The verdicts end the text, in any order.
    """

    each: str
    """Text that shows one item, with {label}, {choices} and {item}.

    In untrusted text an imitation of its other words, line by line, is broken up with a zero-width
    space, so that no text can close an item or open another one.
    """
    max_items: int = Field(40, ge=1)
    """Largest number of items in one judge call. More items take several calls."""

    verdict_names: ClassVar[tuple[str, ...]] = (ANSWER,)
    labelled: ClassVar[bool] = True

    @model_validator(mode="after")
    def _check_labels(self) -> Checklist:
        head, *tail = self.each.split(ITEM)
        if len(tail) != 1 or not head.replace(LABEL, "").strip() or CHOICES not in self.each:
            raise ValueError(f"each must have words, {ITEM} once after them, and {CHOICES}")
        for name in ("each",) if self.json_fields else ("each", "open", "force"):
            if LABEL not in getattr(self, name):
                raise ValueError(f"{name} must have {LABEL}, so that each item has its own words")
        if self.comes_first:
            raise ValueError("verdicts on items stand at the end: open cannot begin with \\A")
        return self

    @property
    def most_items(self) -> int:
        return self.max_items

    @property
    def item_text(self) -> str:
        return self.each

    @cached_property
    def _marks(self) -> re.Pattern[str]:
        sides = re.split("|".join(map(re.escape, (ITEM, CHOICES))), self.each)
        return _compile_marks([line for side in sides for line in side.splitlines()])

    def inert(self, text: str) -> str:
        return _break_marks(self._marks, text)

    def require(self, item: JudgeInput) -> None:
        """Raise InputRejected for an input without items too."""
        super().require(item)
        if not item.items:
            raise InputRejected("no rubric items: give the row a list of them under `rubric`")

    def slots(self, scale: Scale, count: int) -> tuple[Slot, ...]:
        """Return the slot of a first item with the choices yes and no."""
        return (self._make_slot(1, YES_NO),)

    def slots_of(self, scale: Scale, item: JudgeInput) -> tuple[Slot, ...]:
        """Return a slot for each item, whose scale is the shares of its choices."""
        return tuple(
            self._make_slot(n, rubric_item.choices) for n, rubric_item in enumerate(item.items, 1)
        )

    def _make_slot(self, number: int, choices: Choices) -> RatingSlot:
        label = str(number)
        texts = self.find_texts(ANSWER, True, label, r"\d+")
        return _make_item_slot(f"item_{label}", texts, choices, self.remarks)

    def least_readings(self, slots: int) -> int:
        return math.ceil(slots / 2)


@lru_cache(maxsize=1024)
def _make_item_slot(name: str, texts: SlotTexts, choices: Choices, remarks: bool) -> RatingSlot:
    return _make_rating_slot(name, texts, Scale(words=dict(choices)), remarks)


def _make_rating_slot(
    name: str, texts: SlotTexts, scale: Scale, remarks: bool, *, strict: bool = False
) -> RatingSlot:
    return RatingSlot(
        name,
        texts.open,
        texts.close,
        texts.force,
        scale,
        remarks=remarks,
        open_any=texts.open_any,
        place=texts.place,
        strict=strict or isinstance(texts.place, JsonField),
    )


_GAP = (
    r"[\s\x00-\x08\x0e-\x1b\x7f-\xa0\xad\u034f\u061c\u115f\u1160\u180b-\u180f\u200b-\u200f"
    r"\u202a-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\U000e0000-\U000e0fff"
    r"\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]"
)
"""Pattern of a character that shows as space, as nothing or as an accent."""
_LOOK_ALIKE = (
    r"\u00aa-\u058f\u10a0-\u10ff\u13a0-\u167f\u1c80-\u218f\u2460-\u24ff\u2c60-\u2dff"
    r"\ua4d0-\ua95f\ua980-\uabff\uff10-\uff5a\U00010000-\U0001ffff"
)
"""Characters that may stand for any letter, as in `fold`. Those of East Asia stay themselves."""
_SIGNS = {
    "<": "<＜﹤〈《‹⟨〈❮❬«",
    ">": ">＞﹥〉》›⟩〉❯❭»",
    "/": "/／⁄∕⧸",
    ":": ":：﹕∶ː꞉",
    "[": "[［【〔⟦",
    "]": "]］】〕⟧",
    "#": "#＃﹟",
}
"""Signs that may stand for a sign."""


def _compile_marks(sides: Sequence[str]) -> re.Pattern[str]:
    """Return the pattern of the texts around a response or an item."""
    texts = (side.strip() for side in sides)
    return re.compile("|".join(_make_mark_pattern(side) for side in texts if side), re.IGNORECASE)


def _break_marks(marks: re.Pattern[str], text: str) -> str:
    return marks.sub(lambda match: f"{match[0][0]}\u200b{match[0][1:]}", text)


def _make_mark_pattern(mark: str) -> str:
    """Return the pattern of a mark around a response, with any label, any gaps and look-alikes.

    No repetition gives back what it has matched, so that long gaps take linear time.
    """
    pattern = ""
    follows_word = False
    for piece in re.findall(r"(?:\{label\}|\w)+|[^\w\s]", mark):
        is_word = len(piece) > 1 or re.fullmatch(r"\w", piece) is not None
        if pattern:
            pattern += f"{_GAP}++" if is_word and follows_word else f"{_GAP}*+"
        elif LABEL in piece:
            # Without this, each character of a long word would be tried as its beginning.
            pattern = r"(?<!\w)"
        elif is_word:
            # One plain letter is needed here: not every Cyrillic word is a mark.
            pattern = r"(?=[^\x00-\x1f!-@\[-`{-\x7f]{0,40}?[A-Za-z])"
        before, *rest = piece.split(LABEL)
        pattern += f"{_GAP}*+".join(map(_make_sign_pattern, before))
        if rest:
            pattern += r"\w++" + (f"(?<={re.escape(rest[-1])})" if rest[-1] else "")
        follows_word = is_word
    return pattern


def _make_sign_pattern(char: str) -> str:
    """Return the pattern of a letter or sign of a mark, and of what looks like it."""
    if not char.isalnum():
        return f"[{re.escape(_SIGNS.get(char, char))}]"
    # What shows as nothing is a gap, and no letter.
    return f"(?!{_GAP})[{re.escape(char)}{_LOOK_ALIKE if char.isascii() else ''}]"


PROTOCOLS: dict[str, type[JudgeProtocol]] = {
    SINGLE: Single,
    PAIRWISE: Pairwise,
    GROUP: Group,
    CHECKLIST: Checklist,
}
"""Every protocol by the name that formats and judge inputs give it."""


def read_slots(
    slots: Sequence[Slot],
    text: str,
    policy_texts: Sequence[str] = (),
    given_texts: Sequence[str] = (),
    own_texts: Mapping[str, Sequence[str]] = MappingProxyType({}),
    search: PlantSearch | None = None,
) -> Mapping[str, WrittenVerdict | ParseFailure]:
    """Parse the verdict in every slot of a judge's text; see `read_slot`.

    The verdicts may stand in any order. own_texts: as `JudgeProtocol.own_texts` returns them. Only
    they can plant a verdict in these slots, so that what a response says costs that response alone.
    search: that of these slots, if other functions search the texts too.
    """
    search = search or PlantSearch(slots)
    search.learn_openings(text)
    # Beside a lone slot stands no other.
    written = list_written(slots, text) if len(slots) > 1 else ()
    return {
        slot.name: read_slot(
            text,
            slot,
            own_texts.get(slot.name, policy_texts),
            given_texts,
            written,
            search,
        )
        for slot in slots
    }


def find_quoted(
    slots: Sequence[Slot],
    text: str,
    places: Mapping[str, WrittenVerdict | ParseFailure],
    own_texts: Mapping[str, Sequence[str]],
    search: PlantSearch,
) -> dict[str, set[str]]:
    """Return the slots whose written verdict stands in the text of another slot's policy, each with
    these others.

    Such a verdict may be a copy of what another policy wrote to lower this one. places: as
    `read_slots` returns them. own_texts: as `JudgeProtocol.own_texts` returns them.
    """
    text = narrow(text)
    quoted: dict[str, set[str]] = {}
    for slot in slots:
        place = places[slot.name]
        if slot.name not in own_texts or not isinstance(place, WrittenVerdict):
            continue
        opening = text[place.opened : place.start]
        for other, texts in own_texts.items():
            if other != slot.name and place.name in search.find_quotable(texts, slot, opening):
                quoted.setdefault(slot.name, set()).add(other)
    return quoted
