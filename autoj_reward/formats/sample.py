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
from autoj_reward.types import CHECKLIST, GROUP, PAIRWISE, SINGLE, JudgeInput, Verdict

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
CLOSINGS = ("", "]]", "]]</answer>", "</score>", "</answer>", "}", "}}", ">", ")", '"', '"}')
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
        rows.append(single_row | _fill_context(fmt, SINGLE) | _write_text(fmt, SINGLE, [best]))
    if fmt.pairwise:
        best_labels = fmt.pairwise.spell(Verdict.FIRST, fmt.scale)
        rows.append(
            pair_row | _fill_context(fmt, PAIRWISE) | _write_text(fmt, PAIRWISE, best_labels)
        )
    if GROUP in fmt.protocols:
        group_row: dict[str, Any] = {"query": QUERY, "responses": [RIGHT, WRONG]}
        labels = sorted(fmt.scale.labels, key=fmt.scale.value)
        rows.append(
            group_row
            | _fill_context(fmt, GROUP)
            | _write_texts(fmt.slots(GROUP), [labels[-1], labels[0]])
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
            | _write_texts(fmt.slots_of(item), [answers[0], answers[-1]][: len(items)])
        )
    return rows


def _fill_context(fmt: JudgeFormat, protocol: str) -> dict[str, str]:
    needed = [name for name, required in fmt.context(protocol).items() if required]
    return {name: KNOWN.get(name, f"(the {name})") for name in needed}


def _write_text(fmt: JudgeFormat, protocol: str, labels: Sequence[str]) -> dict[str, str]:
    thinking = fmt.thinking
    head = f"{thinking.open}\n{THOUGHTS}\n{thinking.close}\n\n" if thinking else ""
    sample = _write_texts(fmt.slots(protocol), labels)
    return {name: head + text for name, text in sample.items()}


def _write_texts(slots: Sequence[Slot], labels: Sequence[str]) -> dict[str, str]:
    """Return an output with a label in each slot."""
    layout = find_layout(slots, labels)
    return {"text": layout.write(REASON, slots, labels)} if layout else {}


@dataclass(frozen=True, slots=True)
class OutputLayout:
    """How a reason and verdicts become an output that the format can parse."""

    template: str
    """One of `FIRST` or `LAST`."""
    closing: str
    """Text after each label, or after the last one of a row."""
    in_row: bool
    """Whether verdicts of one row or one object are closed together."""

    def write(self, reason: str, slots: Sequence[Slot], labels: Sequence[str]) -> str:
        """Return an output with a label in each slot."""
        verdicts = ""
        for n, (slot, label) in enumerate(zip(slots, labels, strict=True)):
            goes_on = self.in_row and n > 0 and _is_of_row(slots[n - 1], slot)
            if n and not goes_on:
                verdicts += self.closing
            if goes_on:
                verdicts += slot.force_next
            else:
                verdicts += slot.force.lstrip() if slot.comes_first else slot.force
            verdicts += label
        verdicts += self.closing
        return self.template.format(reason=reason, verdicts=verdicts)


def _is_of_row(slot: Slot, other: Slot) -> bool:
    """Return whether two slots are fields of one object or numbers of one row."""
    return slot.place is not None and other.place is not None


def find_layout(slots: Sequence[Slot], labels: Sequence[str]) -> OutputLayout | None:
    """Return the layout of an output with these labels in the slots. None if none parses."""
    templates = FIRST if slots[0].comes_first else LAST
    for in_row, template, closing in product((False, True), templates, CLOSINGS):
        layout = OutputLayout(template, closing, in_row)
        text = layout.write(REASON, slots, labels)
        verdicts = read_slots(slots, text, (RIGHT, WRONG), (QUERY,))
        if all(isinstance(verdict, WrittenVerdict) for verdict in verdicts.values()):
            return layout
    return None
