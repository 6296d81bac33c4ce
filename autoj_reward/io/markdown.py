"""Tables in Markdown, as the commands print them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Table = list[Sequence[str]]
"""Rows of cells, the head first."""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table. A bar in a cell is escaped; a line break in it becomes a space."""
    lines = (head, ["---"] * len(head), *rows)
    return ["| " + " | ".join(map(_cell, line)) + " |" for line in lines]


def section(title: str, rows: Table, note: str = "") -> list[str]:
    """The lines of a section with a table and a note; nothing for a table without rows."""
    if len(rows) < 2:
        return []
    return [f"## {title}", "", *table(rows[0], rows[1:]), "", *([note, ""] if note else [])]


def _cell(text: str) -> str:
    return " ".join(text.splitlines()).replace("|", "\\|")
