"""Curves and points as a stand-alone SVG, for pages that show Markdown."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence

from autoj_reward.io.page import esc, num

WIDTH, HEIGHT = 640, 320
LEFT, RIGHT, TOP, BOTTOM = 52, 150, 14, 42
COLOURS = (
    "#2563a8", "#c2541b", "#2c7a4b", "#8a3f8f", "#8c7a1f",
    "#4a4a4a", "#1f9aa8", "#d1478a", "#7ba428", "#5b54c9",
)  # fmt: skip


def ticks(low: float, high: float) -> list[float]:
    """Three to seven round numbers that cover low..high inside it."""
    raw = (high - low) / 5 or 1.0
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(k * step, 10) for k in range(first, last + 1)]


def curves(
    series: Mapping[str, Sequence[tuple[float, float]]],
    x_name: str,
    y_name: str,
    dashed: Collection[str] = (),
) -> str:
    """One line a series of (x, y) points, on common axes, with a legend.

    Series whose names have the same first word share a colour; those named in dashed are dashed,
    and a single point is a dot, hollow if dashed. ValueError without a point.
    """
    points = [point for line in series.values() for point in line]
    if not points:
        raise ValueError("no series has a point")
    xs, ys = [x for x, _ in points], [y for _, y in points]
    pad = 0.06 * ((max(ys) - min(ys)) or 1.0)
    low_x, span_x = min(xs), (max(xs) - min(xs)) or 1.0
    low_y, span_y = min(ys) - pad, (max(ys) - min(ys)) + 2 * pad

    def at(x: float, y: float) -> tuple[float, float]:
        return (
            LEFT + (x - low_x) / span_x * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - (y - low_y) / span_y * (HEIGHT - TOP - BOTTOM),
        )

    kinds = list(dict.fromkeys(name.split()[0] for name in series))
    colour = {kind: COLOURS[n % len(COLOURS)] for n, kind in enumerate(kinds)}
    body = []
    for mark in ticks(low_y, low_y + span_y):
        y = at(low_x, mark)[1]
        body.append(
            f'<path stroke="#ddd" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{num(mark)}</text>'
        )
    for mark in ticks(low_x, low_x + span_x):
        x = at(mark, low_y)[0]
        body.append(
            f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{num(mark)}</text>'
        )
    for name, line in series.items():
        stroke = colour[name.split()[0]]
        if len(line) == 1:
            x, y = at(*line[0])
            fill = "#fff" if name in dashed else stroke
            body.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{fill}" stroke="{stroke}">'
                f"<title>{esc(name)}</title></circle>"
            )
        path = " ".join("{:.1f},{:.1f}".format(*at(x, y)) for x, y in line)
        dash = ' stroke-dasharray="6 4"' if name in dashed else ""
        body.append(
            f'<polyline fill="none" stroke="{stroke}" stroke-width="1.6"{dash} points="{path}"/>'
        )
    for n, kind in enumerate(kinds):
        y = TOP + 14 + 18 * n
        body.append(
            f'<path stroke="{colour[kind]}" stroke-width="3" d="M{WIDTH - RIGHT + 14} {y - 4}h18"/>'
            f'<text x="{WIDTH - RIGHT + 38}" y="{y}">{esc(kind)}</text>'
        )
    return _page(body, x_name, y_name, (LEFT + WIDTH - RIGHT) / 2)


def scatter(points: Sequence[tuple[str, float, float]], x_name: str, y_name: str) -> str:
    """One dot for each (name, x, y), its name shown on hovering. ValueError without a point."""
    if not points:
        raise ValueError("no points")
    x, xs = _axis([x for _, x, _ in points], LEFT, WIDTH - LEFT)
    y, ys = _axis([y for _, _, y in points], HEIGHT - BOTTOM, TOP)
    body = [
        f'<path stroke="#ddd" d="M{LEFT} {y(mark):.1f}H{WIDTH - LEFT}"/>'
        f'<text x="{LEFT - 6}" y="{y(mark) + 4:.1f}" text-anchor="end">{num(mark)}</text>'
        for mark in ys
    ]
    under = HEIGHT - BOTTOM + 18
    body += [
        f'<text x="{x(mark):.1f}" y="{under}" text-anchor="middle">{num(mark)}</text>'
        for mark in xs
    ]
    body += [
        f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="4" fill="{COLOURS[0]}" fill-opacity="0.75">'
        f"<title>{esc(name)}: {num(a)}, {num(b)}</title></circle>"
        for name, a, b in points
    ]
    return _page(body, x_name, y_name, WIDTH / 2)


def _axis(
    values: Sequence[float], start: float, end: float
) -> tuple[Callable[[float], float], list[float]]:
    """Where a value stands between two pixels, with some room at both ends, and the marks."""
    pad = 0.06 * ((max(values) - min(values)) or 1.0)
    low, span = min(values) - pad, max(values) - min(values) + 2 * pad
    return lambda value: start + (value - low) / span * (end - start), ticks(low, low + span)


def _page(body: Sequence[str], x_name: str, y_name: str, middle: float) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="sans-serif" font-size="12" fill="#333" role="img" '
        f'aria-label="{esc(y_name)} by {esc(x_name)}">'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>{"".join(body)}'
        f'<text x="{middle:.0f}" y="{HEIGHT - 6}" text-anchor="middle">'
        f"{esc(x_name)}</text>"
        f'<text text-anchor="middle" transform="translate(13 {(TOP + HEIGHT - BOTTOM) / 2:.0f}) '
        f'rotate(-90)">{esc(y_name)}</text></svg>\n'
    )
