"""Strict reading of the rows of an evaluation: a bad row stops the run before a judge starts.

Scenario groups have their published titles (paper, Table 1).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from autoj_reward.client.in_flight import as_one
from autoj_reward.errors import InputError
from autoj_reward.formats.criteria import load_scenarios
from autoj_reward.io import checks as check
from autoj_reward.io.checks import BadField, text
from autoj_reward.io.rows import Stream, look_through, read_all, require_clean

Fields = dict[str, Any]
NAMING = ("id", "scenario", "prompt")
"""Fields by which a row of a file of answers may identify the row of the data that it answers."""
T = TypeVar("T")
_TITLES = {
    "summarization": "Summarization",
    "exam_questions": "Exam Questions",
    "code": "Code",
    "rewriting": "Rewriting",
    "creative_writing": "Creative Writing",
    "functional_writing": "Functional Writing",
    "general_communication": "General Communication",
    "nlp_tasks": "NLP Tasks",
}
_SCENARIOS = load_scenarios()

GROUPS: dict[str, tuple[str, ...]] = {
    title: tuple(s.name for s in _SCENARIOS if s.group == group) for group, title in _TITLES.items()
}
"""Scenarios of each group, by title. The paper's Table 6 leaves out `writing_email`; the figures of
Table 1 need it in the group where it is here."""


def read_strict(source: str, build: Callable[[int, Fields], T]) -> tuple[T, ...]:
    """Return a record of every row.

    Raises InputError that names every bad row with its line, field and value.
    """
    rows = read_all(strictly(source, build))
    require_clean(rows)
    return rows.rows


class MeasuredRows(Generic[T]):
    """Rows to measure. Each iteration reads them anew, so that none stays in memory.

    read_rows: returns all rows of the source. places: indices of the rows to measure, from 0.
    """

    def __init__(self, read_rows: Callable[[], Iterable[T]], places: Collection[int]) -> None:
        self._read_rows, self._places = read_rows, places

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[T]:
        return (row for index, row in enumerate(self._read_rows()) if index in self._places)

    def drawn(self, sample: int | None, seed: int) -> MeasuredRows[T]:
        """Return all rows, or `sample` of them drawn at random with the seed, in input order."""
        if sample is None:
            return self
        return MeasuredRows(self._read_rows, frozenset(drawn(sorted(self._places), sample, seed)))


def measured(rows: Stream[T], strict: bool = True) -> MeasuredRows[T]:
    """Return the usable rows of a stream, after reading it once to count and check them.

    With `strict`, raises InputError that names every bad row. Otherwise bad rows are named and left
    out, and InputError is raised if none is left.
    """
    return MeasuredRows(rows.usable, range(count_rows(rows, strict)))


def count_rows(rows: Stream[T], strict: bool = True, size: Callable[[T], int] = as_one) -> int:
    """Return the sum of the sizes of all usable rows. Raises InputError as `measured` does."""
    count = 0

    def add(row: T) -> None:
        nonlocal count
        count += size(row)

    look_through(rows, strict, add)
    return count


def strictly(source: str, build: Callable[[int, Fields], T]) -> Stream[T]:
    """Return a stream of records of a source whose rows are objects."""
    return Stream(source, lambda line, value: build(line, check.own_fields(value)))


def text_list(row: Fields, field: str) -> tuple[str, ...]:
    """Return a field that is a list of one text or more; raises BadField for anything else."""
    value = row.get(field)
    if not isinstance(value, list) or not value:
        raise BadField(field, f"{check.show(value)} is no list of one text or more")
    items_by_name = {f"{field}[{i}]": item for i, item in enumerate(value)}
    return tuple(text(items_by_name, name) for name in items_by_name)


def group(row: Fields) -> str:
    """Return the title of the group of the row's scenario; raises BadField if it is unknown."""
    name = text(row, "scenario")
    if name not in _SCENARIOS:
        raise BadField("scenario", f"{check.show(name)} is no scenario of the paper's Table 6")
    return _TITLES[_SCENARIOS[name].group]


