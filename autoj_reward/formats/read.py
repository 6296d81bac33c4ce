"""Verdict parser: finds the verdict in a judge's text and decides whether it is the judge's own.

The last slot of a text counts. Nothing may follow its verdict, because later text may correct it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from autoj_reward.formats.planted import find_planted_names
from autoj_reward.formats.slots import TRAIL, Label, Slot
from autoj_reward.types import Verdict

QUOTED = "the verdict as written stands in what the policy wrote"
"""Failure reasons for verdicts that may not be the judge's own."""
NOT_LAST = "more text follows the verdict"
SEVERAL = "the judge's text holds another verdict before the last"

_END = re.compile(TRAIL + r"(?:\Z|(?<=\n)|[.!。！])")
_LINE_END = re.compile(r"""(?:[^\S\n]|[*_`"'”’)）\]\\.,:;!。！：])*(?=\n|\Z)""")
_WORD = re.compile(r"[^\W_]")
_NOTHING = re.compile(r"[\W_]*")
_NOTHING_MORE = re.compile(r"[\W_]*\Z")


@dataclass(frozen=True, slots=True)
class ParseFailure:
    """Reason why a text has no verdict."""

    reason: str
    end: int
    """Number of characters to keep when the slot is forced."""
    planted: bool = field(default=False, compare=False)
    """Whether a text of the policy holds a verdict, however it is spelled."""


@dataclass(frozen=True, slots=True)
class WrittenVerdict:
    """Verdict that a judge wrote."""

    name: str
    """Name of its label (`7.5`, `first`)."""
    value: float
    """Number of the label; NaN if it has none."""
    opened: int
    """Offset of the slot in the text."""
    start: int
    """Offset of the label."""
    end: int
    """Offset after the label."""
    planted: bool = field(default=False, compare=False)
    """Whether a text of the policy holds a verdict, however it is spelled."""

    @property
    def verdict(self) -> Verdict:
        """Verdict of a comparison."""
        return Verdict(self.name)


def read_slot(
    text: str,
    slot: Slot,
    policy_texts: Sequence[str] = (),
    given_texts: Sequence[str] = (),
    beside: Sequence[Slot] = (),
) -> WrittenVerdict | ParseFailure:
    """Parse the verdict that a judge wrote in a slot.

    `policy_texts` are the prompt texts in which a policy could plant a verdict. If there are any, a
    verdict counts only under three conditions. It ends the text. No earlier verdict contradicts it
    (for a rating: none is lower). It stands in none of these texts. Where the verdict comes first,
    only the third one applies. A bare label (PandaLM's `1`) may occur in any text by chance, so it
    does not count as planted.

    `beside` are the other slots of the same judgement. Only their verdicts may follow this one.

    `given_texts` are the other prompt texts. A verdict that stands there may still be the judge's
    own. If the judge repeats it before its own verdict, it does not contradict that verdict.

    Only the last slot is read, even if it is malformed and an earlier one is not. A rating off the
    scale or its step is a failure with a reason. So are a slot that repeats the options of the
    instruction ("Response 1 / Response 2 / Tie") and an unclosed slot. The nearest valid verdict is
    never taken instead.
    """
    opens = list(slot.open_re.finditer(text))
    opened = opens[-1] if opens else None
    known = policy_texts and slot.spelled
    seen = _seen_in(policy_texts, slot, opened) if known else frozenset()
    if opened is None:
        return ParseFailure(slot.unopened, len(text), bool(seen))
    found = _read(text, opened, slot)
    if isinstance(found, ParseFailure):
        return replace(found, planted=bool(seen))
    if policy_texts:
        each = (_read(text, one, slot) for one in opens[:-1])
        earlier = {one.label.name for one in each if isinstance(one, _Closed)}
        against = slot.against(found.label.name, earlier, seen)
        if against:
            against -= _seen_in(given_texts, slot, opened)
        if why := _doubt(text, found, slot, against, seen, beside):
            return ParseFailure(why, len(text), bool(seen))
    label, start = found.label, opened.start()
    return WrittenVerdict(label.name, label.value, start, label.start, label.end, bool(seen))


@dataclass(frozen=True, slots=True)
class _Closed:
    """Label whose slot is closed, and the offset at which the slot ends."""

    label: Label
    end: int


def _read(text: str, opened: re.Match[str], slot: Slot) -> _Closed | ParseFailure:
    """Return the verdict in one slot."""
    why = slot.missing
    for label in slot.labels_at(text, opened.end()):
        if isinstance(label, str):
            return ParseFailure(label, opened.start())
        end = label.until if label.alone else _closed(text, label.until, slot)
        if end is not None:
            return _Closed(label, end)
        why = f"{slot.name} slot not closed"
    shown = text[opened.end() : opened.end() + 20]
    return ParseFailure(f"{why}: {shown!r}", opened.start())


def _closed(text: str, at: int, slot: Slot) -> int | None:
    """Return the offset at which a label that ends at `at` is closed. None if the text goes on.

    The slot's own closing text closes a label. If the slot has none, the end of the line does where
    the verdict comes first. Elsewhere it is the end of a sentence, a line or the text.
    """
    if slot.comes_first and not slot.close:
        found = _LINE_END.match(text, at)
        return found.end() if found else None
    found = slot.close_re.match(text, at)
    if found is None:
        return None
    if slot.close or _END.match(text, found.end()):
        return found.end()
    line = _LINE_END.match(text, at)  # the next line may begin with mark-up
    return line.end() if line else None


def _doubt(
    text: str,
    found: _Closed,
    slot: Slot,
    against: Collection[str],
    seen: frozenset[str],
    beside: Sequence[Slot],
) -> str:
    """Return why a verdict may not be the judge's own; empty if it is.

    `against` holds the names of earlier verdicts that make it doubtful, `seen` those of planted
    ones.
    """
    if found.label.name in seen:
        return QUOTED
    if slot.comes_first:
        return ""
    if not _NOTHING_MORE.match(text, _end_of_verdicts(text, found.end, beside)):
        return NOT_LAST
    return SEVERAL if against else ""


def _end_of_verdicts(text: str, end: int, beside: Sequence[Slot]) -> int:
    """Return where the verdicts of other slots end that follow one another from a place on."""
    left = list(beside)
    while left:
        for slot in left:
            opened = slot.open_re.search(text, end)
            if opened is None or not _NOTHING.fullmatch(text, end, opened.start()):
                continue
            found = _read(text, opened, slot)
            if isinstance(found, _Closed):
                end = found.end
                left.remove(slot)
                break
        else:
            return end
    return end


def _seen_in(shown: Sequence[str], slot: Slot, opened: re.Match[str] | None) -> frozenset[str]:
    """Return the names of verdicts that stand in prompt texts after the slot's opening.

    The opening is tried as the judge wrote it and as the format forces it.
    """
    usual = slot.forced_opening
    named = [usual] if _WORD.search(usual) else []
    openings = [opened.group() if opened else usual, *named]
    return find_planted_names(shown, openings, slot.spelled)
