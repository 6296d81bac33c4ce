"""The report's plots as inline SVG. Colours come from the page's style sheet."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from autoj_reward.io.chart import COLOURS, Frame, ticks
from autoj_reward.io.page import esc, num
from rollouts.best_of_n.group import GroupResult

_BLUE = COLOURS[0]


def _frame(size: tuple[int, int]) -> Frame:
    return Frame(*size, left=40, right=14, top=14, bottom=38)


def line_plot(
    points: Sequence[tuple[int, float]], y_name: str, size: tuple[int, int], alone: bool = False
) -> str:
    """A best-of-N curve over log2 N; the vertical axis spans at least one point. alone: as a file
    of its own."""
    if not points:
        return '<p class="muted">No candidate has a value, so there is no curve.</p>'
    frame = _frame(size)
    low, high = min(v for _, v in points), max(v for _, v in points)
    pad = max((1 - (high - low)) / 2, (high - low) * 0.12)
    low, high = low - pad, high + pad
    y = frame.y(low, high)
    last = math.log2(points[-1][0])
    x = frame.x(0, last, 14) if last else frame.x(-1, 1)
    body, labelled = [frame.y_axis(ticks(low, high), y)], math.inf
    for n, _ in reversed(points):
        # The last size need not be a power of two, and then may stand too near to one.
        if labelled - x(math.log2(n)) >= 24:
            labelled = x(math.log2(n))
            body.append(frame.x_tick(labelled, str(n)))
    place = [(x(math.log2(n)), y(v)) for n, v in points]
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in place)
    body.append(f'<polyline class="line" fill="none" stroke="{_BLUE}" points="{path}"/>')
    for (a, b), (n, v) in zip(place, points, strict=True):
        title = f"<title>best of {n}: {num(v)}</title>"
        at = f'cx="{a:.1f}" cy="{b:.1f}"'
        body.append(f'<circle class="dot" {at} r="4" fill="{_BLUE}">{title}</circle>')
    label = f"Best-of-N curve from {num(points[0][1])} to {num(points[-1][1])}"
    return frame.svg(body, "N, candidates sampled (log scale)", y_name, label, alone)


def on_scale(ratings: Sequence[float]) -> bool:
    """Whether these may be ratings 1..10; scores of a scalar reward model have no such bounds."""
    return all(1 <= value <= 10 for value in ratings)


def _span(values: Sequence[float], scale: bool) -> tuple[float, float]:
    """The lowest and highest of the values, and of the scale 1..10 if they are on it."""
    if scale:
        return min([1.0, *values]), max([10.0, *values])
    low, high = min(values), max(values)
    return (low, high) if low < high else (low - 1, high + 1)


def bar_plot(histogram: Sequence[tuple[float, int]], size: tuple[int, int]) -> str:
    """Ratings in bins of one point, or half a point where some rating has one; scores of a scalar
    reward model in bins of a round width."""
    if not histogram:
        return '<p class="muted">No candidate was rated.</p>'
    frame = _frame(size)
    values = [value for value, _ in histogram]
    if on_scale(values):
        step = 1.0 if all(float(value).is_integer() for value in values) else 0.5
    else:
        marks = ticks(min(values), max(values) or 1.0)
        step = (marks[1] - marks[0]) / 4 if len(marks) > 1 else 0.5
    bins: Counter[float] = Counter()
    for value, k in histogram:
        bins[math.floor(value / step + 0.5) * step] += k
    low, high = _span([*bins], on_scale(values))
    low, high = low - step, high + step
    x = frame.x(low, high)
    top = max(bins.values())
    y = frame.y(0, top * 1.1)
    thick = min((x(step) - x(0)) * 0.8, 40)
    marks = [mark for mark in ticks(0, top) if mark.is_integer()]
    body = [frame.y_axis(marks, y, lambda mark: f"{mark:,.0f}")]
    if on_scale(values):
        whole = range(math.ceil(low + step), math.floor(high - step) + 1)
        every = math.ceil(len(whole) / 12)
        body += [frame.x_tick(x(mark), str(mark)) for mark in whole[::every]]
    else:
        body += [frame.x_tick(x(mark), num(mark)) for mark in ticks(low, high)]
    for value, k in sorted(bins.items()):
        body.append(
            f'<rect class="bar" x="{x(value) - thick / 2:.1f}" y="{y(k):.1f}" width="{thick:.1f}" '
            f'height="{y(0) - y(k):.1f}" rx="1.5"><title>rating {num(value)}: {k:,}</title></rect>'
        )
    return frame.svg(body, "rating", "candidates", "Histogram of ratings", alone=False)


def dot_plot(group: GroupResult, view: str, size: tuple[int, int]) -> str:
    """Every candidate's rating and its expected rating, or its direct one where that ranks; failed
    ones hollow on a strip at the bottom.

    The chosen candidate has its own colour and a line; the best are ringed where they are tied.
    """
    frame = _frame(size)
    foot, judged = frame.height - frame.bottom, group.judgements
    second = "direct" if view == "direct" else "expected"
    seen = [v for j in judged for v in (j.view("rating"), j.view(second)) if v is not None]
    ratings = [v for j in judged if (v := j.view("rating")) is not None]
    low, high = _span(seen, on_scale(ratings))
    x, y = frame.x(-0.7, len(judged) - 0.3), frame.y(low, high, 26)
    failed_y = foot - 8
    values = group.values(view)
    best = max(values) if values.count(max(values, default=0.0)) > 1 else None
    body = [frame.y_axis(ticks(low, high), y)]
    body.append(f'<path class="axis" d="M{frame.left} {foot}H{frame.width - frame.right}"/>')
    every = max(1, 2 ** math.ceil(math.log2(len(judged) / 16)))
    body += [frame.x_tick(x(i), str(i)) for i in range(0, len(judged), every)]
    if any(not j.ok for j in judged):
        body.append(f'<text x="{frame.left - 6}" y="{failed_y + 4}" text-anchor="end">none</text>')
    chosen = x(group.selection.index)
    body.append(f'<path class="pick" d="M{chosen:.1f} {frame.top - 6}V{foot}"/>')
    for i, j in enumerate(judged):
        mark = "chosen" if i == group.selection.index else "dot"
        value, mean = j.view("rating"), j.view(second)
        if value is None:
            title = esc(f"candidate {i}: {j.outcome.value}" + (f", {j.reason}" if j.reason else ""))
            shape = f'<circle class="hollow {mark}" cx="{x(i):.1f}" cy="{failed_y}" r="4"/>'
        else:
            tie = best is not None and j.view(view) == best
            title = f"candidate {i}: rating {num(value)}, {second} {num(mean)}"
            title += ", tied for best" * tie + ", chosen" * (mark == "chosen")
            at = f'cx="{x(i):.1f}" cy="{y(value):.1f}"'
            shape = f'<circle class="ring" {at} r="7.5"/>' if tie else ""
            shape += f'<circle class="{mark}" {at} r="{5 if mark == "chosen" else 4}"/>'
        if mean is not None:
            a, b = x(i), y(mean)
            shape += f'<path class="mean" d="M{a:.1f} {b - 4:.1f}l4 4l-4 4l-4 -4z"/>'
        body.append(f"<g><title>{title}</title>{shape}</g>")
    label = f"Ratings of {len(judged)} candidates"
    return frame.svg(body, "candidate", "rating", label, alone=False)
