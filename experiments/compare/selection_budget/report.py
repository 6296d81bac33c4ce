"""The report of the experiment: one table and one curve for every judge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoj_reward.io.chart import curves
from experiments.tables import report, tabled

NOTE = (
    "Written: tokens that the judge writes; computed: these and the tokens read outside the prefix "
    "cache; both as shares of full judging, which is one critique of every candidate. Recovered: "
    "share of the oracle's gain over a random candidate. Less full: the difference to full judging "
    "on the same queries, resampled together. Percentages in names are budgets, or for "
    "scalar-first the share of candidates that get a critique."
)
COLUMNS = {
    "strategy": "{name}",
    "written": "{written:.3f}",
    "computed": "{computed:.3f}",
    "recovered": "{recovered}",
    "less full": "{less_full}",
}


def render(found: Mapping[str, Any]) -> str:
    """All tables in Markdown."""
    config = found["config"]
    about = (
        f"Parts: {', '.join(found['parts'])}. Ranked by the view {config['view']}. Brackets hold "
        f"95 % intervals from {config['bootstrap']} resamples of queries."
    )
    sections = []
    for name, own in found["judges"].items():
        rows = [row | {"name": strategy} for strategy, row in own["strategies"].items()]
        title = f"{name}: {own['queries']} queries, {own['candidates']} candidates"
        sections.append((title, tabled(rows, COLUMNS), _verdict(own)))
    return report("Selection on a budget", found, sections, about, NOTE)


def plots(found: Mapping[str, Any]) -> dict[str, str]:
    """A curve of each kind of candidates."""
    return {name: render_curve(own) for name, own in found["judges"].items()}


def _verdict(own: Mapping[str, Any]) -> str:
    told, target = own.get("about", ""), own["target"]
    difference = {True: "is not below 0", False: "is below 0", None: "is undefined"}
    gain = {True: "at least", False: "below", None: "not comparable to"}
    wrote, read = (
        "within" if target[kind] else "over" for kind in ("within_written", "within_computed")
    )
    return (
        f"{told} {target['strategy']}: {wrote} its share of tokens written, {read} it of tokens "
        "computed; the interval of its difference to full judging "
        f"{difference[target['not_below_full']]}, and its gain is "
        f"{gain[target['at_least_full_low']]} the lower end of full judging's own interval."
    ).strip()


def render_curve(own: Mapping[str, Any]) -> str:
    """Recovered gain by share of tokens written, one line a kind of strategy. What costs more than
    full judging is in the table alone."""
    series: dict[str, list[tuple[float, float]]] = {}
    for name, row in own["strategies"].items():
        if row["recovered"]["value"] is not None and row["written"] <= 1.1:
            point = (row["written"], row["recovered"]["value"])
            series.setdefault(name.split()[0], []).append(point)
    found = {name: sorted(points) for name, points in series.items()}
    return curves(found, "tokens written, share of full judging", "oracle's gain recovered")
