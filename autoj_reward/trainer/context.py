"""The context of a candidate in a trainer's own data, and what of it each part is shown."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from autoj_reward.config import RewardConfig
from autoj_reward.context import Asked, Context, context_of
from autoj_reward.errors import ConfigError, InputError
from autoj_reward.models import context_of as context_of_judge
from autoj_reward.models import format_of
from autoj_reward.types import Candidate


class ContextFields:
    """The context fields that the parts of a reward show, and the columns that hold them.

    asked: each with its column; required are those that the reward's own judge needs to rate. A
    function may read any, so beside one the reference and every name in `columns` are taken.

    Raises ConfigError for a name in `columns` that no part shows.
    """

    def __init__(self, config: RewardConfig) -> None:
        self._shown = {
            name: set(format_of(own.judge).context("single")) for name, own in config.judged.items()
        }
        self._for_judges = {field for shown in self._shown.values() for field in shown}
        known = set(self._for_judges)
        if any(part.function for part in config.parts.values()):
            known |= {"reference", *config.columns}
        if unknown := sorted(set(config.columns) - known):
            raise ConfigError(
                f"columns names {unknown[0]!r}, and the judges of this reward show "
                f"{sorted(known) or 'no context fields'}: leave it out, or set judge.format"
            )
        self._known = known
        needed = context_of_judge(config.judge, "single")
        self.asked = tuple(
            Asked(name, config.columns.get(name, name), needed.get(name, False))
            for name in sorted(known)
        )

    def read(self, row: Mapping[str, Any], reference: str | None = None) -> Context:
        """Return the context fields of a framework's row. A null, NaN or blank one is missing.

        reference: what the framework calls its reference answer (`label`), taken where neither the
        row nor `columns` names one. A function reads a list or mapping as JSON. InputError for a
        number that is not finite, and where a judge would show what is neither text nor number.
        """
        found = {}
        for one in self.asked:
            column = one.column
            if column == one.field == "reference" and row.get(column) is None and reference:
                column = reference
            text = self._text(one.field, column, row.get(column))
            if text.strip():
                found[one.field] = text
        return Context(found)

    def _text(self, field: str, column: str, value: Any) -> str:
        """Return a field's value as text, "" where it is missing."""
        if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
            value = value.item()  # a scalar of numpy or torch
        if isinstance(value, float) and not math.isfinite(value):
            if math.isnan(value):  # how pandas and datasets write a missing value
                return ""
            raise InputError(f"{column} holds {value}: give a finite number, or null")
        if value is None or isinstance(value, str):
            return value or ""
        if isinstance(value, int | float) and not isinstance(value, bool):
            return str(value)
        if field not in self._for_judges and isinstance(value, bool | Mapping | list | tuple):
            with suppress(TypeError, ValueError):
                return json.dumps(value, ensure_ascii=False, allow_nan=False)
        raise InputError(
            f"{column} holds {value!r:.80}, which is no text for the field {field!r}: give a text, "
            "or name another column in reward.columns"
        )

    def of_columns(self, columns: Mapping[str, Any], count: int) -> list[Context]:
        """Return the contexts of `count` candidates, from columns of that length by name: lists,
        arrays, and columns of pandas or datasets.

        ConfigError where there is no column for a field that the judge needs, and for a column of
        another length.
        """
        wanted = {one.column for one in self.asked}
        lists = {
            name: values
            for name, column in columns.items()
            if name in wanted and (values := _as_list(column)) is not None
        }
        for one in self.asked:
            if one.required and one.column not in lists:
                raise ConfigError(
                    f"the judge's format needs {one.field!r}, and the dataset has no column "
                    f"{one.column!r} (it has {sorted(columns)}): name it in reward.columns"
                )
        for name, values in lists.items():
            if len(values) != count:
                raise ConfigError(
                    f"column {name!r} has {len(values)} values for {count} completions: give one "
                    "for each"
                )
        return [self.read({name: own[n] for name, own in lists.items()}) for n in range(count)]

    def for_part(self, name: str, candidates: Sequence[Candidate]) -> list[Candidate]:
        """The candidates without the fields that are for other parts alone."""
        if name not in self._shown:
            return list(candidates)
        others = self._known - self._shown[name]
        return [
            replace(c, context=_without(c.context, others)) if others & set(c.context) else c
            for c in candidates
        ]


def _without(context: Mapping[str, str], names: set[str]) -> Context:
    kept = {name: text for name, text in context.items() if name not in names}
    return Context(kept, context_of(context).turns)


def _as_list(column: Any) -> list[Any] | None:
    """Return the values of a column, None for what is no column."""
    if isinstance(column, str | bytes | Mapping):
        return None
    if hasattr(column, "tolist"):  # numpy, torch and pandas
        column = column.tolist()
    return list(column) if isinstance(column, Sequence) else None


def refuse_needed(fields: ContextFields, why: str) -> None:
    """ConfigError that names a field which the judge needs where there is no column to read."""
    if needed := [one.field for one in fields.asked if one.required]:
        raise ConfigError(f"the judge's format needs {needed[0]!r}, and {why}: set judge.format")
