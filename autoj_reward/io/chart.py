"""Charts as SVG: line charts that stand alone, and the frame of every plot.

Axes and labels have classes for a page's style sheet, and attributes for use without one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from autoj_reward.io.markup import esc, num

COLOURS = (
    "#2563a8", "#c2541b", "#2c7a4b", "#8a3f8f", "#8c7a1f",
    "#4a4a4a", "#1f9aa8", "#d1478a", "#7ba428", "#5b54c9",
)  # fmt: skip
"""Colours of the series, in order."""
Scale = Callable[[float], float]
"""Map a value to a pixel coordinate."""


def ticks(low: float, high: float) -> list[float]:
    """Return three to seven round numbers within low..high."""
    raw = (high - low) / 5 or 1.0
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(k * step, 10) for k in range(first, last + 1)]


def scale(low: float, high: float, start: float, end: float) -> Scale:
    """Return the linear scale that maps low to start and high to end."""
    span = (high - low) or 1.0
    return lambda value: start + (value - low) / span * (end - start)


def add_margin(values: Sequence[float]) -> tuple[float, float]:
    """Return (minimum, maximum) of the values, each moved outwards by a margin."""
    pad = 0.06 * ((max(values) - min(values)) or 1.0)
    return min(values) - pad, max(values) + pad


@dataclass(frozen=True, slots=True)
class Frame:
    """Size and margins of a chart, in pixels."""

    width: int = 640
    height: int = 320
    left: int = 52
    right: int = 52
    top: int = 14
    bottom: int = 42

    def x(self, low: float, high: float, inset: float = 0) -> Scale:
        """Return the horizontal scale between the margins, or `inset` pixels inside them."""
        return scale(low, high, self.left + inset, self.width - self.right - inset)

    def y(self, low: float, high: float, inset: float = 0) -> Scale:
        """Return the vertical scale from the bottom margin, or `inset` pixels above it, to the top
        margin."""
        return scale(low, high, self.height - self.bottom - inset, self.top)

    def y_axis(self, marks: Iterable[float], y: Scale, write: Callable[[float], str] = num) -> str:
        """Return SVG with a grid line and a label for each mark."""
        left, right = self.left, self.width - self.right
        return "".join(
            f'<path class="grid" stroke="#ddd" d="M{left} {y(mark):.1f}H{right}"/>'
            f'<text x="{left - 6}" y="{y(mark) + 4:.1f}" text-anchor="end">{write(mark)}</text>'
            for mark in marks
        )

    def x_tick(self, x: float, text: str) -> str:
        """Return SVG with a tick and its label."""
        foot = self.height - self.bottom
        return (
            f'<path class="axis" stroke="#999" d="M{x:.1f} {foot}v4"/>'
            f'<text x="{x:.1f}" y="{foot + 16}" text-anchor="middle">{text}</text>'
        )

    def svg(
        self, body: Iterable[str], x_name: str, y_name: str, label: str = "", alone: bool = True
    ) -> str:
        """Return the whole chart as SVG, with its axis names.

        label: description for screen readers. alone: whether the chart is a file of its own, not
        part of a page.
        """
        head, ground = "", ""
        if alone:
            head = ' xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" font-size="12"'
            head += ' fill="#333"'
            ground = f'<rect width="{self.width}" height="{self.height}" fill="#fff"/>'
        middle, centre = self.left + self.width - self.right, self.top + self.height - self.bottom
        return (
            f'<svg{head} viewBox="0 0 {self.width} {self.height}" role="img" '
            f'aria-label="{esc(label or f"{y_name} by {x_name}")}">{ground}'
            f'<text class="name" x="{middle / 2:.0f}" y="{self.height - 5}" text-anchor="middle">'
            f'{esc(x_name)}</text><text class="name" text-anchor="middle" '
            f'transform="translate(12 {centre / 2:.0f}) rotate(-90)">{esc(y_name)}</text>'
            f"{''.join(body)}</svg>" + "\n" * alone
        )


NARROW = 360
"""Width of a chart that a phone shows at its own size, in pixels."""
ROW_HEIGHT = 34
"""Height of a row of `intervals`, in pixels."""
Interval = tuple[float, float | None, float | None]
"""A value with the ends of its interval; None without one."""


def intervals(rows: Mapping[str, Interval], x_name: str, reference: float | None = None) -> str:
    """Return a chart with a row for each name: a dot for its value, and a line for its interval.

    reference: value that gets a dashed line, such as 0 for differences. Raises ValueError without a
    row.
    """
    if not rows:
        raise ValueError("no row to draw")
    ends = [end for row in rows.values() for end in row if end is not None]
    ends += [reference] if reference is not None else []
    low, high = add_margin(ends)
    # Names stand above their line, so that long ones need no margin and the chart fits a phone.
    frame = Frame(width=NARROW, height=len(rows) * ROW_HEIGHT + 60, left=24, right=24)
    x = frame.x(low, high)
    foot = frame.height - frame.bottom
    body = [frame.x_tick(x(mark), num(mark)) for mark in ticks(low, high)]
    if reference is not None:
        line = f"M{x(reference):.1f} {frame.top}V{foot}"
        body.append(f'<path stroke="#999" stroke-dasharray="4 4" d="{line}"/>')
    colour = COLOURS[0]
    for n, (name, (value, start, end)) in enumerate(rows.items()):
        y = frame.top + n * ROW_HEIGHT + 24
        text = num(value)
        if start is not None and end is not None:
            text += f" [{num(start)}, {num(end)}]"
            line = f"M{x(start):.1f} {y}H{x(end):.1f}"
            body.append(f'<path stroke="{colour}" stroke-width="2" d="{line}"/>')
        body.append(f'<circle cx="{x(value):.1f}" cy="{y}" r="4.5" fill="{colour}"/>')
        body.append(f'<text x="{frame.left}" y="{y - 10}">{esc(name)}: {text}</text>')
    return frame.svg(body, x_name, "", x_name)


def curves(
    series: Mapping[str, Sequence[tuple[float, float]]],
    x_name: str,
    y_name: str,
    dashed: Collection[str] = (),
    log_x: bool = False,
    width: int = 640,
) -> str:
    """Return a line chart with one line for each series of (x, y) points.

    Series whose names have the same first word share a colour; two or more colours get a legend. A
    series in `dashed` is dashed. A single point is a dot, hollow if dashed. log_x: logarithmic x
    axis with a tick at each point's x. width: in pixels. Raises ValueError without a point.
    """
    points = [point for line in series.values() for point in line]
    if not points:
        raise ValueError("no series has a point")
    across: Scale = math.log2 if log_x else float
    xs, ys = [x for x, _ in points], [y for _, y in points]
    kinds = list(dict.fromkeys(name.split()[0] for name in series))
    low, high = add_margin(ys)
    frame = Frame(width, right=min(150, width // 3) if len(kinds) > 1 else 14)
    place, y = frame.x(across(min(xs)), across(max(xs))), frame.y(low, high)
    marks = sorted(set(xs)) if log_x else ticks(min(xs), max(xs))

    def x(value: float) -> float:
        return place(across(value))

    colour = {kind: COLOURS[n % len(COLOURS)] for n, kind in enumerate(kinds)}
    body = [frame.y_axis(ticks(low, high), y)]
    body += [frame.x_tick(x(mark), num(mark)) for mark in marks]
    for name, line in series.items():
        stroke = colour[name.split()[0]]
        if len(line) == 1:
            a, b = x(line[0][0]), y(line[0][1])
            fill = "#fff" if name in dashed else stroke
            body.append(
                f'<circle cx="{a:.1f}" cy="{b:.1f}" r="4.5" fill="{fill}" stroke="{stroke}">'
                f"<title>{esc(name)}</title></circle>"
            )
        path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in line)
        dash = ' stroke-dasharray="6 4"' if name in dashed else ""
        body.append(
            f'<polyline fill="none" stroke="{stroke}" stroke-width="1.6"{dash} points="{path}"/>'
        )
    for n, kind in enumerate(kinds if len(kinds) > 1 else []):
        end, down = frame.width - frame.right, frame.top + 14 + 18 * n
        body.append(
            f'<path stroke="{colour[kind]}" stroke-width="3" d="M{end + 14} {down - 4}h18"/>'
            f'<text x="{end + 38}" y="{down}">{esc(kind)}</text>'
        )
    return frame.svg(body, x_name, y_name)
