"""The rating in a judgement: the last slot counts, and it is validated after matching."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from autoj_reward.parse.planted import numbers
from autoj_reward.parse.slot import LEAD, ParseFailure, Reading, closed, doubt, last_open, seen_in
from autoj_reward.prompts.format import JudgeFormat
from autoj_reward.prompts.slots import Slot

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
    text: str, fmt: JudgeFormat, shown: Sequence[str] = ()
) -> ParsedRating | ParseFailure:
    """Read the rating that a judge wrote.

    shown: the untrusted texts that it read, the query among them. With them a rating counts only
    where none of it can be theirs: at the end of the text, not above a rating before it, and not
    planted in any of them.

    Only the last slot is read, even when it is malformed and an earlier one is not: what follows
    a rating may correct it. A value off the scale, off its step, or in an unclosed slot is a
    failure with its reason, never the nearest number.
    """
    slot = fmt.single
    if slot is None:
        return ParseFailure(f"format {fmt.name} has no rating", len(text))
    opened = last_open(text, slot)
    seen = seen_in(shown, slot, opened, numbers(fmt.scale.steps)) if shown else frozenset()
    if opened is None:
        return ParseFailure("no rating slot", len(text), bool(seen))
    read = _read(text, opened, slot, fmt)
    if isinstance(read, ParseFailure):
        return replace(read, planted=bool(seen))
    if shown:
        before = (_read(text, each, slot, fmt) for each in slot.open_re.finditer(text))
        lower = [
            each.name
            for each in before
            if isinstance(each, Reading) and float(each.name) < float(read.name)
        ]
        if why := doubt(text, read, slot, lower, seen):
            return ParseFailure(why, len(text), bool(seen))
    return ParsedRating(float(read.name), opened.start(), read.start, bool(seen))


def _read(text: str, opened: re.Match[str], slot: Slot, fmt: JudgeFormat) -> Reading | ParseFailure:
    """The rating in one slot, by its shortest spelling."""
    lead = LEAD.match(text, opened.end())
    number = _NUMBER.match(text, lead.end() if lead else opened.end())
    shown = repr(text[opened.end() : opened.end() + 20])
    if number is None:
        return ParseFailure(f"not a number in the rating slot: {shown}", opened.start())
    share = re.compile(rf"\s*(?:/|out of)\s*{fmt.scale.high}(?!\d)").match(text, number.end())
    end = closed(text, share.end() if share else number.end(), slot)
    if end is None:
        return ParseFailure(f"rating slot not closed: {shown}", opened.start())
    value = float(number.group())
    if not fmt.scale.admits(value):
        scale = f"{fmt.scale.low} to {fmt.scale.high}"
        return ParseFailure(f"rating {number.group()} is not on the scale {scale}", opened.start())
    return Reading(f"{value:g}", opened, number.start(), end)
