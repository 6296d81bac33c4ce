"""The verdict in a comparison of two responses: the last decision counts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from autoj_reward.formats.scale import Scale
from autoj_reward.formats.schema import JudgeFormat
from autoj_reward.formats.slots import PairwiseSlot
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
from autoj_reward.types import Verdict

_SAID_OUT = re.compile(
    r"\s+(?:is|was)\s+(?:the\s+)?(?:better|winner|best)(?:\s+(?:one|response|answer))?"
    r"|\s+between\s+(?:them|the\s+two|both)(?:\s+responses)?"
    r"|\s*(?:更好|更优|更佳|胜出|获胜)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class ParsedVerdict:
    """verdict is FIRST, SECOND or TIE; opened, start and planted as in ParsedRating."""

    verdict: Verdict
    opened: int
    start: int
    planted: bool = field(default=False, compare=False)


def parse_comparison(
    text: str,
    fmt: JudgeFormat,
    policy_texts: Sequence[str] = (),
    given_texts: Sequence[str] = (),
) -> ParsedVerdict | ParseFailure:
    """Read which response a judge preferred.

    policy_texts: the texts that it read in which a policy could plant a verdict. With them a
    verdict counts only where it cannot be theirs: at the end of the text, not against a decision
    before it, and not planted in any of them. A bare label (PandaLM's `1`) may stand in any text by
    chance and is not taken for planted.
    given_texts: the other texts that it read. A verdict that stands there too is the judge's like
    any other, and one that the judge repeats before its own does not count against its own.

    A slot that repeats the instruction's list ("Response 1 / Response 2 / Tie") is no decision.
    """
    slot = fmt.pairwise
    if slot is None:
        return ParseFailure(f"format {fmt.name} has no comparison", len(text))
    opened = last_open(text, slot)
    labels = tuple((str(name), spellings) for name, spellings in slot.labels.items())
    seen = seen_in(policy_texts, slot, opened, labels) if policy_texts and labels else frozenset()
    if opened is None:
        return ParseFailure("no final decision", len(text), bool(seen))
    read = _read(text, opened, slot, fmt.scale)
    if isinstance(read, ParseFailure):
        return replace(read, planted=bool(seen))
    if policy_texts:
        before = (_read(text, each, slot, fmt.scale) for each in slot.open_re.finditer(text))
        others = {each.name for each in before if isinstance(each, Reading)} - seen - {read.name}
        if others:
            others -= seen_in(given_texts, slot, opened, labels)
        if why := doubt(text, read, slot, others, seen):
            return ParseFailure(why, len(text), bool(seen))
    return ParsedVerdict(Verdict(read.name), opened.start(), read.start, bool(seen))


def _read(
    text: str, opened: re.Match[str], slot: PairwiseSlot, scale: Scale
) -> Reading | ParseFailure:
    """The verdict in one slot, by its name."""
    lead = LEAD.match(text, opened.end())
    start = lead.end() if lead else opened.end()
    shown = repr(text[opened.end() : opened.end() + 20])
    if slot.scores:
        return _scored(text, opened, slot, scale) or ParseFailure(
            f"no number of the scale for each response: {shown}", opened.start()
        )
    why = f"not a verdict after the final decision: {shown}"
    for name, spellings in slot.labels.items():
        for spelling in spellings:
            found = label_re(spelling).match(text, start)
            if found is None:
                continue
            if re.compile(r"\s*/").match(text, found.end()):
                return ParseFailure("the decision repeats the list of options", opened.start())
            rest = _SAID_OUT.match(text, found.end())
            end = closed(text, (rest or found).end(), slot)
            if end is not None:
                return Reading(name, opened, start, end)
            why = f"verdict slot not closed: {shown}"
    return ParseFailure(why, opened.start())


def _scored(text: str, opened: re.Match[str], slot: PairwiseSlot, scale: Scale) -> Reading | None:
    """The verdict by two numbers, alone on their line."""
    number = r"(\d{1,3}(?:\.\d{1,3})?)"
    found = re.compile(rf"{number}(?:{slot.scores}){number}[ \t]*(?=\n|\Z)").match(
        text, opened.end()
    )
    if found is None or not all(scale.admits(float(n)) for n in found.groups()):
        return None
    first, second = map(float, found.groups())
    name = "tie" if first == second else "first" if first > second else "second"
    return Reading(name, opened, found.start(), found.end())
