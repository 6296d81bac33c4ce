"""Text and numbers as HTML, and tables as Markdown.

In HTML, every text from a model or a file passes through `esc`.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Iterable, Sequence

from autoj_reward.io.files import to_compact_json

# Control characters except tab and newline, bidirectional overrides and isolates (which can
# reorder displayed text), lone surrogates, and the two noncharacters that XML forbids.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


def hash_source(text: str) -> str:
    """Return the hash source of a script or style for a Content-Security-Policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _make_visible(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else "\ufffd"


def visible(text: object) -> str:
    """Return plain text with visible control characters, direction overrides and surrogates.

    The result is not safe in HTML; see `esc`.
    """
    return _UNSEEN.sub(_make_visible, str(text).replace("\r\n", "\n"))


def esc(text: object) -> str:
    """Return text that is safe in an element or a quoted attribute, with invisible characters made
    visible."""
    return html.escape(visible(text), quote=True)


def data_block(value: object) -> str:
    """Return a value as JSON text from which no script or comment tag can escape."""
    text = to_compact_json(value, finite=True).decode("ascii")
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def num(value: float | None) -> str:
    """Return a number as text with at most two decimals; a dash for None."""
    if value is None:
        return "\u2013"
    text = f"{value:,.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def plural(number: int, noun: str) -> str:
    """Return a count with its noun: 1 query, 2 queries, 3 candidates."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} " + (noun[:-1] + "ies" if noun.endswith("y") else noun + "s")


Table = list[Sequence[str]]
"""Rows of cells, headings first."""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table. Bars in cells are escaped; line breaks become
    spaces."""
    lines = (head, ["---"] * len(head), *rows)
    return ["| " + " | ".join(map(_escape_cell, line)) + " |" for line in lines]


def section(title: str, rows: Table, note: str = "") -> list[str]:
    """Return the lines of a Markdown section with a table and a note; [] if the table has
    no rows."""
    if len(rows) < 2:
        return []
    return [f"## {title}", "", *table(rows[0], rows[1:]), "", *([note, ""] if note else [])]


def _escape_cell(text: str) -> str:
    return " ".join(text.splitlines()).replace("|", "\\|")
