"""The reader of slots: which verdict stands in a judge's text, and whether it is the judge's own.

The last slot of a text counts, and nothing may follow its verdict: what follows may correct it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from autoj_reward.formats.planted import planted
from autoj_reward.formats.slots import Label, Slot
from autoj_reward.types import Verdict

QUOTED = "the verdict as written stands in what the policy wrote"
NOT_LAST = "more text follows the verdict"
SEVERAL = "the judge's text holds another verdict before the last"

_TRAIL = r"""[\s*_`"'”’)）\\]*"""
_END = re.compile(_TRAIL + r"(?:\Z|(?<=\n)|[.!。！])")
_LINE_END = re.compile(r"""(?:[^\S\n]|[*_`"'”’)）\]\\.,:;!。！：])*(?=\n|\Z)""")
_NOTHING = re.compile(r"[\W_]*")
_NOTHING_MORE = re.compile(r"[\W_]*\Z")


@dataclass(frozen=True, slots=True)
class ParseFailure:
    """Why there is no verdict. end: characters of the text to keep when the slot is forced.

    planted: whether what the policy wrote holds a verdict, however it is spelled.
    """

    reason: str
    end: int
    planted: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Written:
    """A verdict that a judge wrote.

    name: what its label means (`7.5`, `first`). value: the number that it stands for; NaN if none.
    opened: where its slot begins in the text. start, end: of the label itself. planted: as in
    ParseFailure.
    """

    name: str
    value: float
    opened: int
    start: int
    end: int
    planted: bool = field(default=False, compare=False)

    @property
    def verdict(self) -> Verdict:
        """The verdict of a comparison."""
        return Verdict(self.name)


def read_slot(
    text: str,
    slot: Slot,
    policy_texts: Sequence[str] = (),
    given_texts: Sequence[str] = (),
    beside: Sequence[Slot] = (),
) -> Written | ParseFailure:
    """Read the verdict that a judge wrote in a slot.

    policy_texts: the texts that it read in which a policy could plant a verdict. With them a
    verdict counts only where it cannot be theirs: at the end of the text, not against a verdict
    before it (a rating: not above one), and not planted in any of them. A bare label (PandaLM's
    `1`) may stand in any text by chance and is not taken for planted.
    given_texts: the other texts that it read. A verdict that stands there too is the judge's like
    any other, and one that the judge repeats before its own does not count against its own.
    beside: the other slots of the same judgement. Their verdicts alone may follow this one.

    Only the last slot is read, even when it is malformed and an earlier one is not. A rating off
    the scale or off its step, a slot that repeats the instruction's list ("Response 1 / Response 2
    / Tie"), and one that is not closed are failures with their reason, never the nearest verdict.
    """
    opened = _last_open(text, slot)
    known = policy_texts and slot.spelled
    seen = _seen_in(policy_texts, slot, opened) if known else frozenset()
    if opened is None:
        return ParseFailure(slot.unopened, len(text), bool(seen))
    found = _read(text, opened, slot)
    if isinstance(found, ParseFailure):
        return replace(found, planted=bool(seen))
    if policy_texts:
        each = (_read(text, one, slot) for one in slot.open_re.finditer(text))
        earlier = {one.label.name for one in each if isinstance(one, _Closed)}
        against = slot.against(found.label.name, earlier, seen)
        if against:
            against -= _seen_in(given_texts, slot, opened)
        if why := _doubt(text, found, slot, against, seen, beside):
            return ParseFailure(why, len(text), bool(seen))
    label, start = found.label, opened.start()
    return Written(label.name, label.value, start, label.start, label.end, bool(seen))


@dataclass(frozen=True, slots=True)
class _Closed:
    """A label whose slot is closed, and where the slot ends."""

    label: Label
    end: int


def _last_open(text: str, slot: Slot) -> re.Match[str] | None:
    return max(slot.open_re.finditer(text), key=re.Match.start, default=None)


def _read(text: str, opened: re.Match[str], slot: Slot) -> _Closed | ParseFailure:
    """Return the verdict in one slot."""
    shown = repr(text[opened.end() : opened.end() + 20])
    why = f"{slot.missing}: {shown}"
    for label in slot.labels_at(text, opened.end()):
        if isinstance(label, str):
            return ParseFailure(label, opened.start())
        end = label.until if label.alone else _closed(text, label.until, slot)
        if end is not None:
            return _Closed(label, end)
        why = f"{slot.name} slot not closed: {shown}"
    return ParseFailure(why, opened.start())


def _closed(text: str, at: int, slot: Slot) -> int | None:
    """Return where a label that ends at `at` is closed; None if its slot goes on.

    A label needs an end: the slot's own close, or else the end of its line where the verdict comes
    first, and elsewhere the end of a sentence, a line or the text.
    """
    if slot.comes_first and not slot.close:
        found = _LINE_END.match(text, at)
        return found.end() if found else None
    found = re.compile(_TRAIL + f"(?:{slot.close})").match(text, at)
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
    """Return why a verdict may be another's than the judge's; empty if it is the judge's own.

    against: names of verdicts before it that it cannot outweigh. seen: names of planted verdicts.
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
    """Return the names of the verdicts that stand in texts which the judge was shown, after the
    slot's words as the judge wrote them or as the format forces them."""
    forced = slot.open_re.search(slot.force)
    usual = forced.group() if forced else ""
    named = [usual] if re.search(r"[^\W_]", usual) else []
    return planted(shown, [*([opened.group()] if opened else [usual]), *named], slot.spelled)
