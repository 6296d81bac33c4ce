"""Report of an audit of rubrics: the printed table, the Markdown file and the HTML page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from autoj_reward.io.markup import esc, num, plural, section, table
from autoj_reward.rubrics.measures import ItemAudit, RubricAudit, TrivialReward
from autoj_reward.types import BadRow
from autoj_reward.watch.elements import audit_table, cell, chip, heading, number_tiles, table_row
from autoj_reward.watch.page import static_document
from autoj_reward.watch.shown import displayed_text, excerpt

PRINTED, ON_PAGE = 20, 200
"""Largest number of rubrics in the printed table and on the page: those with the highest trivial
rewards."""
BAD_ROWS = 50
"""Largest number of rows left out that the page names."""
LONG = 2000
"""Maximum characters of a criterion on the page."""
RUBRIC_HEAD = ("line", "responses", "items", "constant", "redundant", "best trivial", "reward")
ITEM_HEAD = ("item", "points", "met", "variance", "agreement", "redundancy", "flips", "met by")
TRIVIAL_HEAD = ("trivial response", "reward", "reason")
PASS, FAIL, UNKNOWN = "pass", "fail", "not known"
"""Results of comparing trivial rewards with the largest one allowed."""
CHIPS = {PASS: "ok", FAIL: "bad", UNKNOWN: "bad"}
"""Style class of each result."""


def print_audit(
    audits: Sequence[RubricAudit],
    summary: Mapping[str, int],
    bad_row_count: int,
    most: float,
    output: str,
) -> None:
    """Print the rubrics with the highest trivial rewards, and the counts. output: its folder."""
    print(
        "\n".join(
            table(RUBRIC_HEAD, map(_format_rubric_cells, _sort_worst_first(audits)[:PRINTED]))
        )
    )
    print(
        f"{plural(summary['rubrics'], 'rubric')}: {_describe_bound(summary, most)}; "
        f"{summary['constant_items']} of {plural(summary['items'], 'item')} constant, "
        f"{summary['redundant_items']} redundant; {plural(bad_row_count, 'row')} left out; "
        f"results: {output}"
    )


def render_markdown(audits: Iterable[RubricAudit]) -> str:
    """Return the tables of items and of trivial rewards for each rubric, as Markdown."""
    lines = ["# Audit of rubrics", ""]
    for audit in audits:
        items = [
            (f"{n}: {item.criterion}", *_format_item_cells(item))
            for n, item in enumerate(audit.items)
        ]
        lines += section(f"Row {audit.line}", [ITEM_HEAD, *items])
        rewards = [
            (response.name, _format_digits(response.reward), response.reason)
            for response in audit.trivial
        ]
        lines += [*table(TRIVIAL_HEAD, rewards), ""]
    return "\n".join(lines)


def render_audit(
    audits: Sequence[RubricAudit], result: Mapping[str, Any], bad_rows: Sequence[BadRow]
) -> str:
    """Return the page of `autoj rubrics audit` as HTML.

    It shows the bound with its result, a table of the rubrics, and a table of each rubric's items.

    result: fields of `audit.json`. bad_rows: the first of the input rows that were left out.
    """
    summary, most = result["summary"], result["most"]
    state = FAIL if summary["gamed"] else UNKNOWN if summary["unknown"] else PASS
    shown_audits = _sort_worst_first(audits)[:ON_PAGE]
    about = f"judge {result['judge']} · rubric by {result['by']}"
    about += f" · {plural(result['samples'], 'judgement')} of each response"
    bound = f"Bound on trivial responses, {num(most)} of a reward of 1: "
    rubrics = [_render_rubric_row(audit, most) for audit in shown_audits]
    hidden_count = len(audits) - len(shown_audits)
    note = (
        "Those with the highest trivial rewards come first. "
        f"{hidden_count:,} more are in audit.json."
    )
    parts = [
        '<header class="top"><div class="wide"><div class="name"><h1>Audit of rubrics</h1>',
        f'{_render_state_chip(state)}</div><p class="muted small">{esc(about)}</p>',
        f"<p>{esc(bound + _describe_bound(summary, most))}.</p></div></header>",
        '<main class="wide">',
        _render_tiles(summary, result["rows_left_out"]),
        heading("Rubrics", note if hidden_count else ""),
        audit_table("rubrics", ("line", "bound", "query", *RUBRIC_HEAD[1:]), rubrics),
        *(_render_rubric_section(audit, most) for audit in shown_audits),
        _render_left_out(bad_rows, result["rows_left_out"]),
        "</main>",
    ]
    return static_document("Audit of rubrics", "\n".join(filter(None, parts)))


def _sort_worst_first(audits: Sequence[RubricAudit]) -> list[RubricAudit]:
    return sorted(audits, key=lambda audit: -(_get_best_reward(audit) or 0.0))


def _describe_bound(summary: Mapping[str, int], most: float) -> str:
    return (
        f"in {summary['gamed']} a trivial response earns more than {most:g}, "
        f"in {summary['unknown']} one could not be judged"
    )


def _find_state(audit: RubricAudit, most: float) -> str:
    return FAIL if audit.is_gamed(most) else UNKNOWN if audit.unknown else PASS


def _format_rubric_cells(audit: RubricAudit) -> tuple[str, ...]:
    counts = (audit.line, audit.responses, len(audit.items), audit.constant, audit.redundant)
    return (*map(str, counts), audit.best.name if audit.best else "", num(_get_best_reward(audit)))


def _get_best_reward(audit: RubricAudit) -> float | None:
    return audit.best.reward if audit.best else None


def _format_item_cells(item: ItemAudit) -> tuple[str, ...]:
    other = "" if item.redundant_with is None else f" (item {item.redundant_with})"
    return (
        *map(_format_digits, (item.points, item.met, item.variance, item.agreement)),
        _format_digits(item.redundancy) + other,
        _format_digits(item.flips),
        ", ".join(item.met_by),
    )


def _format_digits(value: float | None) -> str:
    return num(None) if value is None else f"{value:.3g}"


def _render_rubric_row(audit: RubricAudit, most: float) -> str:
    line, *cells = _format_rubric_cells(audit)
    link = f'<td><a href="#row-{line}">{line}</a></td>'
    bound = f"<td>{_render_state_chip(_find_state(audit, most))}</td>"
    return table_row(link, bound, cell(excerpt(audit.query)), *map(cell, cells))


def _render_rubric_section(audit: RubricAudit, most: float) -> str:
    """Return the tables of one rubric: its items, and what trivial responses earn."""
    items = [_render_item_row(n, item) for n, item in enumerate(audit.items)]
    rewards = [_render_trivial_row(response, most) for response in audit.trivial]
    return (
        heading(f"Row {audit.line}", excerpt(audit.query), f"row-{audit.line}")
        + audit_table("items", ITEM_HEAD, items)
        + audit_table("trivial", ("trivial response", "reward", "bound", "reason"), rewards)
    )


def _render_trivial_row(response: TrivialReward, most: float) -> str:
    bound = f"<td>{_render_state_chip(_compare_with_bound(response, most))}</td>"
    return table_row(
        cell(response.name), cell(_format_digits(response.reward)), bound, cell(response.reason)
    )


def _compare_with_bound(response: TrivialReward, most: float) -> str:
    if response.reward is None:
        return UNKNOWN
    return FAIL if response.reward > most else PASS


def _render_item_row(number: int, item: ItemAudit) -> str:
    marks = [name for name in ("constant", "redundant") if getattr(item, name)]
    chips = "".join(f" {chip(name)}" for name in marks)
    criterion = esc(f"{number}: {displayed_text(item.criterion, LONG)}")
    return table_row(f"<td>{criterion}{chips}</td>", *map(cell, _format_item_cells(item)))


def _render_tiles(summary: Mapping[str, int], bad_row_count: int) -> str:
    """Return the counts, each as a tile."""
    counts = {name: summary[name] for name in ("rubrics", "responses", "items")}
    counts |= {"constant items": summary["constant_items"]}
    counts |= {"redundant items": summary["redundant_items"], "rows left out": bad_row_count}
    return number_tiles({name: f"{count:,}" for name, count in counts.items()})


def _render_left_out(rows: Sequence[BadRow], total: int) -> str:
    if not total:
        return ""
    shown_rows = rows[:BAD_ROWS]
    paragraphs = "".join(
        f'<p class="small">{esc(displayed_text(str(row), 500))}</p>' for row in shown_rows
    )
    note = (
        f"{total - len(shown_rows):,} more were named while it ran."
        if total > len(shown_rows)
        else ""
    )
    return heading("Rows left out", note) + paragraphs


def _render_state_chip(state: str) -> str:
    return chip(state, CHIPS[state])
