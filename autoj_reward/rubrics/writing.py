"""Rubrics as a model writes them: the question for a row, and the reader of its answer.

The texts of a row are untrusted: they stand between marks, which they cannot imitate, and are
tokenized apart from the template. An answer is read strictly, whether or not the engine kept it to
the schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from autoj_reward.conversation import EMPTY_CONTEXT, Context, Prompt
from autoj_reward.data.filters import word_runs
from autoj_reward.data.teacher import Answer
from autoj_reward.formats.render import Message, Part, RenderedPrompt, fill
from autoj_reward.rubric_items import KIND_POINTS, RUBRIC, BadRubric, RubricItem, read_items

SOURCES = {
    "pair": ("query", "chosen", "rejected"),
    "reference": ("query", "reference"),
    "query": ("query",),
}
"""Texts that a rubric is written from, by the name of the source; the richest source first."""
OWN_COLUMNS = ("reference", "chosen", "rejected")
"""Columns of the texts beside the query, unless the config names others."""
TASKS = {
    "pair": "Both responses answer the query, and the first is better. Write the criteria that "
    "tell them apart: what the better one does and the worse one does not do, and, as pitfalls, "
    "the faults of the worse one. The criteria must fit other responses to the query too.",
    "reference": "The reference answer is a good answer to the query. Write the criteria that such "
    "an answer meets and a poor one fails. A response may use other words than the reference.",
    "query": "Write the criteria that a good response to the query meets and a poor one fails.",
}
"""What the writer is asked for, by source."""
MARKS = {
    "query": "query",
    "reference": "reference_answer",
    "chosen": "better_response",
    "rejected": "worse_response",
}
"""Name in the marks around each text."""
ANY_MARK = re.compile(rf"</?(?:{'|'.join(MARKS.values())})>", re.IGNORECASE)
MAX_CRITERION_CHARS = 400
"""Longest criterion in characters."""
ITEM_KEYS = {"criterion", "kind"}
FENCE = re.compile(r"```(?:json)?\n(.*)\n```", re.DOTALL)
"""Code block, in which many chat models put JSON."""


class DropReason(StrEnum):
    """Why a row has no rubric in the output."""

    NOT_REACHED = "not_reached"
    """The budget ended before."""
    UNAVAILABLE = "writer_unavailable"
    REJECTED = "writer_rejected"
    """The writer cannot take the row, such as one that is too long."""
    CUT = "answer_cut"
    """The answer has no end within `max_tokens`, or a filter ended it."""
    MALFORMED = "answer_malformed"
    ABSTAINED = "judge_abstained"
    """The judge gave one of the two responses no score."""
    NOT_PREFERRED = "better_not_preferred"
    """The better response does not score higher."""


@dataclass(frozen=True, slots=True)
class RubricRow:
    """Input row that a rubric is written for."""

    line: int
    """Number of the row, from 1."""
    fields: dict[str, Any]
    source: str
    """One of SOURCES."""
    texts: dict[str, str]
    """Texts that the source names."""
    prompt: Prompt
    context: Context = EMPTY_CONTEXT
    """What the judge of a pair sees beside the responses."""


@dataclass(frozen=True, slots=True)
class WrittenRubric:
    """Rubric of a row, or the reason why it has none."""

    row: RubricRow
    items: tuple[RubricItem, ...] = ()
    merged: int = 0
    """Number of items that were duplicates."""
    dropped: DropReason | None = None
    detail: str = ""
    """What is wrong with the rubric or the answer. Empty if it is kept."""

    def drop(self, reason: DropReason, detail: str = "") -> WrittenRubric:
        """Return it as dropped."""
        return replace(self, dropped=reason, detail=detail)


def rubric_prompt(source: str, texts: Mapping[str, str], max_items: int) -> RenderedPrompt:
    """Return the question for a rubric.

    source: one of SOURCES. texts: the texts that the source names. max_items: number of items that
    the writer may give.
    """
    parts: list[Part] = []
    for name in SOURCES[source]:
        inert_text = ANY_MARK.sub(lambda mark: f"<\u200b{mark[0][1:]}", texts[name])
        head, tail = f"<{MARKS[name]}>\n", f"\n</{MARKS[name]}>\n\n"
        parts += [Part(head), Part(inert_text, trusted=False, name=name), Part(tail)]
    values = {
        "texts": tuple(parts),
        "task": (Part(TASKS[source]),),
        "most": (Part(str(max_items)),),
    }
    return (Message("user", fill(_read_template(), values)),)


@cache
def _read_template() -> str:
    return (Path(__file__).parent / "prompts" / "rubric.txt").read_text(encoding="utf-8")


def answer_schema(max_items: int) -> str:
    """Return the JSON schema of an answer, as JSON text."""
    item = {
        "type": "object",
        "properties": {
            "criterion": {"type": "string", "maxLength": MAX_CRITERION_CHARS},
            "kind": {"type": "string", "enum": list(KIND_POINTS)},
        },
        "required": ["criterion", "kind"],
        "additionalProperties": False,
    }
    items = {"type": "array", "items": item, "minItems": 1, "maxItems": max_items}
    return json.dumps(
        {
            "type": "object",
            "properties": {RUBRIC: items},
            "required": [RUBRIC],
            "additionalProperties": False,
        }
    )


def read_answer(text: str, max_items: int) -> tuple[RubricItem, ...]:
    """Return the items of an answer, with the points of their kinds.

    White space in a criterion becomes single spaces. Raises BadRubric for an answer that is not
    JSON of the schema, that holds characters which cannot be shown, or that no response can earn
    points by.
    """
    fence_match = FENCE.fullmatch(text.strip())
    try:
        value = json.loads(fence_match[1] if fence_match else text)
    except (ValueError, RecursionError):
        raise BadRubric("", f"the answer is no JSON: {text!r:.60}") from None
    if not isinstance(value, dict) or set(value) != {RUBRIC}:
        raise BadRubric("", f"the answer is no object with the key {RUBRIC!r} alone")
    entries = value[RUBRIC]
    if not isinstance(entries, list) or len(entries) > max_items:
        raise BadRubric("", f"give a list of 1 to {max_items} items (max_items)")
    for n, item in enumerate(entries):
        if not isinstance(item, dict) or set(item) != ITEM_KEYS:
            raise BadRubric(f"[{n}]", f"an item has the keys criterion and kind, not {item!r:.60}")
    return tuple(_join_lines(item, f"[{n}]") for n, item in enumerate(read_items(entries)))


def _join_lines(item: RubricItem, where: str) -> RubricItem:
    criterion = " ".join(item.criterion.split())
    if len(criterion) > MAX_CRITERION_CHARS:
        reason = f"{len(criterion)} characters, and {MAX_CRITERION_CHARS} are allowed"
        raise BadRubric(f"{where}.criterion", reason)
    if not criterion.isprintable():
        raise BadRubric(f"{where}.criterion", f"characters that cannot be shown: {criterion!r:.60}")
    return replace(item, criterion=criterion)


def merge_duplicates(items: Sequence[RubricItem], threshold: float) -> tuple[RubricItem, ...]:
    """Return the items without near duplicates, in their order.

    Of items whose runs of words have at least the similarity `threshold` (Jaccard, 0 to 1), the one
    with the most points stays. A fault is no duplicate of a merit. A rubric is small, so the
    similarity is computed and not estimated by MinHash.
    """
    runs_by_item: dict[int, set[str]] = {}
    for n in sorted(range(len(items)), key=lambda n: -abs(items[n].points)):
        runs, is_merit = word_runs(items[n].criterion), items[n].points > 0
        comparable_runs = (
            other_runs
            for k, other_runs in runs_by_item.items()
            if (items[k].points > 0) == is_merit
        )
        if not any(
            len(runs & other_runs) >= threshold * len(runs | other_runs)
            for other_runs in comparable_runs
        ):
            runs_by_item[n] = runs
    return tuple(items[n] for n in sorted(runs_by_item))


def read_rubric(
    row: RubricRow, answer: Answer | None, max_items: int, near_duplicate: float
) -> WrittenRubric:
    """Return the rubric of a row from the writer's answer; dropped if the answer has none.

    answer: None if the writer was unavailable. near_duplicate: as for `merge_duplicates`.
    """
    empty_rubric = WrittenRubric(row)
    if answer is None:
        return empty_rubric.drop(DropReason.UNAVAILABLE)
    if answer.finish_reason == "rejected":
        return empty_rubric.drop(DropReason.REJECTED, answer.text)
    if answer.finish_reason != "stop":
        return empty_rubric.drop(DropReason.CUT)
    try:
        items = read_answer(answer.text, max_items)
    except BadRubric as error:
        return empty_rubric.drop(DropReason.MALFORMED, str(error))
    merged_items = merge_duplicates(items, near_duplicate)
    return WrittenRubric(row, merged_items, len(items) - len(merged_items))
