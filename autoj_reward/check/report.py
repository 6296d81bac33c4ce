"""Report of a check: the verdict in words, the printed table and the HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autoj_reward.check.probes import Finding, State, select_missed_findings
from autoj_reward.evaluate.statistics import Estimate
from autoj_reward.io.files import to_plain
from autoj_reward.io.markup import esc, num, plural, table
from autoj_reward.watch.elements import audit_table, cell, chip, heading, table_row
from autoj_reward.watch.page import static_document

USE, WITH, NOT = "use it", "use it with these settings", "do not use it"
"""Verdicts on a judge."""
HEAD = ("probe", "figure [95 %]", "n", "bound", "result", "what is measured", "behind it")
CHIPS = {State.MET: "ok", State.MISSED: "bad", State.UNCLEAR: "", State.FOLLOWS: ""}
BAR_WIDTH, BAR_HEIGHT = 240, 22
"""Size of a probe's bar, in the units of its picture."""
LEGEND = (
    '<p class="muted small">The point is the figure, the line its 95 % interval, and the green '
    "part of the bar what the bound allows. Bars go from 0 to 1, or from -1 with a stroke at 0.</p>"
)


@dataclass(frozen=True, slots=True)
class CheckVerdict:
    """Whether to use the judge, in words."""

    verdict: str
    """`USE`, `WITH` or `NOT`."""
    settings: tuple[str, ...]
    """Settings of the run that help against faults, each with the figure that asks for it."""
    faults: tuple[str, ...]
    """Faults against which no setting helps, each with its figure."""
    unclear: tuple[str, ...]
    """Numbers outside their bounds that may be chance."""

    def lines(self) -> list[str]:
        """Return the verdict as lines of text."""
        lines = [f"verdict: {self.verdict}"]
        lines += [f"- the judge {fault}" for fault in self.faults]
        lines += [f"- {setting}" for setting in self.settings]
        lines += [f"- not clear, more rows would tell: {figure}" for figure in self.unclear]
        return lines


def decide_verdict(findings: Sequence[Finding]) -> CheckVerdict:
    """Return the verdict that follows from the findings."""
    misses = select_missed_findings(findings)
    fixable_findings = [finding for finding in misses if finding.measurement.setting]
    settings = [
        f"{finding.measurement.setting}: the judge {_describe_fault(finding)}"
        for finding in fixable_findings
    ]
    faults = [_describe_fault(finding) for finding in misses if finding not in fixable_findings]
    unclear = [
        f"{finding.probe.name} {_format_figure(finding)}"
        for finding in findings
        if finding.state is State.UNCLEAR
    ]
    verdict = NOT if faults else WITH if settings else USE
    return CheckVerdict(verdict, tuple(settings), tuple(faults), tuple(unclear))


def _describe_fault(finding: Finding) -> str:
    return (
        f"{finding.probe.fault} ({finding.probe.name} {_format_figure(finding)}, "
        f"bound {finding.probe.bound})"
    )


def make_finding_record(finding: Finding) -> dict[str, Any]:
    """Return a finding as a result file holds it."""
    measurement = finding.measurement
    return {
        "name": finding.probe.name,
        "measures": finding.probe.question,
        "estimate": to_plain(measurement.estimate) if measurement.estimate else None,
        "bound": finding.probe.bound,
        "state": finding.state.value,
        "follows_from": finding.cause,
        "fault": finding.probe.fault if finding.state is State.MISSED else "",
        "setting": measurement.setting,
        "about": measurement.about,
        "tables": {title: list(rows) for title, rows in measurement.tables.items()},
    }


def print_check(
    findings: Sequence[Finding], verdict: CheckVerdict, cost: Mapping[str, Any]
) -> None:
    """Print the table of findings, the cost and the verdict."""
    print("\n".join(table(HEAD, map(_format_cells, findings))))
    print(_describe_cost(cost))
    print("\n".join(verdict.lines()))


def render_check(
    judge: str,
    result: Mapping[str, Any],
    findings: Sequence[Finding],
    verdict: CheckVerdict,
) -> str:
    """Return the page as HTML: the verdict, the probes, and the tables behind them.

    result: fields of `check.json`.
    """
    about = f"judge {judge} · view {result['view']} · {plural(result['rows'], 'row')}"
    about += f" · {plural(result['labelled_groups'], 'labelled group')}"
    state = {USE: "ok", NOT: "bad"}.get(verdict.verdict, "")
    body = [
        '<header class="top"><div class="wide"><div class="name"><h1>Check of a judge</h1>',
        f'{chip(verdict.verdict, state)}</div><p class="muted small">{esc(about)}</p>',
        _render_reasons(findings),
        '</div></header><main class="wide">',
        heading("Probes", _describe_cost(result["cost"])),
        LEGEND,
        f'<ol class="card probes">{"".join(map(_render_probe, findings))}</ol>',
        *(part for finding in findings for part in _yield_tables(finding)),
        "</main>",
    ]
    return static_document("Check of a judge", "\n".join(body))


