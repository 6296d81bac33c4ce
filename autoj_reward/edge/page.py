"""The page of a service's routes: made of its OpenAPI document, with nothing that is fetched."""

from __future__ import annotations

import json
from html import escape
from typing import Any

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
summary { cursor: pointer } code { font-weight: 600 } pre { overflow: auto; font-size: 13px }
"""
POLICY = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
"""A header: whatever else might be on the page, the browser asks nobody for anything."""


def page(document: dict[str, Any]) -> str:
    """Every route with its body and its answers, as HTML."""
    title = escape(f"{document['info']['title']} {document['info']['version']}")
    parts = [f"<!doctype html><meta charset=utf-8><title>{title}</title><style>{STYLE}</style>"]
    parts.append(f'<h1>{title}</h1><p><a href="openapi.json">openapi.json</a></p>')
    for path, methods in document["paths"].items():
        parts += [_route(path, method, told) for method, told in methods.items()]
    parts.append("<h2>Shapes</h2>")
    for name, shape in document["components"]["schemas"].items():
        parts.append(_folded(f'<code id="{escape(name)}">{escape(name)}</code>', shape))
    return "\n".join(parts)


def _route(path: str, method: str, told: dict[str, Any]) -> str:
    token = ", with the token" if told.get("security") else ""
    head = f"<code>{method.upper()} {escape(path)}</code>{token}"
    about = escape(told.get("description", told.get("summary", "")))
    facts = {name: told[name] for name in ("requestBody", "responses") if name in told}
    return _folded(f"{head}<br>{about}", facts)


def _folded(head: str, facts: Any) -> str:
    text = escape(json.dumps(facts, indent=1, ensure_ascii=False))
    return f"<details><summary>{head}</summary><pre>{text}</pre></details>"
