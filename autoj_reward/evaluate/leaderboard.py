"""One HTML page of any number of results: `autoj evaluate leaderboard`.

It needs nothing but itself: no network, and only its own script runs, by its hash. Whatever a file
or a model wrote is text, escaped here or set as text by the script.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from autoj_reward.errors import ConfigError, InputError
from autoj_reward.evaluate.leaderboard_items import Item, items_of
from autoj_reward.evaluate.leaderboard_tables import section
from autoj_reward.evaluate.results import Figures, load, load_rows
from autoj_reward.io.files import to_json, write_text
from autoj_reward.io.page import data_block, esc, plural


def leaderboard(results: Sequence[str], output: str, limit: int) -> int:
    """Write the page."""
    if limit < 0:
        raise ConfigError(f"--limit {limit}: give 0 or more")
    loaded = [(path, load(path)) for path in results]
    for path, found in loaded:
        if not isinstance(found.get("overall"), dict):
            raise InputError(f"{path}: a result of {found['task']} has no overall figures to show")
    rows = [load_rows(path) for path, _ in loaded]
    items = [
        _items(path, str(found["task"]), own[:limit])
        for (path, found), own in zip(loaded, rows, strict=True)
    ]
    left = sum(max(0, len(own) - limit) for own in rows)
    write_text(output, render(loaded, items, left))
    print(f"{plural(len(loaded), 'result')}: {output}")
    return 0


def render(
    loaded: Sequence[tuple[str, Figures]], items: Sequence[Sequence[Item]], left: int
) -> str:
    """The page. loaded: results by file name. items: their judged rows. left: rows left out."""
    folder = files("autoj_reward.evaluate")
    page = Template(folder.joinpath("leaderboard.html").read_text("utf-8"))
    script = folder.joinpath("leaderboard.js").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    titles = [f"{found['name']} · {found['task']} · {Path(path).stem}" for path, found in loaded]
    data = [
        {"title": title, "items": [to_json(item) for item in own]}
        for title, own in zip(titles, items, strict=True)
        if own
    ]
    same: dict[tuple[str, str], list[tuple[str, Figures]]] = {}
    for path, found in loaded:
        same.setdefault((str(found["task"]), _rows_of(found)), []).append((Path(path).stem, found))
    note = f"{plural(left, 'judged row')} left out of this page; the files hold all of them."
    return page.substitute(
        script_hash=f"sha256-{digest}",
        subtitle=esc(f"{plural(len(loaded), 'result')}; 95 % intervals are bootstrapped."),
        sections="".join(section(task, rows, own) for (task, rows), own in same.items()),
        notes=f'<p class="muted small">{note}</p>' if left else "",
        data=data_block(data),
        script=script,
    )


def _rows_of(found: Figures) -> str:
    """What tells whether two results are of the same rows: the data's digest, and the sample."""
    sources = found.get("sources") or {}
    settings = found.get("settings") or {}
    source = sources.get("data") or sources.get("table") or {}
    name = Path(str(source.get("path", ""))).name
    digest = str(source.get("sha256", ""))[:12]
    sample = settings.get("sample")
    drawn = f"{sample} drawn with seed {settings.get('seed')}" if sample else ""
    return " · ".join(part for part in (name, digest, drawn) if part)


def _items(path: str, task: str, rows: Sequence[dict[str, Any]]) -> list[Item]:
    try:
        return [items_of(task, row) for row in rows]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"{path}: the rows beside it are not those of an evaluation: {error!r}; evaluate again"
        ) from error
