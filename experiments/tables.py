"""Markdown reports: origin of the figures, and tables with a format per column."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from string import Formatter
from typing import Any

from autoj_reward.evaluate.statistics import estimate_text
from autoj_reward.io.markup import Table, section

Section = tuple[str, Sequence[Sequence[str]], str]
"""Title, rows with the heads first, and a note."""


class _Cells(Formatter):
    """`str.format` that writes None as an empty text and an estimate with its interval."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if value is None:
            return ""
        if isinstance(value, Mapping) and "value" in value:
            return estimate_text(value)
        return str(super().format_field(value, format_spec))


CELLS = _Cells()
"""Formatter of all cells."""


def tabled(rows: Iterable[Mapping[str, Any]], columns: Mapping[str, str]) -> Table:
    """Make a table from rows of figures. `columns` maps a head to the format of its cells.

    A format uses the row's fields: `{slopes[length]:.2f}` reaches into one. None becomes an empty
    cell, and an `Estimate` is shown with its interval.
    """
    cells = [
        [CELLS.vformat(cell_format, (), row) for cell_format in columns.values()] for row in rows
    ]
    return [list(columns), *cells]


def describe_hardware(machine: Mapping[str, Any]) -> str:
    """Return the machine's processor, cores, memory and GPUs as text."""
    host = f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB"
    return ", ".join([host, *machine["gpus"]])


def report(title: str, result: Mapping[str, Any], sections: Iterable[Section], *about: str) -> str:
    """Return a report: title, command, date, machine and versions, then sections with rows.

    `about` are further paragraphs before the sections.
    """
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    origin = [
        f"`{result['command']}`",
        f"{result['at']}; {describe_hardware(result['machine'])}; {versions}.",
    ]
    lines = [f"# {title}", "", *(line for text in (*origin, *about) for line in (text, ""))]
    for name, rows, note in sections:
        lines += section(name, list(rows), note)
    return "\n".join(lines).rstrip() + "\n"
