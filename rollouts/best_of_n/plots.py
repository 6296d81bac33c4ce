"""The report's plots as inline SVG. Colours come from the page's style sheet."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from autoj_reward.io.chart import ticks
from autoj_reward.io.page import esc, num
from rollouts.best_of_n.group import GroupResult

_LEFT, _RIGHT, _TOP, _BOTTOM = 40, 14, 14, 38


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    span = (high - low) or 1.0
    return lambda value: start + (value - low) / span * (end - start)


def _frame(size: tuple[int, int], label: str, x_name: str, y_name: str, body: str) -> str:
    width, height = size
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{esc(label)}">'
        f'<text class="name" x="{(_LEFT + width - _RIGHT) / 2:.0f}" y="{height - 5}" '
        f'text-anchor="middle">{x_name}</text>'
        f'<text class="name" text-anchor="middle" transform="translate(11 '
        f'{(_TOP + height - _BOTTOM) / 2:.0f}) rotate(-90)">{y_name}</text>{body}</svg>'
    )


def _x_tick(x: float, height: float, text: str) -> str:
    return (
        f'<path class="axis" d="M{x:.1f} {height - _BOTTOM}v4"/>'
        f'<text x="{x:.1f}" y="{height - _BOTTOM + 16}" text-anchor="middle">{text}</text>'
    )


def _y_axis(
    marks: Iterable[float], y: Callable[[float], float], width: int, write: Callable[[float], str]
) -> str:
    return "".join(
        f'<path class="grid" d="M{_LEFT} {y(mark):.1f}H{width - _RIGHT}"/>'
        f'<text x="{_LEFT - 6}" y="{y(mark) + 4:.1f}" text-anchor="end">{write(mark)}</text>'
        for mark in marks
    )


def line_plot(points: Sequence[tuple[int, float]], y_name: str, size: tuple[int, int]) -> str:
    """A best-of-N curve over log2 N; the vertical axis spans at least one point."""
    if not points:
        return '<p class="muted">No candidate has a value, so there is no curve.</p>'
    width, height = size
    low, high = min(v for _, v in points), max(v for _, v in points)
    pad = max((1 - (high - low)) / 2, (high - low) * 0.12)
    low, high = low - pad, high + pad
    y = _scale(low, high, height - _BOTTOM, _TOP)
    last = math.log2(points[-1][0])
    x = _scale(0, last, _LEFT + 14, width - _RIGHT - 14)
    if last == 0:
        x = _scale(-1, 1, _LEFT, width - _RIGHT)
    body, labelled = [_y_axis(ticks(low, high), y, width, num)], math.inf
    for n, _ in reversed(points):
        # The last size need not be a power of two, and then may stand too near to one.
        if labelled - x(math.log2(n)) >= 24:
            labelled = x(math.log2(n))
            body.append(_x_tick(labelled, height, str(n)))
    place = [(x(math.log2(n)), y(v)) for n, v in points]
    body.append(
        f'<polyline class="line" points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in place)}"/>'
    )
    for (a, b), (n, v) in zip(place, points, strict=True):
        title = f"<title>best of {n}: {num(v)}</title>"
        body.append(f'<circle class="dot" cx="{a:.1f}" cy="{b:.1f}" r="4">{title}</circle>')
    label = f"Best-of-N curve from {num(points[0][1])} to {num(points[-1][1])}"
    return _frame(size, label, "N, candidates sampled (log scale)", y_name, "".join(body))


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
    width, height = size
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
    x = _scale(low, high, _LEFT, width - _RIGHT)
    top = max(bins.values())
    y = _scale(0, top * 1.1, height - _BOTTOM, _TOP)
    thick = min((x(step) - x(0)) * 0.8, 40)
    marks = [mark for mark in ticks(0, top) if mark.is_integer()]
    body = [_y_axis(marks, y, width, lambda mark: f"{mark:,.0f}")]
    if on_scale(values):
        whole = range(math.ceil(low + step), math.floor(high - step) + 1)
        every = math.ceil(len(whole) / 12)
        body += [_x_tick(x(mark), height, str(mark)) for mark in whole[::every]]
    else:
        body += [_x_tick(x(mark), height, num(mark)) for mark in ticks(low, high)]
    for value, k in sorted(bins.items()):
        body.append(
            f'<rect class="bar" x="{x(value) - thick / 2:.1f}" y="{y(k):.1f}" width="{thick:.1f}" '
            f'height="{y(0) - y(k):.1f}" rx="1.5"><title>rating {num(value)}: {k:,}</title></rect>'
        )
    return _frame(size, "Histogram of ratings", "rating", "candidates", "".join(body))


def dot_plot(group: GroupResult, view: str, size: tuple[int, int]) -> str:
    """Every candidate's rating and its expected rating, or its direct one where that ranks; failed
    ones hollow on a strip at the bottom.

    The chosen candidate has its own colour and a line; the best are ringed where they are tied.
    """
    width, height = size
    judged = group.judgements
    second = "direct" if view == "direct" else "expected"
    seen = [v for j in judged for v in (j.view("rating"), j.view(second)) if v is not None]
    ratings = [v for j in judged if (v := j.view("rating")) is not None]
    low, high = _span(seen, on_scale(ratings))
    y = _scale(low, high, height - _BOTTOM - 26, _TOP)
    x = _scale(-0.7, len(judged) - 0.3, _LEFT, width - _RIGHT)
    failed_y = height - _BOTTOM - 8
    values = group.values(view)
    best = max(values) if values.count(max(values, default=0.0)) > 1 else None
    body = [_y_axis(ticks(low, high), y, width, num)]
    body.append(f'<path class="axis" d="M{_LEFT} {height - _BOTTOM}H{width - _RIGHT}"/>')
    every = max(1, 2 ** math.ceil(math.log2(len(judged) / 16)))
    body += [_x_tick(x(i), height, str(i)) for i in range(0, len(judged), every)]
    if any(not j.ok for j in judged):
        body.append(f'<text x="{_LEFT - 6}" y="{failed_y + 4}" text-anchor="end">none</text>')
    chosen = x(group.selection.index)
    body.append(f'<path class="pick" d="M{chosen:.1f} {_TOP - 6}V{height - _BOTTOM}"/>')
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
    return _frame(size, label, "candidate", "rating", "".join(body))
