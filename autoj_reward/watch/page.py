"""HTML document of the page, with its style and script embedded; it loads no other files.

`autoj watch` serves it without data, and the page fetches what it shows. A job's `report.html` is
the same page with its data embedded: a file that needs neither server nor network. Other results
have a static document in the same style.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from string import Template
from typing import Any

from autoj_reward.io.markup import data_block, esc, hash_source

SCRIPTS = (
    "base.js", "embedded.js", "charts.js", "overview.js", "queries.js", "relative.js",
    "query.js", "main.js",
)  # fmt: skip
"""Script files, in the order in which they are joined."""


@cache
def _read(name: str) -> str:
    """Return the text of a file of this package."""
    return files("autoj_reward.watch").joinpath(name).read_text("utf-8")


@cache
def _load_parts() -> tuple[str, str]:
    """Return the contents of the style and script elements."""
    return _read("page.css"), '"use strict";\n' + "\n".join(map(_read, SCRIPTS))


@cache
def _make_policy() -> str:
    """Return a Content-Security-Policy that allows only this page's script and style, and no
    requests."""
    style, script = map(hash_source, _load_parts())
    return (
        f"default-src 'none'; script-src '{script}'; style-src '{style}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def document(data: Any = None) -> str:
    """Return the page's HTML.

    data: JSON-compatible values for an embedded page. No text in them can break out of its element.
    None makes the page that fetches its data from a server.
    """
    style, script = _load_parts()
    policy = "" if data is None else _make_policy()
    return Template(_read("page.html")).substitute(
        style=style, script=script, data=data_block(data), policy=policy
    )


def static_document(title: str, body: str) -> str:
    """Return an HTML document in the page's style, without a script and without requests.

    title: plain text. body: HTML in which every text is escaped.
    """
    style = _load_parts()[0]
    policy = (
        f"default-src 'none'; style-src '{hash_source(style)}'; base-uri 'none'; form-action 'none'"
    )
    return Template(_read("static.html")).substitute(
        title=esc(title), style=style, body=body, policy=policy
    )


def headers() -> dict[str, str]:
    """Return HTTP headers that allow only this page's script, and requests only to this server."""
    return {
        "Content-Security-Policy": f"{_make_policy()}; connect-src 'self'; frame-ancestors 'none'",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-store",
    }
