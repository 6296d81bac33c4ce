"""The leaderboard's tables: figures with intervals, and the heat map by group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autoj_reward.errors import InputError
from autoj_reward.evaluate.intervals import Figures
from autoj_reward.io.chart import scatter
from autoj_reward.io.markup import esc, num

MAIN = {"eval-c": "win", "best-of-four": "accuracy"}
NO_INTERVAL = ("accuracy",)
CORRELATIONS = ("pearson", "spearman", "kendall")
WIDTH = 90
Named = tuple[str, Figures]


def section(task: str, rows: str, results: Sequence[Named]) -> str:
    """One task on the same rows: a table of figures, a heat map, and plots of rankings."""
    parts = [f"<h2>{esc(task)}</h2>", f'<p class="muted small">{esc(rows)}</p>']
    parts.append(_table(results))
    if heat := _heat(task, results):
        parts.append(f"<h3>By group</h3>{heat}")
    for file, found in results:
        if systems := found.get("systems"):
            points = [(str(s["system"]), s["reference"], s["rating"]) for s in systems]
            plot = scatter(points, "leaderboard", "mean rating")
            parts.append(f'<h3>{esc(_title(file, found))}</h3><div class="plot">{plot}</div>')
    return "".join(parts)


def cells(task: str, found: Figures) -> dict[str, float | None]:
    """Column of the heat map to value."""
    if bases := found.get("bases"):
        return {
            f"{base}, best of {size}": _number("grade", best["grade"])
            for base, own in bases.items()
            for size, best in own["best_of"].items()
        }
    name = MAIN.get(task, "agreement")
    groups = found.get("groups", {})
    return {group: _number(name, own.get(name)) for group, own in groups.items()}


def _table(results: Sequence[Named]) -> str:
    names = list(
        dict.fromkeys(
            key.removesuffix("_95")
            for _, found in results
            for key in found["overall"]
            if key.endswith("_95") or key in NO_INTERVAL
        )
    )
    scales = {name: _range(results, name) for name in names}
    body = "".join(
        "<tr>"
        + _name(file, found)
        + _cell(found["overall"].get("n"), str(found["overall"].get("n", "")))
        + "".join(_figure(found["overall"], name, scales[name]) for name in names)
        + "</tr>"
        for file, found in results
    )
    return _sortable(["judge", "n", *names], body, "")


def _heat(task: str, results: Sequence[Named]) -> str:
    own = [cells(task, found) for _, found in results]
    columns = list(dict.fromkeys(column for row in own for column in row))
    known = [value for row in own for value in row.values() if value is not None]
    if not columns or not known:
        return ""
    low, span = min(known), (max(known) - min(known)) or 1.0

    def cell(value: float | None) -> str:
        if value is None:
            return _cell(None, "–")
        level = 0.06 + 0.54 * (value - low) / span
        return f'<td data-heat data-value="{value}" style="--level: {level:.3f}">{num(value)}</td>'

    body = "".join(
        "<tr>" + _name(file, found) + "".join(cell(row.get(c)) for c in columns) + "</tr>"
        for (file, found), row in zip(results, own, strict=True)
    )
    return _sortable(["judge", *columns], body, "heat")


def _sortable(head: Sequence[str], body: str, kind: str) -> str:
    heads = "".join(
        f'<th scope="col"><button type="button">{esc(name)}</button></th>' for name in head
    )
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _name(file: str, found: Figures) -> str:
    title = _title(file, found)
    return f'<td data-value="{esc(title)}" title="{esc(found["judge"])}">{esc(title)}</td>'


def _title(file: str, found: Figures) -> str:
    return f"{found['name']} ({file})"


def _cell(value: Any, text: str) -> str:
    shown = "" if value is None else f' data-value="{esc(value)}"'
    return f"<td{shown}>{esc(text)}</td>"


def _figure(overall: Figures, name: str, scale: tuple[float, float]) -> str:
    value, low, high = _numbers(overall, name)
    if value is None:
        return _cell(None, "–")
    digits = 3 if name in CORRELATIONS else 2
    if low is None or high is None:
        return _cell(value, f"{value:.{digits}f}")
    return (
        f'<td data-value="{value}">{value:.{digits}f}<span>{low:.{digits}f} to {high:.{digits}f}'
        f"</span>{_interval(value, low, high, scale)}</td>"
    )


def _interval(value: float, low: float, high: float, scale: tuple[float, float]) -> str:
    start, span = scale[0], (scale[1] - scale[0]) or 1.0
    a, b, c = (5 + (v - start) / span * (WIDTH - 10) for v in (low, high, value))
    return (
        f'<svg width="{WIDTH}" height="12" role="img" aria-label="from {num(low)} to {num(high)}">'
        f'<path class="range" d="M{a:.1f} 6H{b:.1f}"/>'
        f'<circle class="point" cx="{c:.1f}" cy="6" r="3.5"/></svg>'
    )


def _range(results: Sequence[Named], name: str) -> tuple[float, float]:
    found = [v for _, result in results for v in _numbers(result["overall"], name) if v is not None]
    return (min(found), max(found)) if found else (0.0, 1.0)


def _numbers(overall: Figures, name: str) -> tuple[float | None, float | None, float | None]:
    """A figure and the ends of its interval."""
    low, high = overall.get(f"{name}_95") or (None, None)
    value, low, high = (_number(name, found) for found in (overall.get(name), low, high))
    return value, low, high


def _number(name: str, value: Any) -> float | None:
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    raise InputError(f"a result has {str(value)[:40]!r} as its {name}: evaluate again")
