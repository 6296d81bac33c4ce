"""The page: one document of its own HTML, style and script, and nothing that is fetched for it.

`autoj watch` serves it without data, and it asks for what it shows. A job's `report.html` is the
same page with its data embedded: a file that needs neither a server nor a network.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from string import Template
from typing import Any

from autoj_reward.io.markup import data_block, hashed

SCRIPTS = (
    "base.js", "embedded.js", "charts.js", "overview.js", "queries.js", "query.js", "main.js",
)  # fmt: skip


@cache
def _parts() -> tuple[str, str]:
    """Style and script, as they stand between their tags."""
    folder = files("autoj_reward.watch")
    texts = [folder.joinpath(name).read_text("utf-8") for name in ("page.css", *SCRIPTS)]
    return texts[0], '"use strict";\n' + "\n".join(texts[1:])


@cache
def _policy() -> str:
    """Run this script and use this style alone, and fetch nothing."""
    style, script = map(hashed, _parts())
    return (
        f"default-src 'none'; script-src '{script}'; style-src '{style}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def document(data: Any = None) -> str:
    """Return the page's HTML.

    data: what an embedded page shows, of plain JSON values; whatever its texts hold, they cannot
    leave their element. None for the page that asks a server.
    """
    style, script = _parts()
    text = files("autoj_reward.watch").joinpath("page.html").read_text("utf-8")
    policy = "" if data is None else _policy()
    return Template(text).substitute(
        style=style, script=script, data=data_block(data), policy=policy
    )


def headers() -> dict[str, str]:
    """Return what the browser is told: run this script alone, and ask nobody but this service."""
    return {
        "Content-Security-Policy": f"{_policy()}; connect-src 'self'; frame-ancestors 'none'",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-store",
    }