def choice(row: Fields, field: str, options: dict[Any, T]) -> T:
    """Return the option for a field's value; raises BadField if there is none.

    Types must match: true and 1.0 are not 1.
    """
    value = row.get(field)
    for option, meaning in options.items():
        if type(option) is type(value) and option == value:
            return meaning
    expected = ", ".join(map(repr, options))
    raise BadField(field, f"{check.show(value)} is none of {expected}")


class Unique:
    """Check that ids are unique."""

    def __init__(self) -> None:
        self._lines: dict[Any, int] = {}

    def check(self, line: int, field: str, value: str | int | None) -> None:
        """Raise BadField if an earlier line has the same value. None is always accepted."""
        if value is not None and (first := self._lines.setdefault(value, line)) != line:
            raise BadField(field, f"{check.show(value)} is also the {field} of row {first}")


def row_id(row: Fields, field: str) -> str | int | None:
    """Return the row's id, a text or a whole number; None without one. Raises BadField."""
    value = row.get(field)
    if value is None or (isinstance(value, str | int) and not isinstance(value, bool)):
        return value
    raise BadField(field, f"{check.show(value)} is no id: write a text or a whole number")


def read_answers(
    source: str, data: str, rows: Iterable[Fields], build: Callable[[Fields], T]
) -> MeasuredRows[T]:
    """Return a record of every row of a file of answers, one for each row of the data.

    data: path of the data, for errors. rows: for each row of the data, the fields that identify it.
    Where an answer has such fields too, or the row's index from 0 as `idx` or `meta.idx`, they must
    match. Raises InputError that names a bad, missing, surplus or misplaced row.
    """
    answers, places, row_count = strictly(source, lambda _line, row: row), enumerate(rows), 0

    def check_row(row: Fields) -> T:
        nonlocal row_count
        if (place := next(places, None)) is not None:
            row_count += 1
            _require_order(row, *place)
        return build(row)

    answer_count = count_rows(answers.mapped(check_row))
    row_count += sum(1 for _ in places)
    if answer_count != row_count:
        row = min(answer_count, row_count) + 1
        problem = (
            f"no answer for row {row}" if answer_count < row_count else f"row {row} answers no row"
        )
        raise InputError(
            f"{source}: {answer_count} rows for the {row_count} rows of {data}: {problem}; give "
            "one answer for each row, in the same order"
        )
    return MeasuredRows(answers.mapped(build).usable, range(answer_count))


def drawn(rows: Sequence[T], sample: int | None, seed: int) -> tuple[T, ...]:
    """Return all rows, or `sample` of them drawn at random with the seed, in their order."""
    if sample is None or sample >= len(rows):
        return tuple(rows)
    chosen = sorted(random.Random(seed).sample(range(len(rows)), sample))
    return tuple(rows[i] for i in chosen)


def by_group(names: Sequence[str]) -> dict[str, list[int]]:
    """Return the row indices of each group.

    The paper's groups come first, in its order; others follow in order of appearance.
    """
    present = list(dict.fromkeys(names))
    ordered = [g for g in GROUPS if g in present] + [g for g in present if g not in GROUPS]
    return {group: [i for i, name in enumerate(names) if name == group] for group in ordered}


def _require_order(answer: Fields, position: int, row: Fields) -> None:
    """Raise BadField if an answer identifies a row other than this one."""
    meta = answer.get("meta")
    index = answer.get("idx", meta.get("idx") if isinstance(meta, dict) else None)
    if index is not None and index != position:
        raise BadField("idx", f"{check.show(index)} stands at place {position}: another order")
    for field in NAMING:
        if field in answer and field in row and answer[field] != row[field]:
            raise BadField(
                field,
                f"{check.show(answer[field])}, but row {position + 1} of the data has "
                f"{check.show(row[field])}: another order",
            )
