"""Verdict parser: finds the verdict in a judge's text and decides whether it is the judge's own.

The last slot of a text counts. Nothing may follow its verdict, because later text may correct it,
unless the format says that its judge ends in remarks.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from autoj_reward.formats.fold import fold
from autoj_reward.formats.places import Opening
from autoj_reward.formats.planted import Wanted, find_planted_after
from autoj_reward.formats.remarks import (
    SENTENCE_END,
    find_other_ratings,
    is_reason,
    is_taken_back,
    leaves_verdict,
)
from autoj_reward.formats.slots import TRAIL, Label, Slot, find_openings, narrow
from autoj_reward.types import Verdict

QUOTED = "the verdict as written stands in what the policy wrote"
"""Failure reasons for verdicts that may not be the judge's own."""
NOT_LAST = "more text follows the verdict"
TAKEN_BACK = "the judge takes its verdict back"
SEVERAL = "the judge's text holds another verdict before the last"
RATED_AGAIN = "another rating follows the verdict"

_END = re.compile(SENTENCE_END)
_LINE_END = re.compile(r"""(?:[^\S\n]|[*_`"'”’)）\]\\.,:;!。！：])*(?=\n|\Z)""")
_WORD = re.compile(r"[^\W_]")
_TRAIL = re.compile(TRAIL)
_NOTHING = re.compile(r"[\W_]*")
_NOTHING_MORE = re.compile(r"[\W_]*\Z")
_ALTERNATIVE = re.compile(r"[ *_`]*(?:or|and|to|[/~–—-]|或|至|到|和)[ *_`]*")
"""Pattern of the text between two verdicts of which neither is the last word."""


@dataclass(frozen=True, slots=True)
class ParseFailure:
    """Reason why a text has no verdict."""

    reason: str
    end: int
    """Number of characters to keep when the slot is forced."""
    planted: bool = field(default=False, compare=False)
    """Whether a text of the policy holds a verdict, however it is spelled."""
    force: str | None = field(default=None, compare=False)
    """Text that leads from the kept characters to the label. None stands for the slot's own."""


@dataclass(frozen=True, slots=True)
class WrittenVerdict:
    """Verdict that a judge wrote."""

    name: str
    """Name of its label (`7.5`, `first`)."""
    value: float | None
    """Number of the label; None if it has none."""
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

    @property
    def rating(self) -> float:
        """Number of a rating. Raises ValueError for a label without a number."""
        if self.value is None:
            raise ValueError(f"{self.name!r} is no rating")
        return self.value


def read_slot(
    text: str,
    slot: Slot,
    policy_texts: Sequence[str] = (),
    given_texts: Sequence[str] = (),
    written: Sequence[WrittenSlot] = (),
    search: PlantSearch | None = None,
) -> WrittenVerdict | ParseFailure:
    """Parse the verdict that a judge wrote in a slot.

    `policy_texts` are the prompt texts in which a policy could plant a verdict. If there are any, a
    verdict counts only under three conditions. It ends the text, or is followed by remarks that the
    format allows. No earlier verdict contradicts it (for a rating: none is lower). It stands in
    none of these texts. Where the verdict comes first, only the third one applies. A bare label
    (PandaLM's `1`) may occur in any text by chance, so it does not count as planted.

    `written` are all slots in the text, as `list_written` returns them. Only the verdicts of other
    ones may follow this one. `search` is that of the judgement's slots, if there is one.

    `given_texts` are the other prompt texts. A verdict that stands there may still be the judge's
    own. If the judge repeats it before its own verdict, it does not contradict that verdict.

    Only the last slot is read, even if it is malformed and an earlier one is not. A rating off the
    scale or its step is a failure with a reason. So are a slot that repeats the options of the
    instruction ("Response 1 / Response 2 / Tie") and an unclosed slot. The nearest valid verdict is
    never taken instead.
    """
    text = narrow(text)
    openings = _drop_plainer(slot.find_openings(text), slot)
    if slot.remarks:
        openings = _drop_reasons(text, openings)
    opening = openings[-1] if openings else None
    search = search or PlantSearch((slot,))
    opening_text = opening.text if opening else ""
    planted_names = search.find_quotable(policy_texts, slot, opening_text)
    all_planted_names = search.find_planted(policy_texts, slot)
    planted = bool(planted_names or all_planted_names)
    if opening and slot.is_plainer(opening):
        planted_names |= all_planted_names
    if opening is None:
        return ParseFailure(slot.unopened, len(text), planted)
    verdict = _read_verdict(text, opening, slot)
    if isinstance(verdict, ParseFailure):
        return replace(verdict, planted=planted)
    if slot.remarks and is_taken_back(text, verdict.end):
        return ParseFailure(TAKEN_BACK, len(text), planted)
    if policy_texts or slot.strict:
        earlier_verdicts = (_read_verdict(text, match, slot) for match in openings[:-1])
        earlier_names = {v.label.name for v in earlier_verdicts if isinstance(v, _ClosedLabel)}
        contradicting_names = slot.against(verdict.label.name, earlier_names, planted_names)
        if contradicting_names:
            contradicting_names -= search.find_quotable(given_texts, slot, opening_text)
        if len(openings) > 1 and _leaves_open(text, openings[-2:], slot, verdict.label.name):
            contradicting_names.add(verdict.label.name)
        if doubt := _find_doubt(text, verdict, slot, contradicting_names, planted_names, written):
            return ParseFailure(doubt, len(text), planted)
    label, start = verdict.label, opening.start
    return WrittenVerdict(label.name, label.value, start, label.start, label.end, planted)


