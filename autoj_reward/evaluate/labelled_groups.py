"""Rows that people or a stronger judge have labelled, as groups of responses with grades."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from autoj_reward.conversation import EMPTY_CONTEXT, Context, ContextColumn, Prompt, Response
from autoj_reward.data.labelled import LABELS
from autoj_reward.errors import InputError
from autoj_reward.io import checks as check
from autoj_reward.io.candidates import (
    VERDICTS,
    naming_layout,
    prompt_of_row,
    read_context,
    response_of_row,
)
from autoj_reward.io.checks import BadField
from autoj_reward.io.items import Item, pairs_of
from autoj_reward.io.layouts import PAIR, SINGLE
from autoj_reward.io.reader import read_items
from autoj_reward.io.rows import BadRows, Stream, look_through
from autoj_reward.types import Verdict

LOOKED_AT = 20
"""Rows that are looked at to tell whether a file has labels."""
KINDS = ("kind", "scenario")
"""Fields of a labelled row that may name its kind."""
PAIR_GRADES = dict(zip(LABELS, ((1.0, 0.0), (0.0, 1.0), (0.5, 0.5)), strict=True))
"""Grades of the two responses of a pair, by its label."""


@dataclass(frozen=True, slots=True)
class LabelledGroup:
    """Responses to one query with a grade each."""

    kind: str
    """Kind or scenario of the query; empty if the row names none."""
    prompt: Prompt
    responses: tuple[Response, ...]
    grades: tuple[float, ...]
    on_scale: bool = False
    """Whether the grades are ratings on the judge's scale."""
    compared: bool = False
    """Whether the grades stand for the label of a pair, so that only their order counts."""
    context: Context = EMPTY_CONTEXT


def read_labelled_groups(
    source: str,
    scale: tuple[float, float] | None,
    asked: Sequence[ContextColumn] = (),
    columns: Mapping[str, str] | None = None,
    layout: str | None = None,
) -> tuple[list[LabelledGroup], BadRows]:
    """Return the labelled rows of a file as groups, and its bad rows.

    Rows may have any layout with a label: a rating or grade of each response, a label of a pair, or
    rated responses, which are put together by query. scale: lowest and highest rating of the judge,
    or None if it has no scale. asked: context fields to read. columns, layout: as for `read_items`.
    Raises InputError for a file without a usable row.
    """
    items = read_items(source, "", columns, layout)
    if not any(_has_labels(item) for item in islice(items.usable(), LOOKED_AT)):
        raise InputError(
            f"{source}: the first rows have no labels that are known: give responses and scores; "
            "response_1, response_2 and label; or response and rating"
        )
    rows = items.mapped(naming_layout(lambda item: _read_labelled(item, scale, asked)))
    groups: list[LabelledGroup] = []
    return groups, _gather(rows, groups)


def _has_labels(item: Item) -> bool:
    try:
        values = (item.label, item.score, item.scores)
    except BadField:
        return True  # a label that is wrong: the row is named later
    return any(value is not None for value in values)


def _gather(rows: Stream[LabelledGroup], groups: list[LabelledGroup]) -> BadRows:
    """Add the usable rows to `groups`. Ratings of one query become one group."""
    rated_groups: dict[tuple[str, Prompt, Context], LabelledGroup] = {}

    def add(row: LabelledGroup) -> None:
        if len(row.responses) > 1:
            groups.append(row)
            return
        key = (row.kind, row.prompt, row.context)
        if earlier_group := rated_groups.get(key):
            responses, grades = (
                earlier_group.responses + row.responses,
                earlier_group.grades + row.grades,
            )
            row = replace(row, responses=responses, grades=grades)
        rated_groups[key] = row

    bad_rows = look_through(rows, each=add)
    groups += rated_groups.values()
    return bad_rows


def _read_labelled(
    item: Item, scale: tuple[float, float] | None, asked: Sequence[ContextColumn]
) -> LabelledGroup:
    """Return a row as a group: with a grade of each response, with a label, or rated alone."""
    prompt = prompt_of_row(item)
    responses = tuple(response_of_row(item, n) for n in range(len(item.responses)))
    kind = _find_kind(item.fields)
    context, _ = read_context(item.fields, asked, item)
    if not responses:
        raise BadField("response", f"missing; the row has {check.show(list(item.fields))}")
    if item.kind == SINGLE:
        rating = check.number(item.find("score"), item.found_at("score"))
        own_scale = item.layout.scale or scale
        if scale and own_scale != scale:
            reason = f"ratings of {own_scale}, and the judge's scale is {scale}"
            raise BadField(item.found_at("score"), reason)
        if scale and not scale[0] <= rating <= scale[1]:
            reason = f"{rating:g} is not on the judge's scale, {scale[0]:g} to {scale[1]:g}"
            raise BadField(item.found_at("score"), reason)
        grades: tuple[float, ...] = (rating,)
        return LabelledGroup(kind, prompt, responses, grades, scale is not None, context=context)
    if item.kind == PAIR:
        [(_, _, label)] = pairs_of(item)
        verdict = VERDICTS.get(label, Verdict.TIE)
        return LabelledGroup(
            kind, prompt, responses, PAIR_GRADES[verdict], compared=True, context=context
        )
    if len(responses) < 2:
        raise BadField("responses", f"{len(responses)} given: a group has two or more")
    found = check.numbers(item.view, item.found_at("scores"), len(responses))
    if found is None:
        raise BadField("grades", "missing: give a number for each response")
    return LabelledGroup(kind, prompt, responses, found, context=context)


def _find_kind(fields: dict[str, Any]) -> str:
    return next((str(fields[name]) for name in KINDS if fields.get(name)), "")
