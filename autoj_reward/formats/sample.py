"""Sample rows for trying a judge format: an input, and an output that the format can parse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

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
CLOSINGS = ("", "]]", "]]</answer>", "</score>", "}", ">", ")", '"', '"}')
"""Texts that may end a verdict."""
FIRST = ("{verdicts}\n{reason}", "{verdicts}: {reason}", "{verdicts}")
"""Layouts of an output whose verdict comes first."""
LAST = ("{reason}{verdicts}",)
"""Layouts of an output whose verdicts end it."""


def make_sample_rows(fmt: JudgeFormat | ScalarFormat) -> list[dict[str, Any]]:
    """Return sample rows for a format, one per protocol, with the best verdict written in `text`.

    A row has no `text` if no sample output parses.
    """
    single_row = {"query": QUERY, "response": RIGHT}
    pair_row = {"query": QUERY, "response_1": RIGHT, "response_2": WRONG}
    if isinstance(fmt, ScalarFormat):
        return [single_row]
    rows: list[dict[str, Any]] = []
    if fmt.single:
        best = max(fmt.scale.labels, key=fmt.scale.value)
        rows.append(single_row | _fill_context(fmt, SINGLE) | _write_text(fmt, SINGLE, best))
    if fmt.pairwise:
        best = next(iter(fmt.pairwise.canonical), "9 2")
        rows.append(pair_row | _fill_context(fmt, PAIRWISE) | _write_text(fmt, PAIRWISE, best))
    if GROUP in fmt.protocols:
        group_row: dict[str, Any] = {"query": QUERY, "responses": [RIGHT, WRONG]}
        labels = sorted(fmt.scale.labels, key=fmt.scale.value)
        rows.append(
            group_row | _fill_context(fmt, GROUP) | _write_texts(fmt.slots(GROUP), labels[::-1])
        )
    if CHECKLIST in fmt.protocols:
        criteria = CRITERIA[: fmt.protocol(CHECKLIST).most_items]
        items = read_items(criteria)
        item = JudgeInput(CHECKLIST, QUERY, (RIGHT,), items=items)
        answers = [label for label, _ in YES_NO]
        rows.append(
            single_row
            | {RUBRIC: criteria}
            | _fill_context(fmt, CHECKLIST)
            | _write_texts(fmt.slots_of(item), answers[: len(items)])
        )
    return rows


def _fill_context(fmt: JudgeFormat, protocol: str) -> dict[str, str]:
    needed = [name for name, required in fmt.context(protocol).items() if required]
    return {name: KNOWN.get(name, f"(the {name})") for name in needed}


def _write_text(fmt: JudgeFormat, protocol: str, label: str) -> dict[str, str]:
    thinking = fmt.thinking
    head = f"{thinking.open}\n{THOUGHTS}\n{thinking.close}\n\n" if thinking else ""
    sample = _write_texts(fmt.slots(protocol), [label])
    return {name: head + text for name, text in sample.items()}


def _write_texts(slots: Sequence[Slot], labels: Sequence[str]) -> dict[str, str]:
    """Return an output with the first label in the first slot, and the last one in the last."""
    written_labels = [labels[0], labels[-1]][: len(slots)]
    layout = find_layout(slots, written_labels)
    return {"text": layout.write(REASON, slots, written_labels)} if layout else {}


@dataclass(frozen=True, slots=True)
class OutputLayout:
    """How a reason and verdicts become an output that the format can parse."""

    template: str
    """One of `FIRST` or `LAST`."""
    closing: str
    """Text after each label."""

    def write(self, reason: str, slots: Sequence[Slot], labels: Sequence[str]) -> str:
        """Return an output with a label in each slot."""
        verdicts = ""
        for slot, label in zip(slots, labels, strict=True):
            opening = "" if slot.comes_first else slot.force
            verdicts += f"{opening}{label}{self.closing}"
        return self.template.format(reason=reason, verdicts=verdicts)


def find_layout(slots: Sequence[Slot], labels: Sequence[str]) -> OutputLayout | None:
    """Return the layout of an output with these labels in the slots. None if none parses."""
    templates = FIRST if slots[0].comes_first else LAST
    for template, closing in product(templates, CLOSINGS):
        layout = OutputLayout(template, closing)
        text = layout.write(REASON, slots, labels)
        verdicts = read_slots(slots, text, (RIGHT, WRONG), (QUERY,))
        if all(isinstance(verdict, WrittenVerdict) for verdict in verdicts.values()):
            return layout
    return None
