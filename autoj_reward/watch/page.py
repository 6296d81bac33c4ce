"""HTML document of the page, with its style and script embedded; it loads no other files.

`autoj watch` serves it without data, and the page fetches what it shows. A job's `report.html` is
the same page with its data embedded: a file that needs neither server nor network.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from string import Template
from typing import Any

from autoj_reward.io.markup import data_block, hashed

SCRIPTS = (
    "base.js", "embedded.js", "charts.js", "overview.js", "queries.js", "relative.js",
    "query.js", "main.js",
)  # fmt: skip
"""Script files, in the order in which they are joined."""


@cache
def _parts() -> tuple[str, str]:
    """Return the contents of the style and script elements."""
    folder = files("autoj_reward.watch")
    texts = [folder.joinpath(name).read_text("utf-8") for name in ("page.css", *SCRIPTS)]
    return texts[0], '"use strict";\n' + "\n".join(texts[1:])


@cache
def _policy() -> str:
    """Return a Content-Security-Policy that allows only this page's script and style, and no
    requests."""
    style, script = map(hashed, _parts())
    return (
        f"default-src 'none'; script-src '{script}'; style-src '{style}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def document(data: Any = None) -> str:
    """Return the page's HTML.

    data: JSON-compatible values for an embedded page. No text in them can break out of its element.
    None makes the page that fetches its data from a server.
    """
    style, script = _parts()
    text = files("autoj_reward.watch").joinpath("page.html").read_text("utf-8")
    policy = "" if data is None else _policy()
    return Template(text).substitute(
        style=style, script=script, data=data_block(data), policy=policy
    )


def headers() -> dict[str, str]:
    """Return HTTP headers that allow only this page's script, and requests only to this server."""
    return {
        "Content-Security-Policy": f"{_policy()}; connect-src 'self'; frame-ancestors 'none'",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-store",
    }