def _yield_tables(finding: Finding) -> Iterator[str]:
    for title, rows in finding.measurement.tables.items():
        if rows:
            cells = [table_row(*(cell(_format_value(v)) for v in row.values())) for row in rows]
            yield heading(title) + audit_table("trivial", tuple(rows[0]), cells)


def _format_cells(finding: Finding) -> tuple[str, ...]:
    n = finding.measurement.estimate.n if finding.measurement.estimate else 0
    result = f"follows from {finding.cause}" if finding.cause else finding.state.value
    about = finding.measurement.about
    return (
        finding.probe.name,
        _format_figure(finding),
        str(n),
        finding.probe.bound,
        result,
        finding.probe.question,
        about,
    )


def _render_reasons(findings: Sequence[Finding]) -> str:
    """Return what speaks against the judge as a list, the faults without a remedy first."""
    misses = select_missed_findings(findings)
    misses.sort(key=lambda finding: bool(finding.measurement.setting))
    items = [
        _render_reason(
            f"the judge {_describe_fault(finding)}",
            finding.measurement.setting or "no setting helps",
            "" if finding.measurement.setting else "bad",
        )
        for finding in misses
    ]
    items += [
        _render_reason(
            f"{finding.probe.question}: {_format_figure(finding)}, bound {finding.probe.bound}",
            "may be chance: more rows would tell",
        )
        for finding in findings
        if finding.state is State.UNCLEAR
    ]
    return f'<ul class="reasons">{"".join(items)}</ul>' if items else ""


def _render_reason(fault: str, remedy: str, kind: str = "") -> str:
    return f'<li>{esc(fault)} <span class="{f"remedy {kind}".strip()}">{esc(remedy)}</span></li>'


def _render_probe(finding: Finding) -> str:
    """Return a probe as an item of a list: its name, figure, bar and result."""
    name, figure, n, bound, result, question, about = _format_cells(finding)
    count = f"n {n}, " if n != "0" else ""
    notes = f'<p class="muted small">{esc(about)}</p>' if about else ""
    return (
        f"<li><div><b>{esc(name)}</b><p>{esc(question)}</p>{notes}</div>"
        f'<div class="bar">{_draw_bar(finding)}'
        f'<p class="small"><b>{esc(figure)}</b> '
        f'<span class="muted">{count}bound {esc(bound)}</span></p></div>'
        f"<div>{chip(result, CHIPS.get(finding.state, ''))}</div></li>"
    )


def _draw_bar(finding: Finding) -> str:
    """Return the picture of a figure with its interval, beside the numbers within its bound.

    Its scale goes from 0 to 1, or from -1 where the figure or its interval is below 0.
    """
    estimate, probe = finding.measurement.estimate, finding.probe
    if estimate is None or estimate.value is None:
        return ""
    low, high = _find_ends(estimate)
    least = -1.0 if low < 0 else 0.0
    most = max(1.0, high)

    def place(number: float) -> float:
        share = (min(max(number, least), most) - least) / (most - least)
        return round(8 + share * (BAR_WIDTH - 16), 1)

    allowed = place(probe.low), place(probe.high)
    middle = BAR_HEIGHT / 2
    within = probe.low <= estimate.value <= probe.high
    label = f"{_format_figure(finding)}, bound {probe.bound}"
    parts = [
        f'<rect class="track" x="8" y="{middle - 4}" width="{BAR_WIDTH - 16}" height="8" rx="3"/>',
        f'<rect class="allowed" x="{allowed[0]}" y="{middle - 4}" height="8" rx="3"'
        f' width="{round(allowed[1] - allowed[0], 1)}"/>',
        f'<line class="error" x1="{place(low)}" x2="{place(high)}" y1="{middle}" y2="{middle}"/>',
        f'<circle class="{"within" if within else "outside"}" cx="{place(estimate.value)}"'
        f' cy="{middle}" r="5"/>',
    ]
    if least < 0:
        parts.insert(2, f'<line class="error" x1="{place(0)}" x2="{place(0)}" y1="4" y2="18"/>')
    return (
        f'<svg viewBox="0 0 {BAR_WIDTH} {BAR_HEIGHT}" role="img" aria-label="{esc(label)}">'
        f"{''.join(parts)}</svg>"
    )


def _find_ends(estimate: Estimate) -> tuple[float, float]:
    """Return the ends of an estimate's interval; its value for both without one."""
    assert estimate.value is not None
    if estimate.low is None or estimate.high is None:
        return estimate.value, estimate.value
    return estimate.low, estimate.high


def _format_figure(finding: Finding) -> str:
    estimate: Estimate | None = finding.measurement.estimate
    if estimate is None or estimate.value is None:
        return num(None)
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.2f}"
    return f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"


def _format_value(value: Any) -> str:
    return num(value) if isinstance(value, int | float) or value is None else str(value)


def _describe_cost(cost: Mapping[str, Any]) -> str:
    mean = cost["mean"]
    return (
        f"{cost['judgements']:,} judgements, {cost['forced']:,} forced; each took "
        f"{num(mean['tokens_in'])} tokens in ({num(mean['tokens_cached'])} cached), "
        f"{num(mean['tokens_out'])} out and {num(mean['latency_s'])} s in the engine"
    )
