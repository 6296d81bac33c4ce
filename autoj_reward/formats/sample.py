"""Sample rows for trying a judge format: an input, and an output that the format can parse."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from autoj_reward.conversation import Context
from autoj_reward.formats.protocols import read_slots
from autoj_reward.formats.read import WrittenVerdict
from autoj_reward.formats.schema import JudgeFormat, ScalarFormat
from autoj_reward.formats.slots import Slot
from autoj_reward.rubric_items import RUBRIC, YES_NO, read_items
from autoj_reward.types import CHECKLIST, GROUP, PAIRWISE, SINGLE, JudgeInput

QUERY, RIGHT, WRONG = "What is 12 times 12?", "12 times 12 is 144.", "12 times 12 is 124."
"""Question, right response and wrong response of the sample rows."""
CRITERIA = ["States the product", "Shows each step of the multiplication"]
"""Rubric of the sample row: the right response meets the first item alone."""
REASON = "12 times 12 is 144, and so it says."
"""Critique of the sample output."""
THOUGHTS = "10 times 12 is 120, and 24 more."
"""Text of the sample output's thinking block."""
KNOWN = {"reference": "144"}
"""Values for context fields that a format requires."""
CLOSINGS = ("", "]]", "]]</answer>", "</score>", "}", ">", ")", '"')
"""Texts that may end a verdict."""


def make_sample_rows(fmt: JudgeFormat | ScalarFormat) -> list[dict[str, Any]]:
    """Return sample rows for a format, one per protocol, with the best verdict written in `text`.

    A row has no `text` if no sample output parses.
    """
    one = {"query": QUERY, "response": RIGHT}
    two = {"query": QUERY, "response_1": RIGHT, "response_2": WRONG}
    if isinstance(fmt, ScalarFormat):
        return [one]
    rows: list[dict[str, Any]] = []
    if fmt.single:
        best = max(fmt.scale.labels, key=fmt.scale.value)
        rows.append(one | _context(fmt, SINGLE) | _text(fmt, SINGLE, best))
    if fmt.pairwise:
        best = next(iter(fmt.pairwise.canonical), "9 2")
        rows.append(two | _context(fmt, PAIRWISE) | _text(fmt, PAIRWISE, best))
    if GROUP in fmt.protocols:
        both: dict[str, Any] = {"query": QUERY, "responses": [RIGHT, WRONG]}
        labels = sorted(fmt.scale.labels, key=fmt.scale.value)
        rows.append(both | _context(fmt, GROUP) | _texts(fmt.slots(GROUP), labels[::-1]))
    if CHECKLIST in fmt.protocols:
        criteria = CRITERIA[: fmt.protocol(CHECKLIST).most_items]
        items = read_items(criteria)
        asked = JudgeInput(CHECKLIST, QUERY, (RIGHT,), context=Context(rubric=items))
        answers = [label for label, _ in YES_NO]
        rows.append(
            one
            | {RUBRIC: criteria}
            | _context(fmt, CHECKLIST)
            | _texts(fmt.slots_of(asked), answers[: len(items)])
        )
    return rows


def _context(fmt: JudgeFormat, protocol: str) -> dict[str, str]:
    needed = [name for name, required in fmt.context(protocol).items() if required]
    return {name: KNOWN.get(name, f"(the {name})") for name in needed}


def _text(fmt: JudgeFormat, protocol: str, label: str) -> dict[str, str]:
    thought = fmt.thinking
    head = f"{thought.open}\n{THOUGHTS}\n{thought.close}\n\n" if thought else ""
    for text in _said(fmt, protocol, label):
        read = read_slots(fmt.slots(protocol), text, (RIGHT, WRONG), (QUERY,))
        if all(isinstance(own, WrittenVerdict) for own in read.values()):
            return {"text": head + text}
    return {}


def _texts(slots: Sequence[Slot], labels: Sequence[str]) -> dict[str, str]:
    """Return an output with the first label in the first slot, and the last one in the last."""
    shown = [labels[0], labels[-1]][: len(slots)]
    for closing in CLOSINGS:
        said = zip(slots, shown, strict=True)
        text = REASON + "".join(slot.force + label + closing for slot, label in said)
        read = read_slots(slots, text, (RIGHT, WRONG), (QUERY,))
        if all(isinstance(own, WrittenVerdict) for own in read.values()):
            return {"text": text}
    return {}


def _said(fmt: JudgeFormat, protocol: str, label: str) -> Iterator[str]:
    """Yield outputs with the label and a reason, in the slot's order and with various endings."""
    own = fmt.protocol(protocol)
    first = [f"{label}\n{REASON}", f"{label}: {REASON}", label]
    texts = first if own.comes_first else [f"{REASON}{own.force}{label}"]
    return (text + closing for text, closing in product(texts, CLOSINGS))
