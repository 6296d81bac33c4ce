"""The rating in a judgement: the last slot counts, and it is validated after matching."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from autoj_reward.formats.planted import numbers
from autoj_reward.formats.scale import Scale
from autoj_reward.formats.schema import JudgeFormat
from autoj_reward.formats.slots import Slot
from autoj_reward.formats.verdict import (
    LEAD,
    ParseFailure,
    Reading,
    closed,
    doubt,
    label_re,
    last_open,
    seen_in,
)

_NUMBER = re.compile(r"(\d{1,3}(?:\.\d{1,3})?)(?![\d.]*\d)", re.ASCII)


@dataclass(frozen=True, slots=True)
class ParsedRating:
    """value on the format's scale; opened and start: where the slot and its content begin.
    planted as in ParseFailure."""

    value: float
    opened: int
    start: int
    planted: bool = field(default=False, compare=False)


def parse_rating(
    text: str,
    fmt: JudgeFormat,
    policy_texts: Sequence[str] = (),
    given_texts: Sequence[str] = (),
) -> ParsedRating | ParseFailure:
    """Read the rating that a judge wrote.

    policy_texts: the texts that it read in which a policy could plant a rating. With them a rating
    counts only where it cannot be theirs: at the end of the text, not above a rating before it, and
    not planted in any of them.
    given_texts: the other texts that it read. A rating that stands there too is the judge's like
    any other, and one that the judge repeats before its own does not count against its own.

    Only the last slot is read, even when it is malformed and an earlier one is not: what follows
    a rating may correct it. A value off the scale, off its step, or in an unclosed slot is a
    failure with its reason, never the nearest number.
    """
    slot = fmt.single
    if slot is None:
        return ParseFailure(f"format {fmt.name} has no rating", len(text))
    value, opened = fmt.scale.value, last_open(text, slot)
    labels = numbers(fmt.scale.steps)
    seen = seen_in(policy_texts, slot, opened, labels) if policy_texts else frozenset()
    if opened is None:
        return ParseFailure("no rating slot", len(text), bool(seen))
    read = _read(text, opened, slot, fmt)
    if isinstance(read, ParseFailure):
        return replace(read, planted=bool(seen))
    if policy_texts:
        before = (_read(text, each, slot, fmt) for each in slot.open_re.finditer(text))
        lower = {
            each.name
            for each in before
            if isinstance(each, Reading) and value(each.name) < value(read.name)
        }
        if lower:
            lower -= seen_in(given_texts, slot, opened, labels)
        if why := doubt(text, read, slot, lower, seen):
            return ParseFailure(why, len(text), bool(seen))
    return ParsedRating(value(read.name), opened.start(), read.start, bool(seen))


def _read(text: str, opened: re.Match[str], slot: Slot, fmt: JudgeFormat) -> Reading | ParseFailure:
    """The rating in one slot, by its shortest spelling."""
    lead = LEAD.match(text, opened.end())
    start = lead.end() if lead else opened.end()
    shown = repr(text[opened.end() : opened.end() + 20])
    found = _worded(text, start, fmt.scale) if fmt.scale.words else _number(text, start, fmt.scale)
    if found is None:
        kind = f"one of {', '.join(fmt.scale.words)}" if fmt.scale.words else "a number"
        return ParseFailure(f"not {kind} in the rating slot: {shown}", opened.start())
    label, end = found
    closing = closed(text, end, slot)
    if closing is None:
        return ParseFailure(f"rating slot not closed: {shown}", opened.start())
    if not fmt.scale.words:
        if not fmt.scale.admits(float(label)):
            scale = f"{fmt.scale.low} to {fmt.scale.high}"
            return ParseFailure(f"rating {label} is not on the scale {scale}", opened.start())
        label = f"{float(label):g}"
    return Reading(label, opened, start, closing)


def _number(text: str, start: int, scale: Scale) -> tuple[str, int] | None:
    """A number as it is spelled, and where it ends, what it is out of included."""
    number = _NUMBER.match(text, start)
    if number is None:
        return None
    share = re.compile(rf"\s*(?:/|out of)\s*{scale.high}(?!\d)").match(text, number.end())
    return number.group(), share.end() if share else number.end()


def _worded(text: str, start: int, scale: Scale) -> tuple[str, int] | None:
    """A word of the scale, and where it ends; of two that fit, the longer."""
    for word in sorted(scale.words, key=len, reverse=True):
        if found := label_re(word).match(text, start):
            return word, found.end()
    return None
