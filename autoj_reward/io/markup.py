"""Text and numbers as HTML, and tables as Markdown.

In HTML everything that a model or a file wrote passes through `esc`.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable, Sequence
from importlib.resources import files
from string import Template

# Controls but tab and newline, bidirectional overrides and isolates (which can show text in an
# order that is not its own), lone surrogates, and the two noncharacters that XML forbids.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


def page(package: str, name: str, **parts: str) -> str:
    """`NAME.html` of a package with its parts put in: those given, and the script that stands
    beside it, `NAME.js`, which runs by its hash and no other."""
    folder = files(package)
    script = folder.joinpath(f"{name}.js").read_text("utf-8")
    text = Template(folder.joinpath(f"{name}.html").read_text("utf-8"))
    return text.substitute(parts, script=script, script_hash=hashed(script))


def hashed(text: str) -> str:
    """What a page's policy names a script or a style of its own by."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _visible(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else "\ufffd"


def visible(text: object) -> str:
    """Plain text whose controls, overrides and surrogates can be seen; not yet safe in HTML."""
    return _UNSEEN.sub(_visible, str(text).replace("\r\n", "\n"))


def esc(text: object) -> str:
    """Text safe in an element or a quoted attribute; what cannot be seen becomes visible."""
    return html.escape(visible(text), quote=True)


def data_block(value: object) -> str:
    """A JSON value as text that no script or comment tag inside it can leave."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def num(value: float | None) -> str:
    """A number with at most two decimals; a dash for None."""
    if value is None:
        return "\u2013"
    text = f"{value:,.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def plural(number: int, noun: str) -> str:
    """A count with its noun: 1 query, 2 queries, 3 candidates."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} " + (noun[:-1] + "ies" if noun.endswith("y") else noun + "s")


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
