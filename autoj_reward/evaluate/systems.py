"""Outputs of systems in AlpacaEval's form, leaderboards, and tables of both columns."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from autoj_reward.errors import InputError
from autoj_reward.evaluate.rows import Fields, Unique, read_strict
from autoj_reward.io import checks as check
from autoj_reward.io.checks import BadField, text

SUFFIXES = (".jsonl", ".json", ".jsonl.gz")
RATING, REFERENCE = "rating", "win_rate"
"""Columns of a table; a table of three columns has them in this order, whatever their names."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A system, the judge's mean rating of it, and its figure on the leaderboard."""

    system: str
    rating: float
    reference: float


def read_outputs(folder: str) -> dict[str, dict[str, str]]:
    """Instruction to output of every system: one file a system, rows of `instruction`, `output`
    and `generator`, which names the system.

    InputError names the row that is bad or stands twice, a file of two systems, a second file of
    one, and the instruction that a system lacks or has over the first one.
    """
    paths = sorted(p for p in Path(folder).glob("*") if p.name.endswith(SUFFIXES))
    if not paths:
        raise InputError(f"{folder}: no file of outputs there; give one {SUFFIXES[0]} a system")
    found: dict[str, dict[str, str]] = {}
    files: dict[str, Path] = {}
    for path in paths:
        system, outputs = _read_system(path)
        if system in found:
            raise InputError(f"{path}: outputs of {system!r}, as in {files[system]}: keep one")
        found[system], files[system] = outputs, path
    first, *others = found
    for system in others:
        for there, lacking in ((first, system), (system, first)):
            if missing := found[there].keys() - found[lacking].keys():
                raise InputError(
                    f"{files[lacking]}: {len(missing)} instructions of {there} are missing, for "
                    f"example {check.show(min(missing))}: give every system the same instructions"
                )
    return {system: {text: found[system][text] for text in found[first]} for system in found}


def read_leaderboard(path: str, column: str, systems: Iterable[str]) -> dict[str, float]:
    """A column of a CSV leaderboard, whose first column names the system.

    InputError for systems that it lacks, all named; for a missing column and a bad number.
    """
    header, rows = _read_csv(path)
    if column not in header[1:]:
        raise InputError(f"{path}: no column {column!r}; its columns are {', '.join(header[1:])}")
    cells = {row[0]: (line, row[header.index(column)]) for line, row in rows}
    if missing := [name for name in systems if name not in cells]:
        raise InputError(
            f"{path}: no row for {', '.join(missing)}: add them, or take their outputs away"
        )
    return {name: _number(path, *cells[name], column) for name in systems}


def read_table(path: str) -> tuple[Standing, ...]:
    """A CSV of systems with the columns `rating` and `win_rate`, or of just three columns:
    system, the judge's rating, the leaderboard's figure. InputError names the bad row."""
    header, rows = _read_csv(path)
    named = {RATING, REFERENCE} <= set(header)
    if not named and len(header) != 3:
        raise InputError(
            f"{path}: columns {', '.join(header)}: name two of them {RATING} and {REFERENCE}, or "
            "keep three: system, rating, leaderboard"
        )
    places = (header.index(RATING), header.index(REFERENCE)) if named else (1, 2)
    return tuple(
        Standing(row[0], *(_number(path, line, row[at], header[at]) for at in places))
        for line, row in rows
    )


def _read_system(path: Path) -> tuple[str, dict[str, str]]:
    seen, systems = Unique(), dict[str, int]()

    def build(line: int, row: Fields) -> tuple[str, str]:
        instruction = text(row, "instruction", blank=False)
        seen.check(line, "instruction", instruction)
        system = text(row, "generator", blank=False)
        systems.setdefault(system, line)
        if len(systems) > 1:
            first = next(iter(systems))
            raise BadField("generator", f"{check.show(system)} in a file of {check.show(first)}")
        return instruction, text(row, "output")

    rows = read_strict(str(path), build)
    return next(iter(systems)), dict(rows)


def _read_csv(path: str) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The header, and line number and cells of each row; systems stand in the first column."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            lines = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read as CSV: {error}") from error
    if len(lines) < 2:
        raise InputError(f"{path}: a header and a row for each system are needed")
    (_, header), *rows = lines
    header = [cell.strip() for cell in header]
    if len(header) > 1 and all(_is_number(cell) for cell in header[1:]):
        raise InputError(
            f"{path}:1: numbers where the names of the columns should be: add a header"
        )
    seen: dict[str, int] = {}
    for line, row in rows:
        if len(row) != len(header):
            raise InputError(f"{path}:{line}: {len(row)} cells under {len(header)} columns")
        if (first := seen.setdefault(row[0], line)) != line:
            raise InputError(f"{path}:{line}: {row[0]!r} is also the system of line {first}")
    return header, rows


def _number(path: str, line: int, cell: str, column: str) -> float:
    if not _is_number(cell):
        raise InputError(f"{path}:{line}: column {column!r}: {cell!r} is no finite number")
    return float(cell)


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False
