"""Report of a check: the verdict in words, the printed table and the HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autoj_reward.check.probes import Finding, State, missed_findings
from autoj_reward.evaluate.statistics import Estimate
from autoj_reward.io.files import to_json
from autoj_reward.io.markup import esc, num, plural, table
from autoj_reward.watch.elements import audit_table, cell, chip, heading, table_row
from autoj_reward.watch.page import static_document

USE, WITH, NOT = "use it", "use it with these settings", "do not use it"
"""Verdicts on a judge."""
HEAD = ("probe", "figure [95 %]", "n", "bound", "result", "what is measured", "behind it")
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
        found = [f"verdict: {self.verdict}"]
        found += [f"- the judge {own}" for own in self.faults]
        found += [f"- {own}" for own in self.settings]
        found += [f"- not clear, more rows would tell: {own}" for own in self.unclear]
        return found


def verdict_of(findings: Sequence[Finding]) -> CheckVerdict:
    """Return the verdict that follows from the findings."""
    missed = missed_findings(findings)
    helped = [own for own in missed if own.measurement.setting]
    settings = [f"{own.measurement.setting}: the judge {_fault(own)}" for own in helped]
    left = [_fault(own) for own in missed if own not in helped]
    unclear = [f"{own.probe.name} {_figure(own)}" for own in findings if own.state is State.UNCLEAR]
    verdict = NOT if left else WITH if settings else USE
    return CheckVerdict(verdict, tuple(settings), tuple(left), tuple(unclear))


def _fault(own: Finding) -> str:
    return f"{own.probe.fault} ({own.probe.name} {_figure(own)}, bound {own.probe.bound})"


def finding_record(own: Finding) -> dict[str, Any]:
    """Return a finding as a result file holds it."""
    found = own.measurement
    return {
        "name": own.probe.name,
        "measures": own.probe.question,
        "estimate": to_json(found.estimate) if found.estimate else None,
        "bound": own.probe.bound,
        "state": own.state.value,
        "follows_from": own.cause,
        "fault": own.probe.fault if own.state is State.MISSED else "",
        "setting": found.setting,
        "about": found.about,
        "tables": {title: list(rows) for title, rows in found.tables.items()},
    }


def print_check(
    findings: Sequence[Finding], verdict: CheckVerdict, cost: Mapping[str, Any]
) -> None:
    """Print the table of findings, the cost and the verdict."""
    print("\n".join(table(HEAD, map(_cells, findings))))
    print(_cost(cost))
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
        heading("Probes", _cost(result["cost"])),
        audit_table("probes", HEAD, [_row(own) for own in findings]),
        *(part for own in findings for part in _tables(own)),
        "</main>",
    ]
    return static_document("Check of a judge", "\n".join(body))


def _tables(own: Finding) -> Iterator[str]:
    for title, rows in own.measurement.tables.items():
        if rows:
            cells = [table_row(*(cell(_value(v)) for v in row.values())) for row in rows]
            yield heading(title) + audit_table("trivial", tuple(rows[0]), cells)


def _cells(own: Finding) -> tuple[str, ...]:
    n = own.measurement.estimate.n if own.measurement.estimate else 0
    result = f"follows from {own.cause}" if own.cause else own.state.value
    about = own.measurement.about
    return (
        own.probe.name,
        _figure(own),
        str(n),
        own.probe.bound,
        result,
        own.probe.question,
        about,
    )


def _row(own: Finding) -> str:
    name, figure, n, bound, result, *rest = _cells(own)
    shown = f"<td>{chip(result, CHIPS.get(own.state, ''))}</td>"
    return table_row(*map(cell, (name, figure, n, bound)), shown, *map(cell, rest))


def _figure(own: Finding) -> str:
    found: Estimate | None = own.measurement.estimate
    if found is None or found.value is None:
        return num(None)
    if found.low is None or found.high is None:
        return f"{found.value:.2f}"
    return f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]"


def _value(value: Any) -> str:
    return num(value) if isinstance(value, int | float) or value is None else str(value)


def _cost(cost: Mapping[str, Any]) -> str:
    mean = cost["mean"]
    return (
        f"{cost['judgements']:,} judgements, {cost['forced']:,} forced; each took "
        f"{num(mean['tokens_in'])} tokens in ({num(mean['tokens_cached'])} cached), "
        f"{num(mean['tokens_out'])} out and {num(mean['latency_s'])} s in the engine"
    )
