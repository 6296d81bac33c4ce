"""The context of a candidate in a trainer's own data, and what of it each part is shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    function may read any, so beside one every name in `columns` is taken.

    Raises ConfigError for a name in `columns` that no part shows.
    """

    def __init__(self, config: RewardConfig) -> None:
        self._shown = {
            name: set(format_of(own.judge).context("single")) for name, own in config.judged.items()
        }
        known = {field for shown in self._shown.values() for field in shown}
        if any(part.function for part in config.parts.values()):
            known |= set(config.columns)
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
        """The fields that a row of a framework's has; null and blank ones are not there.

        reference: what the framework calls its reference answer (`label`), taken where neither the
        row nor `columns` names one. InputError for a field that is neither text nor number.
        """
        found = {}
        for one in self.asked:
            column = one.column
            if column == one.field == "reference" and row.get(column) is None and reference:
                column = reference
            value = row.get(column)
            if isinstance(value, int | float) and not isinstance(value, bool):
                value = str(value)
            if value is not None and not isinstance(value, str):
                raise InputError(
                    f"{column} holds {value!r:.80}, and the judge shows it as {one.field!r}: give "
                    "a text, or name another column in reward.columns"
                )
            if value and value.strip():
                found[one.field] = value
        return Context(found)

    def of_columns(self, columns: Mapping[str, Any], count: int) -> list[Context]:
        """The contexts of so many candidates, from lists of that length by the name of a column.

        ConfigError where there is no column for a field that the judge needs.
        """
        lists = {name: own for name, own in columns.items() if isinstance(own, list | tuple)}
        for one in self.asked:
            if one.required and one.column not in lists:
                raise ConfigError(
                    f"the judge's format needs {one.field!r}, and the dataset has no column "
                    f"{one.column!r} (it has {sorted(lists)}): name it in reward.columns"
                )
        wanted = {one.column for one in self.asked} & set(lists)
        return [self.read({name: lists[name][n] for name in wanted}) for n in range(count)]

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


def refuse_needed(fields: ContextFields, why: str) -> None:
    """ConfigError that names a field which the judge needs where there is no column to read."""
    if needed := [one.field for one in fields.asked if one.required]:
        raise ConfigError(f"the judge's format needs {needed[0]!r}, and {why}: set judge.format")