def _leaves_open(text: str, openings: list[Opening], slot: Slot, name: str) -> bool:
    """Return whether the verdict `name`, at the second opening, is one of two: "[[7]] or [[8]]".

    A plainer opening takes no verdict back that has the format's own form.
    """
    earlier = _read_verdict(text, openings[0], slot)
    if isinstance(earlier, ParseFailure) or earlier.label.name == name:
        return False
    if slot.is_plainer(openings[1]) and not slot.is_plainer(openings[0]):
        return True
    return _ALTERNATIVE.fullmatch(text, earlier.end, openings[1].start) is not None


def _drop_plainer(openings: list[Opening], slot: Slot) -> list[Opening]:
    """Return the openings without the plainer ones that stand before one in the format's own form.

    Such a judge rates in passing: "Clarity rating: 5. Rating: [[7]]".
    """
    own_starts = [o.start for o in openings if not slot.is_plainer(o)]
    if not own_starts:
        return openings
    return [o for o in openings if o.start >= own_starts[-1] or not slot.is_plainer(o)]


def _drop_reasons(text: str, openings: list[Opening]) -> list[Opening]:
    """Return the openings without those that begin a remark on the verdict before them."""
    first, rest = openings[:1], openings[1:]
    return first + [opening for opening in rest if not is_reason(text, opening.end)]


@dataclass(frozen=True, slots=True)
class _ClosedLabel:
    """Label whose slot is closed, and the offset at which the slot ends."""

    label: Label
    end: int


def _read_verdict(text: str, opening: Opening, slot: Slot) -> _ClosedLabel | ParseFailure:
    """Return the verdict in one slot."""
    keep = opening.start if opening.keep is None else opening.keep
    if opening.problem:
        return ParseFailure(opening.problem, keep, force=opening.force)
    reason = slot.missing
    for label in slot.labels_at(text, opening.end):
        if isinstance(label, str):
            return ParseFailure(label, keep, force=opening.force)
        end = _find_close(text, opening, label, slot)
        if end is not None:
            return _ClosedLabel(label, end)
        reason = f"{slot.name} slot not closed"
    excerpt = text[opening.end : opening.end + 20]
    return ParseFailure(f"{reason}: {excerpt!r}", keep, force=opening.force)


def _find_close(text: str, opening: Opening, label: Label, slot: Slot) -> int | None:
    """Return the offset at which a label is closed. None if text goes on.

    A value whose end is known has to be the label and no more.

    The slot's own closing text closes a label. If the opening needs none, the end of the line does
    where the verdict comes first. Elsewhere it is the end of a sentence, a line or the text, or
    the beginning of a remark where remarks may follow.
    """
    label_end = label.until
    if opening.value_end is not None:
        trail = _TRAIL.match(text, label_end)
        is_whole = trail is not None and label_end <= opening.value_end <= trail.end()
        return opening.slot_end if is_whole else None
    needs_close = slot.needs_close(opening)
    if slot.comes_first and not needs_close:
        close = _LINE_END.match(text, label_end)
        return close.end() if close else None
    if needs_close:
        close = slot.close_re.match(text, label_end)
        return close.end() if close else None
    if slot.remarks:
        return label_end if leaves_verdict(text, label_end, slot, label.name) else None
    close = _END.match(text, label_end)
    if close:
        return close.end()
    line = _LINE_END.match(text, label_end)  # the next line may begin with mark-up
    return line.end() if line else None


def _find_doubt(
    text: str,
    verdict: _ClosedLabel,
    slot: Slot,
    contradicting_names: Collection[str],
    planted_names: frozenset[str],
    written: Sequence[WrittenSlot],
) -> str:
    """Return why a verdict may not be the judge's own; empty if it is.

    `contradicting_names` are those of earlier verdicts that make it doubtful, `planted_names` those
    of planted ones.
    """
    if verdict.label.name in planted_names:
        return QUOTED
    if slot.comes_first:
        return ""
    end = _skip_verdicts(text, verdict.end, slot, written)
    may_go_on = slot.remarks and leaves_verdict(text, end, slot, verdict.label.name)
    if not (may_go_on or _NOTHING_MORE.match(text, end)):
        return NOT_LAST
    if may_go_on and verdict.label.value is not None:
        others = find_other_ratings(text, end, verdict.label.value, slot.high)
        if any(not _is_within(other, written) for other in others):
            return RATED_AGAIN
    return SEVERAL if contradicting_names else ""


