"""Paths to a field of a row: `output.text`, `completions[*].response`, `response_#`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from autoj_reward.errors import did_you_mean

OWN_COLUMNS = {
    "prompt": "query",
    "messages": "messages",
    "response": "response",
    "response_1": "response_1",
    "response_2": "response_2",
    "chosen": "chosen",
    "rejected": "rejected",
    "responses": "responses",
}
"""Keys of `columns` for prompt, responses and whole conversations, and this package's own names of
these columns."""
ROW_FIELDS = (
    *OWN_COLUMNS,
    "system",
    "history",
    "label",
    "score",
    "scores",
    "margin",
    "logprobs",
    "group",
    "id",
    "scenario",
)
"""Keys of `columns` that are fields of a row. Further ones are context fields of a judge."""
EACH = "[*]"
"""Step that takes every item of a list."""
STEP = re.compile(r"([^.\[\]]+)|\[(\*|\d+)\]")
Step = str | int


def find(row: Mapping[str, Any], path: str) -> Any:
    """Return the value at a path; None if there is none.

    A column of exactly this name goes first, so names may hold dots and blanks. `#` in a name
    stands for a number: the value is the list of all such columns, in the order of the numbers.
    On its way, a path reads JSON held in a text, and the only item of a list.
    """
    if path in row:
        return row[path]
    if "#" in path:
        return numbered(row, path)
    return _walk(row, parse(path)) if "." in path or "[" in path else None


@lru_cache(maxsize=1024)
def parse(path: str) -> tuple[Step, ...]:
    """Return the steps of a path: names, indices and EACH."""
    steps: list[Step] = []
    for name, index in STEP.findall(path):
        if name:
            steps.append(name)
        else:
            steps.append(EACH if index == "*" else int(index))
    return tuple(steps)


@lru_cache(maxsize=1024)
def column_of(path: str) -> str:
    """Return the name of the column that a path begins in."""
    return re.split(r"[.\[]", path, maxsplit=1)[0]


def numbered(row: Mapping[str, Any], path: str) -> list[Any] | None:
    """Return the values of numbered columns, such as `response_#`, without nulls at the end."""
    head, _, tail = path.partition("#")
    numbers = []
    for name in row:
        digits = name[len(head) : len(name) - len(tail)]
        # A name with more digits than any table has columns is no number of a column.
        if name.startswith(head) and name.endswith(tail) and digits.isdecimal() and len(digits) < 6:
            numbers.append((int(digits), name))
    values = [row[name] for _, name in sorted(numbers)]
    while values and values[-1] is None:
        values.pop()
    return values or None


def explain_missing(row: Mapping[str, Any], path: str) -> str:
    """Return why a row has nothing at a path: the step that is missing, what stands there, and the
    nearest name."""
    value: Any = row
    place = ""
    for step in parse(path):
        value = load(value)
        if isinstance(value, list) and isinstance(step, str) and step != EACH and len(value) == 1:
            value = load(value[0])
        if isinstance(step, str) and step != EACH:
            names = list(value) if isinstance(value, Mapping) else []
            if step not in names:
                owner = f"{place} has" if place else "the row has"
                return f"missing; {owner} {names}{did_you_mean(step, names)}"
            value = value[step]
        elif not isinstance(value, list):
            return f"missing; {place} is no list"
        elif isinstance(step, str):  # EACH: the first item stands for all
            value = next((item for item in value if item is not None), None)
        else:
            value = value[step] if step < len(value) else None
        separator = "." if place and isinstance(step, str) and step != EACH else ""
        place += f"[{step}]" if isinstance(step, int) else separator + str(step)
        if value is None:
            return f"null at {place}"
    return "null"


def load(value: Any) -> Any:
    """Return the data in a JSON text; any other value unchanged."""
    if isinstance(value, str):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return None
    return value


def _walk(value: Any, steps: Sequence[Step]) -> Any:
    for n, step in enumerate(steps):
        value = load(value)
        if step == EACH:
            if not isinstance(value, list):
                return None
            return [_walk(item, steps[n + 1 :]) for item in value]
        if isinstance(step, int):
            value = value[step] if isinstance(value, list) and step < len(value) else None
        else:
            if isinstance(value, list) and len(value) == 1:
                value = load(value[0])
            value = value.get(step) if isinstance(value, Mapping) else None
        if value is None:
            return None
    return value
