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
    audits: Sequence[RubricAudit], summary: Mapping[str, int], left_out: int, most: float, to: str
) -> None:
    """Print the rubrics with the highest trivial rewards, and the counts. to: output folder."""
    print("\n".join(table(RUBRIC_HEAD, map(_rubric_cells, _worst_first(audits)[:PRINTED]))))
    print(
        f"{plural(summary['rubrics'], 'rubric')}: {_bound_in_words(summary, most)}; "
        f"{summary['constant_items']} of {plural(summary['items'], 'item')} constant, "
        f"{summary['redundant_items']} redundant; {plural(left_out, 'row')} left out; "
        f"results: {to}"
    )


def render_markdown(audits: Iterable[RubricAudit]) -> str:
    """Return the tables of items and of trivial rewards for each rubric, as Markdown."""
    lines = ["# Audit of rubrics", ""]
    for own in audits:
        items = [(f"{n}: {item.criterion}", *_item_cells(item)) for n, item in enumerate(own.items)]
        lines += section(f"Row {own.line}", [ITEM_HEAD, *items])
        rewards = [(one.name, _digits(one.reward), one.reason) for one in own.trivial]
        lines += [*table(TRIVIAL_HEAD, rewards), ""]
    return "\n".join(lines)


def render_audit(
    audits: Sequence[RubricAudit], result: Mapping[str, Any], left_out: Sequence[BadRow]
) -> str:
    """Return the page of `autoj rubrics audit` as HTML.

    It shows the bound with its result, a table of the rubrics, and a table of each rubric's items.

    result: fields of `audit.json`. left_out: the first of the input rows that were left out.
    """
    summary, most = result["summary"], result["most"]
    state = FAIL if summary["gamed"] else UNKNOWN if summary["unknown"] else PASS
    shown = _worst_first(audits)[:ON_PAGE]
    about = f"judge {result['judge']} · rubric by {result['by']}"
    about += f" · {plural(result['samples'], 'judgement')} of each response"
    bound = f"Bound on trivial responses, {num(most)} of a reward of 1: "
    rubrics = [_rubric_row(own, most) for own in shown]
    more = len(audits) - len(shown)
    note = f"Those with the highest trivial rewards come first. {more:,} more are in audit.json."
    parts = [
        '<header class="top"><div class="wide"><div class="name"><h1>Audit of rubrics</h1>',
        f'{_state_chip(state)}</div><p class="muted small">{esc(about)}</p>',
        f"<p>{esc(bound + _bound_in_words(summary, most))}.</p></div></header>",
        '<main class="wide">',
        _tiles(summary, result["rows_left_out"]),
        heading("Rubrics", note if more else ""),
        audit_table("rubrics", ("line", "bound", "query", *RUBRIC_HEAD[1:]), rubrics),
        *(_rubric_section(own, most) for own in shown),
        _left_out(left_out, result["rows_left_out"]),
        "</main>",
    ]
    return static_document("Audit of rubrics", "\n".join(filter(None, parts)))


def _worst_first(audits: Sequence[RubricAudit]) -> list[RubricAudit]:
    return sorted(audits, key=lambda own: -(_best_reward(own) or 0.0))


def _bound_in_words(summary: Mapping[str, int], most: float) -> str:
    return (
        f"in {summary['gamed']} a trivial response earns more than {most:g}, "
        f"in {summary['unknown']} one could not be judged"
    )


def _state(audit: RubricAudit, most: float) -> str:
    return FAIL if audit.gamed(most) else UNKNOWN if audit.unknown else PASS


def _rubric_cells(own: RubricAudit) -> tuple[str, ...]:
    counts = (own.line, own.responses, len(own.items), own.constant, own.redundant)
    return (*map(str, counts), own.best.name if own.best else "", num(_best_reward(own)))


def _best_reward(audit: RubricAudit) -> float | None:
    return audit.best.reward if audit.best else None


def _item_cells(item: ItemAudit) -> tuple[str, ...]:
    other = "" if item.redundant_with is None else f" (item {item.redundant_with})"
    return (
        *map(_digits, (item.points, item.met, item.variance, item.agreement)),
        _digits(item.redundancy) + other,
        _digits(item.flips),
        ", ".join(item.met_by),
    )


def _digits(value: float | None) -> str:
    return num(None) if value is None else f"{value:.3g}"


def _rubric_row(own: RubricAudit, most: float) -> str:
    line, *cells = _rubric_cells(own)
    link = f'<td><a href="#row-{line}">{line}</a></td>'
    bound = f"<td>{_state_chip(_state(own, most))}</td>"
    return table_row(link, bound, cell(excerpt(own.query)), *map(cell, cells))


def _rubric_section(own: RubricAudit, most: float) -> str:
    """Return the tables of one rubric: its items, and what trivial responses earn."""
    items = [_item_row(n, item) for n, item in enumerate(own.items)]
    rewards = [_trivial_row(one, most) for one in own.trivial]
    return (
        heading(f"Row {own.line}", excerpt(own.query), f"row-{own.line}")
        + audit_table("items", ITEM_HEAD, items)
        + audit_table("trivial", ("trivial response", "reward", "bound", "reason"), rewards)
    )


def _trivial_row(one: TrivialReward, most: float) -> str:
    bound = f"<td>{_state_chip(_reached(one, most))}</td>"
    return table_row(cell(one.name), cell(_digits(one.reward)), bound, cell(one.reason))


def _reached(one: TrivialReward, most: float) -> str:
    if one.reward is None:
        return UNKNOWN
    return FAIL if one.reward > most else PASS


def _item_row(number: int, item: ItemAudit) -> str:
    marks = [name for name in ("constant", "redundant") if getattr(item, name)]
    chips = "".join(f" {chip(name)}" for name in marks)
    criterion = esc(f"{number}: {displayed_text(item.criterion, LONG)}")
    return table_row(f"<td>{criterion}{chips}</td>", *map(cell, _item_cells(item)))


def _tiles(summary: Mapping[str, int], left_out: int) -> str:
    """Return the counts, each as a tile."""
    counts = {name: summary[name] for name in ("rubrics", "responses", "items")}
    counts |= {"constant items": summary["constant_items"]}
    counts |= {"redundant items": summary["redundant_items"], "rows left out": left_out}
    return number_tiles({name: f"{count:,}" for name, count in counts.items()})


def _left_out(rows: Sequence[BadRow], total: int) -> str:
    if not total:
        return ""
    shown = rows[:BAD_ROWS]
    named = "".join(f'<p class="small">{esc(displayed_text(str(row), 500))}</p>' for row in shown)
    more = f"{total - len(shown):,} more were named while it ran." if total > len(shown) else ""
    return heading("Rows left out", more) + named


def _state_chip(state: str) -> str:
    return chip(state, CHIPS[state])
