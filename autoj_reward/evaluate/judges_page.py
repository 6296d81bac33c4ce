"""Table in the terminal and HTML page of a comparison of judges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autoj_reward.evaluate.statistics import ResultFields, show_with_interval
from autoj_reward.io.chart import NARROW, Interval, curves, intervals
from autoj_reward.io.markup import esc, num, plural, table
from autoj_reward.watch.elements import audit_table, cell, heading, table_row
from autoj_reward.watch.page import static_document

JUDGE_HEAD = ("judge", "counts", "pairs", "agreement %", "ties %", "with length", "abstained")
COST_HEAD = ("judge", "judgements", "forced", "tokens read", "cached", "written", "seconds", "US $")
GAP_HEAD = ("first less second", "pairs", "agreement", "ties", "with length")
MEASURES = {"agreement": 2, "ties": 2, "length": 3}
"""Metrics of the tables, and their decimals."""
NOTES = {
    "judges": (
        "Agreement: share of the labelled pairs that a judge orders as the label does. A tie "
        "counts half, and a pair without a judgement does not count. With length: Kendall's "
        "correlation within a query. In brackets the 95 % interval over queries."
    ),
    "gaps": "On the pairs that both judges decided, from paired resamples of the queries.",
    "gain": (
        "What the best of N by a judge's number gains over a random response, in percent of what "
        "the best label gains."
    ),
    "cost": "Sums over the same rows. Seconds are spent in the engine, not waiting.",
}
"""Notes under the tables."""


def print_judges(fields: ResultFields) -> None:
    """Print a comparison of judges as tables. fields: the `result` of its JSON file."""
    for title, head, rows, _ in _yield_tables(fields):
        print(f"{title}:")
        print("\n".join(table(head, rows)))
        print()
    print(_describe_labels(fields))


def render_judges(data: str, fields: ResultFields) -> str:
    """Return the page as HTML. data: path of the rows. fields: as for
    `print_judges`."""
    about = (
        f"{data} · {plural(fields['queries'], 'query')} · "
        f"{plural(fields['responses'], 'response')} · {_describe_labels(fields)}"
    )
    body = [
        '<header class="top"><div class="wide"><div class="name"><h1>Judges compared</h1></div>',
        f'<p class="muted small">{esc(about)}</p></div></header><main class="wide">',
        '<div class="curves">',
        *(f'<div class="card"><h3>{esc(title)}</h3>{svg}</div>' for title, svg in _draw(fields)),
        "</div>",
    ]
    for title, head, rows, note in _yield_tables(fields):
        cells = [table_row(*map(cell, row)) for row in rows]
        body += [heading(title), audit_table("judges", head, cells)]
        body.append(f'<p class="muted small">{esc(note)}</p>')
    body.append("</main>")
    return static_document("Judges compared", "\n".join(body))


def _draw(fields: ResultFields) -> Iterator[tuple[str, str]]:
    """Yield the title and the SVG of every chart that has something to show."""
    agreement = _read_intervals(fields["judges"], "agreement")
    if agreement:
        yield "Agreement with the labels", intervals(agreement, "percent of the labelled pairs")
    gaps = {f"{gap['first']} less {gap['second']}": gap for gap in fields["differences"]}
    differences = _read_intervals(gaps, "agreement")
    if differences:
        yield "Differences in agreement", intervals(differences, "percentage points", 0.0)
    lines = {}
    for name, judge in fields["judges"].items():
        points = [
            (float(size), best["gain"])
            for size, best in judge["best_of"].items()
            if best["gain"] is not None
        ]
        if points:
            # The first word of a name gives its colour.
            lines["_".join(name.split())] = points
    if lines:
        chart = curves(lines, "N", "percent of the oracle's gain", log_x=True, width=NARROW)
        yield "What N buys", chart


def _read_intervals(rows: Mapping[str, ResultFields], name: str) -> dict[str, Interval]:
    return {
        title: (row[name], *row[f"{name}_95"])
        for title, row in rows.items()
        if row[name] is not None
    }


def _yield_tables(
    fields: ResultFields,
) -> Iterator[tuple[str, Sequence[str], list[Sequence[str]], str]]:
    """Yield title, heads, rows and note of every table."""
    judges: dict[str, ResultFields] = fields["judges"]
    rows: list[Sequence[str]] = []
    for name, judge in judges.items():
        abstained = f"{judge['abstained']} of {judge['asked']}"
        pairs = str(judge["pairs"])
        rows.append((name, judge["view"], pairs, *_format_measures(judge), abstained))
    yield "Judges", JUDGE_HEAD, rows, NOTES["judges"]

    gaps: list[Sequence[str]] = []
    for gap in fields["differences"]:
        title = f"{gap['first']} less {gap['second']}"
        gaps.append((title, str(gap["pairs"]), *_format_measures(gap)))
    yield "Differences", GAP_HEAD, gaps, NOTES["gaps"]

    sizes = list(dict.fromkeys(size for judge in judges.values() for size in judge["best_of"]))
    if sizes:
        gains: list[Sequence[str]] = []
        for name, judge in judges.items():
            gains.append(_format_gains(name, judge, sizes))
        for gap in fields["differences"]:
            gains.append(_format_gains(f"{gap['first']} less {gap['second']}", gap, sizes))
        head = ("judge", *(f"best of {size}" for size in sizes))
        yield "What N buys", head, gains, NOTES["gain"]

    costs: list[Sequence[str]] = []
    for name, judge in judges.items():
        costs.append(_format_cost(name, judge["cost"]))
    yield "Cost", COST_HEAD, costs, NOTES["cost"]


def _format_measures(row: ResultFields) -> list[str]:
    return [show_with_interval(row, name, digits) for name, digits in MEASURES.items()]


def _format_gains(name: str, row: ResultFields, sizes: Sequence[str]) -> list[str]:
    best = row["best_of"]
    gains = [show_with_interval(best[size], "gain", 1) if size in best else "" for size in sizes]
    return [name, *(gain or num(None) for gain in gains)]


def _format_cost(name: str, cost: Mapping[str, Any]) -> list[str]:
    total = cost["total"]
    usd = f"{total['usd']:.4f}" if total["usd"] else num(None)
    return [
        name,
        f"{cost['judgements']:,}",
        f"{cost['forced']:,}",
        *(f"{total[key]:,}" for key in ("tokens_in", "tokens_cached", "tokens_out")),
        f"{total['latency_s']:,.1f}",
        usd,
    ]


def _describe_labels(fields: ResultFields) -> str:
    labels = fields["labels"]
    return (
        f"{plural(labels['pairs'], 'labelled pair')}; the longer response is the better one in "
        f"{show_with_interval(labels, 'longer_agrees', 2)} % of them; labels with length "
        f"{show_with_interval(labels, 'length', 3)}"
    )
