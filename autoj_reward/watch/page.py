"""The page: one document of its own HTML, style and script, and nothing that is fetched for it."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from autoj_reward.io.page import hashed

SCRIPTS = ("base.js", "charts.js", "overview.js", "queries.js", "query.js", "main.js")


@cache
def _parts() -> tuple[str, str]:
    """Style and script, as they stand between their tags."""
    folder = files("autoj_reward.watch")
    texts = [folder.joinpath(name).read_text("utf-8") for name in ("page.css", *SCRIPTS)]
    return texts[0], '"use strict";\n' + "\n".join(texts[1:])


@cache
def document() -> str:
    """The page's HTML. It holds nothing of a run."""
    style, script = _parts()
    text = files("autoj_reward.watch").joinpath("page.html").read_text("utf-8")
    return text.replace("$style", style).replace("$script", script)


@cache
def headers() -> dict[str, str]:
    """What the browser is told: run this script alone, and ask nobody but this service."""
    style, script = map(hashed, _parts())
    policy = (
        f"default-src 'none'; script-src '{script}'; style-src '{style}'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return {
        "Content-Security-Policy": policy,
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-store",
    }
