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
PAGE_HEAD = ("probe", "result", *HEAD[1:4], *HEAD[5:])
"""Columns of the page. The result stands where a narrow screen still shows it."""
CHIPS = {State.MET: "ok", State.MISSED: "bad", State.UNCLEAR: "", State.FOLLOWS: ""}


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
    reasons = verdict.lines()[1:]
    about = f"judge {judge} · view {result['view']} · {plural(result['rows'], 'row')}"
    about += f" · {plural(result['labelled_groups'], 'labelled group')}"
    state = {USE: "ok", NOT: "bad"}.get(verdict.verdict, "")
    body = [
        '<header class="top"><div class="wide"><div class="name"><h1>Check of a judge</h1>',
        f'{chip(verdict.verdict, state)}</div><p class="muted small">{esc(about)}</p>',
        *(f"<p>{esc(line.removeprefix('- '))}</p>" for line in reasons),
        '</div></header><main class="wide">',
        heading("Probes", _describe_cost(result["cost"])),
        audit_table("probes", PAGE_HEAD, [_render_row(finding) for finding in findings]),
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


def _render_row(finding: Finding) -> str:
    name, figure, n, bound, result, *rest = _format_cells(finding)
    result_cell = f"<td>{chip(result, CHIPS.get(finding.state, ''))}</td>"
    return table_row(cell(name), result_cell, *map(cell, (figure, n, bound, *rest)))


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
