"""Text and numbers as HTML. Everything that a model or a file wrote passes through `esc`."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
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
    text = json.dumps(value, ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def clip(text: str, limit: int) -> str:
    """Escaped text, cut after `limit` characters with a note of how many are missing."""
    if len(text) <= limit:
        return esc(text)
    left = f'<span class="muted"> … {len(text) - limit:,} more characters</span>'
    return esc(text[:limit]) + left


def num(value: float | None) -> str:
    """A number with at most two decimals; a dash for None."""
    if value is None:
        return "\u2013"
    text = f"{value:,.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def rate(value: float | None) -> str:
    """A rate with three digits or so; a dash for None."""
    if value is None:
        return "\u2013"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def count(value: int) -> str:
    """A count, shortened from 100,000 on."""
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if value >= size and value >= 100_000:
            return f"{value / size:.3g} {unit}"
    return f"{value:,}"


def percent(share: float | None) -> str:
    """A share as percent, which says 0 or 100 only when it is so."""
    if share is None:
        return "\u2013"
    if 0 < share < 0.001:
        return "&lt;0.1 %"
    if 0.999 < share < 1:
        return "&gt;99.9 %"
    return num(round(100 * share, 1)) + " %"


def plural(number: int, noun: str) -> str:
    """A count with its noun: 1 query, 2 queries, 3 candidates."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} " + (noun[:-1] + "ies" if noun.endswith("y") else noun + "s")


def table(head: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """A table of cells that are HTML already; it scrolls sideways where the screen is narrow."""
    cells = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{c}</td>" for c in row) + "</tr>" for row in rows)
    top = f"<thead><tr>{cells}</tr></thead>" if head else ""
    return f'<div class="scroll"><table class="{kind}">{top}<tbody>{body}</tbody></table></div>'


def counts(found: Mapping[str, int], nothing: str, limit: int = 20) -> str:
    """Names with their counts, as far as `limit`, and how many names were left out."""
    if not found:
        return f'<p class="muted">{nothing}</p>'
    rows = [(clip(name, 300), f"{k:,}") for name, k in list(found.items())[:limit]]
    if len(found) > limit:
        rest = sum(list(found.values())[limit:])
        rows.append((f'<span class="muted">{len(found) - limit:,} more kinds</span>', f"{rest:,}"))
    return table((), rows, "counts")