class WrittenSlot(NamedTuple):
    """A slot in a judge's text."""

    start: int
    """Offset of its opening."""
    end: int
    """Offset after its verdict, or of the end of its line if it has no valid verdict: what is wrong
    with it costs no other slot."""
    name: str
    """Name of the slot."""


def list_written(slots: Sequence[Slot], text: str) -> list[WrittenSlot]:
    """Return the slots in a judge's text in their order."""
    written = []
    text = narrow(text)
    for slot, opening in find_openings(slots, text):
        verdict = _read_verdict(text, opening, slot)
        if isinstance(verdict, _ClosedLabel):
            end = verdict.end
        else:
            line_end = text.find("\n", opening.end)
            end = opening.slot_end or (len(text) if line_end < 0 else line_end)
        written.append(WrittenSlot(opening.start, end, slot.name))
    return sorted(written)


def _is_within(place: int, written: Sequence[WrittenSlot]) -> bool:
    """Return whether a place belongs to one of several slots."""
    return any(slot.start <= place < slot.end for slot in written)


def _skip_verdicts(text: str, end: int, slot: Slot, written: Sequence[WrittenSlot]) -> int:
    """Return where the slots of others end that follow one another from a place on."""
    skipped = {slot.name}
    for other in written:
        if other.start < end or other.name in skipped:
            continue
        if not _NOTHING.fullmatch(text, end, other.start):
            break
        end = other.end
        skipped.add(other.name)
    return end


class PlantSearch:
    """Search of one judgement's prompt texts for verdicts of its slots.

    Each text is searched once for the openings of all slots, whatever is asked later.
    """

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._slots = [slot for slot in slots if slot.spelled]
        self._wanted: dict[Wanted, int] = {}
        self._indices: dict[tuple[str, str], int] = {}
        self._names: dict[str, list[frozenset[str]]] = {}
        self._read_names: dict[str, dict[str, set[str]]] = {}
        for slot in self._slots:
            for opening in slot.openings:
                self._want(opening, slot)

    def learn_openings(self, text: str) -> None:
        """Learn the openings that the judge wrote in its text, so that a prompt text is searched
        for those of all slots together."""
        text = narrow(text)
        for slot in self._slots:
            openings = slot.find_openings(text)
            if openings and openings[-1].text:
                self._want(openings[-1].text, slot)

    def find_planted(self, texts: Sequence[str], slot: Slot) -> frozenset[str]:
        """Return the names of the whole verdicts that stand in prompt texts.

        Those are the verdicts that the reader would take from a judge, and those in any other
        spelling after an opening that the format accepts. Where a verdict is a bare label that
        comes first, a text may hold it by chance, so none is planted.
        """
        if not slot.spelled or slot.comes_first:
            return frozenset()
        return self._find_names(texts, slot, slot.openings) | self._find_read(texts, slot)

    def find_quotable(self, texts: Sequence[str], slot: Slot, opening: str) -> frozenset[str]:
        """Return the names of verdicts that stand in prompt texts after the slot's opening.

        The opening is tried as the judge wrote it, unless it is empty, and as the format forces it.
        """
        if not slot.spelled:
            return frozenset()
        forced_opening = slot.forced_opening
        openings = [opening or forced_opening]
        if _WORD.search(forced_opening):
            openings.append(forced_opening)
        names = self._find_names(texts, slot, openings)
        # What stands between two numbers of a row is no opening that could be searched for.
        return names | self._find_read(texts, slot) if slot.place else names

    def _find_read(self, texts: Sequence[str], slot: Slot) -> frozenset[str]:
        """Return the names of the verdicts that the reader would take from texts for a slot."""
        names = set[str]()
        for text in texts:
            if text not in self._read_names:
                self._read_names[text] = self._read_all(text)
            names |= self._read_names[text][slot.name]
        return frozenset(names)

    def _want(self, opening: str, slot: Slot) -> int:
        """Return the index of an opening's names among those of each text."""
        key = slot.name, opening
        if key not in self._indices:
            wanted = fold(opening), slot.spelled, slot.ending_after(opening)
            self._indices[key] = self._wanted.setdefault(wanted, len(self._wanted))
        return self._indices[key]

    def _find_names(
        self, texts: Sequence[str], slot: Slot, openings: Sequence[str]
    ) -> frozenset[str]:
        indices = {self._want(opening, slot) for opening in openings}
        names = set[str]()
        for text in texts:
            text_names = self._names.setdefault(text, [])
            if len(text_names) <= max(indices, default=-1):
                text_names += find_planted_after(text, tuple(self._wanted)[len(text_names) :])
            for index in indices:
                names |= text_names[index]
        return frozenset(names)

    def _read_all(self, text: str) -> dict[str, set[str]]:
        """Return by slot the names of the verdicts that the reader would take from a text."""
        text = narrow(text)
        names: dict[str, set[str]] = {slot.name: set() for slot in self._slots}
        for slot, opening in find_openings(self._slots, text):
            verdict = _read_verdict(text, opening, slot)
            if isinstance(verdict, _ClosedLabel):
                names[slot.name].add(verdict.label.name)
        return names
