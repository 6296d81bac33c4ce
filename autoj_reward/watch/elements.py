"""Elements of static pages as HTML; every text that they are given is escaped here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autoj_reward.io.markup import esc


def heading(title: str, note: str = "", name: str = "") -> str:
    """Return a heading with a note beside it. name: its anchor."""
    anchor = f' id="{esc(name)}"' if name else ""
    return (
        f'<section{anchor}><div class="head"><h2>{esc(title)}</h2>'
        f'<span class="muted small">{esc(note)}</span></div></section>'
    )


def audit_table(kind: str, head: Sequence[str], rows: Sequence[str]) -> str:
    """Return a table. kind: its style class. rows: what `table_row` returned."""
    heads = "".join(f'<th scope="col">{esc(name)}</th>' for name in head)
    return (
        f'<div class="scroll card"><table class="audit {kind}"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def table_row(*cells: str) -> str:
    """Return a table's row of cells that are HTML."""
    return f"<tr>{''.join(cells)}</tr>"


def cell(text: str) -> str:
    """Return a cell with a text."""
    return f"<td>{esc(text)}</td>"


def chip(text: str, kind: str = "") -> str:
    """Return a short text in a frame. kind: `ok`, `bad` or no style class of its own."""
    return f'<span class="{f"chip {kind}".strip()}">{esc(text)}</span>'


def number_tiles(numbers: Mapping[str, str]) -> str:
    """Return numbers, each as a tile under its name."""
    tiles = (
        f'<div class="tile"><dt>{esc(name)}</dt><dd>{esc(number)}</dd></div>'
        for name, number in numbers.items()
    )
    return f'<dl class="tiles">{"".join(tiles)}</dl>'
