"""Where a verdict stands in the judge's own text, and when it may be read there."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from autoj_reward.formats.planted import Labels, planted
from autoj_reward.formats.slots import Slot

QUOTED = "the verdict as written stands in what the policy wrote"
NOT_LAST = "more text follows the verdict"
SEVERAL = "the judge's text holds another verdict before the last"

LEAD = re.compile(r"""[\s*_`"'“‘(（\\]*""")
"""What may stand between a slot's opening and its label: space, mark-up, quotes, a bracket."""
_TRAIL = r"""[\s*_`"'”’)）\\]*"""
_END = re.compile(_TRAIL + r"(?:\Z|(?<=\n)|[.!。！])")
_LINE_END = re.compile(r"""(?:[^\S\n]|[*_`"'”’)）\]\\.,:;!。！：])*(?=\n|\Z)""")
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
class Reading:
    """A verdict by its name, where its slot opens, and where its label starts and ends."""

    name: str
    opened: re.Match[str]
    start: int
    end: int


def last_open(text: str, slot: Slot) -> re.Match[str] | None:
    """The last place where the verdict slot opens."""
    return max(slot.open_re.finditer(text), key=re.Match.start, default=None)


def closed(text: str, at: int, slot: Slot) -> int | None:
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
    return found.end() if slot.close or _END.match(text, found.end()) else None


def doubt(
    text: str, read: Reading, slot: Slot, earlier: Collection[str], seen: frozenset[str]
) -> str:
    """Why a verdict may be another's than the judge's; empty if it is the judge's own.

    earlier: names of verdicts before it that it cannot outweigh. seen: names of planted verdicts.
    """
    if read.name in seen:
        return QUOTED
    if slot.comes_first:
        return ""
    if not _NOTHING_MORE.match(text, read.end):
        return NOT_LAST
    return SEVERAL if earlier else ""


def seen_in(
    shown: Sequence[str], slot: Slot, opened: re.Match[str] | None, labels: Labels
) -> frozenset[str]:
    """Return the names of the verdicts that stand in texts which the judge was shown, after the
    slot's words as the judge wrote them or as the format forces them."""
    forced = slot.open_re.search(slot.force)
    usual = forced.group() if forced else ""
    named = [usual] if re.search(r"[^\W_]", usual) else []
    return planted(shown, [*([opened.group()] if opened else [usual]), *named], labels)


@lru_cache
def label_re(spelling: str) -> re.Pattern[str]:
    """A label in any case, its words any space apart, that no letter or digit follows."""
    words = r"\s*".join(map(re.escape, spelling.split()))
    return re.compile(words + r"(?![0-9A-Za-z])", re.IGNORECASE)
