"""The report of the experiment: one table and one curve for every judge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoj_reward.evaluate.metrics import estimate_text
from autoj_reward.io.chart import curves
from autoj_reward.io.markdown import Table, section

NOTE = (
    "Written: tokens that the judge writes; computed: these and the tokens read outside the prefix "
    "cache; both as shares of full judging, which is one critique of every candidate. Recovered: "
    "share of the oracle's gain over a random candidate. Less full: the difference to full judging "
    "on the same queries, resampled together. Percentages in names are budgets, or for "
    "scalar-first the share of candidates that get a critique."
)
HEAD = ("strategy", "written", "computed", "recovered", "less full")


def render_text(found: Mapping[str, Any]) -> str:
    """All tables in Markdown."""
    machine = found["machine"]
    where = f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB"
    lines = [
        "# Selection on a budget",
        "",
        f"`{found['command']}`",
        "",
        f"{found['at']}; {', '.join([where, *machine['gpus']])}. Parts: "
        f"{', '.join(found['parts'])}. Ranked by the view {found['view']}. Brackets hold 95 % "
        f"intervals from {found['bootstrap']} resamples of queries.",
        "",
    ]
    for name, own in found["judges"].items():
        lines += section(_title(name, own), _rows(own["strategies"]), _verdict(own))
    return "\n".join([*lines, NOTE]) + "\n"


def _title(name: str, own: Mapping[str, Any]) -> str:
    return f"{name}: {own['queries']} queries, {own['candidates']} candidates"


def _rows(strategies: Mapping[str, Any]) -> Table:
    table: Table = [HEAD]
    for name, row in strategies.items():
        shares = (f"{row[kind]:.3f}" for kind in ("written", "computed"))
        estimates = (estimate_text(row[kind]) for kind in ("recovered", "less_full"))
        table.append((name, *shares, *estimates))
    return table


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
