"""HTML page that compares any number of results: `autoj evaluate leaderboard`.

The page is self-contained: it needs no network, and its content security policy allows only its own
script, by hash. Text from files and models is escaped here, or set as text by the script.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from autoj_reward.errors import ConfigError, InputError
from autoj_reward.evaluate.results import ROWS, load_result, load_rows, path_beside
from autoj_reward.evaluate.statistics import ResultFields
from autoj_reward.io.claims import judged_by
from autoj_reward.io.files import require_apart, to_plain, write_text
from autoj_reward.io.markup import data_block, esc, hash_source, num, plural, visible

Titled = tuple[str, str]
"""Title and text."""
RowFields = dict[str, Any]
"""Fields of one judged row, as read from the file beside a result."""
MAIN_METRIC = {"best-of-four": "accuracy"}
"""Metric of the heat map by task; `agreement` for other tasks."""
METRICS_WITHOUT_INTERVAL = ("accuracy",)
"""Metrics that the table shows although a result may have no interval for them."""
CORRELATION_NAMES = ("pearson", "spearman")
"""Metrics shown with three decimals in place of two."""
INTERVAL_WIDTH = 90
"""Width of the drawing of an interval, in pixels."""
MALFORMED = (KeyError, TypeError, ValueError, AttributeError, OverflowError)
"""Exceptions of reading a result or a row that no evaluation has written."""
NamedResult = tuple[str, ResultFields]
"""Stem of a result's file name, and the result's fields."""


@dataclass(frozen=True, slots=True)
class JudgedItem:
    """One judged row of a result, as the page's browser of rows shows it."""

    line: int
    group: str
    query: str
    responses: tuple[Titled, ...]
    judgements: tuple[Titled, ...]
    tags: tuple[str, ...]
    """Labels that rows can be filtered by."""
    facts: tuple[str, ...]
    """Further short texts, shown with the row."""


def leaderboard(results: Sequence[str], output: str, limit: int) -> int:
    """Write the page and return the exit code 0.

    results: result files. output: path of the page. limit: judged rows of each result that the page
    contains; ConfigError if it is negative. Raises InputError for a result that cannot be shown.
    """
    if limit < 0:
        raise ConfigError(f"--limit {limit}: give 0 or more")
    require_apart([*results, *(path_beside(path, ROWS) for path in results)], [output])
    loaded = [(path, load_result(path)) for path in results]
    for path, result in loaded:
        if not isinstance(result.get("overall"), dict):
            raise InputError(f"{path}: a result of {result['task']} has no overall figures to show")
    rows = [load_rows(path) for path, _ in loaded]
    items = [
        _build_items(path, str(result["task"]), result_rows[:limit])
        for (path, result), result_rows in zip(loaded, rows, strict=True)
    ]
    rows_left_out = sum(max(0, len(result_rows) - limit) for result_rows in rows)
    with judged_by("", Path(output), Path(output), command="autoj evaluate leaderboard"):
        write_text(output, _render_results(loaded, items, rows_left_out))
    print(f"{plural(len(loaded), 'result')}: {output}")
    return 0


def _render_results(
    loaded: Sequence[tuple[str, ResultFields]],
    items: Sequence[Sequence[JudgedItem]],
    rows_left_out: int,
) -> str:
    """Return the HTML page. Raises InputError for a result with other fields or numbers than an
    evaluation writes."""
    try:
        return render_page(loaded, items, rows_left_out)
    except MALFORMED as error:
        paths = ", ".join(path for path, _ in loaded)
        raise InputError(
            f"{paths}: not as `autoj evaluate` writes it: {error!r}; evaluate again"
        ) from error


def render_page(
    loaded: Sequence[tuple[str, ResultFields]],
    items: Sequence[Sequence[JudgedItem]],
    rows_left_out: int,
) -> str:
    """Return the HTML page.

    loaded: path and fields of each result. items: the judged rows to show of each. rows_left_out:
    number of judged rows that the page leaves out.
    """
    titles = [f"{result['name']} · {result['task']} · {Path(path).stem}" for path, result in loaded]
    data = [
        {"title": title, "items": [to_plain(item) for item in result_items]}
        for title, result_items in zip(titles, items, strict=True)
        if result_items
    ]
    results_by_rows: dict[tuple[str, str], list[tuple[str, ResultFields]]] = {}
    for path, result in loaded:
        results_by_rows.setdefault((str(result["task"]), _describe_rows(result)), []).append(
            (Path(path).stem, result)
        )
    note = (
        f"{plural(rows_left_out, 'judged row')} left out of this page; the files hold all of them."
    )
    folder = files("autoj_reward.evaluate")
    script = folder.joinpath("leaderboard.js").read_text("utf-8")
    template = Template(folder.joinpath("leaderboard.html").read_text("utf-8"))
    return template.substitute(
        script=script,
        # No other script runs.
        script_hash=hash_source(script),
        subtitle=esc(f"{plural(len(loaded), 'result')}; 95 % intervals are bootstrapped."),
        sections="".join(
            _render_section(task, rows, same_rows)
            for (task, rows), same_rows in results_by_rows.items()
        ),
        notes=f'<p class="muted small">{note}</p>' if rows_left_out else "",
        data=data_block(data),
    )


def _describe_rows(result: ResultFields) -> str:
    """Return a line that is equal for results on the same rows: data file, digest and sample."""
    sources = result.get("sources") or {}
    settings = result.get("settings") or {}
    source = sources.get("data") or sources.get("table") or {}
    name = Path(str(source.get("path", ""))).name
    digest = str(source.get("sha256", ""))[:12]
    sample = settings.get("sample")
    drawn = f"{sample} drawn with seed {settings.get('seed')}" if sample else ""
    return " · ".join(part for part in (name, digest, drawn) if part)


def _build_items(path: str, task: str, rows: Sequence[dict[str, Any]]) -> list[JudgedItem]:
    try:
        return [items_of(task, row) for row in rows]
    except MALFORMED as error:
        raise InputError(
            f"{path}: the rows beside it are not those of `autoj evaluate`: {error!r}; "
            "evaluate again"
        ) from error


def items_of(task: str, row: RowFields) -> JudgedItem:
    """Return the item of a judged row.

    Raises KeyError, TypeError, ValueError or AttributeError if the row is not one of this task.
    """
    build = {
        "eval-r": _describe_candidates,
        "best-of-four": _describe_choice,
    }.get(task, _describe_pair)
    responses, judgements, tags, facts = build(row)
    return JudgedItem(
        int(row["line"]),
        visible(row["group"]),
        visible(row["query"]),
        tuple((visible(title), visible(text)) for title, text in responses),
        tuple((visible(title), visible(text)) for title, text in judgements),
        tuple(tags),
        tuple(visible(fact) for fact in facts),
    )


def _describe_pair(row: RowFields) -> tuple[list[Titled], list[Titled], list[str], list[str]]:
    verdict, label = str(row["verdict"]), str(row["label"])
    tags = [verdict] if verdict in ("inconsistent", "failed", "tie") else []
    tags.append("agreement" if verdict == label else "disagreement")
    facts = [f"judge: {verdict}", f"human: {label}"]
    responses = [(f"response {n}", text) for n, text in enumerate(row["responses"], 1)]
    judgements = []
    rated_alone = not row["orders"]
    for n, judgement in enumerate(row["judgements"]):
        if rated_alone:
            title = f"response {n + 1}: rated {num(judgement['rating'])}"
            title += f", expected {num(judgement['expected'])}"
        else:
            order_verdict = _name_winner_in_file_order(row["orders"][n], n)
            shown_order = "response 1 shown first" if n == 0 else "response 2 shown first"
            title = f"{shown_order}: {order_verdict or judgement['outcome']}"
        title += ", forced" * bool(judgement["forced"])
        judgements.append((title, judgement["critique"] or judgement["reason"] or "(no text)"))
    return responses, judgements, tags, facts


def _name_winner_in_file_order(verdict: str | None, order: int) -> str | None:
    """Return a verdict with the winner named as in the file.

    verdict: the verdict as this order shows the pair. order: 0, or 1 for the swapped order.
    """
    names = {"first": "response 1", "second": "response 2"}
    if order == 1:
        names = {"first": "response 2", "second": "response 1"}
    return names.get(verdict, verdict) if verdict else None


def _describe_candidates(row: RowFields) -> tuple[list[Titled], list[Titled], list[str], list[str]]:
    chosen = row["chosen"]["configured"]
    responses = []
    for size, index in chosen.items():
        facts = f"rating {num(row['ratings'][index])}, grade {num(row['grades'][index])}"
        responses.append((f"best of {size}: candidate {index}, {facts}", row["responses"][index]))
    critiques = [
        (f"critique of candidate {index}", row["critiques"][index])
        for index in dict.fromkeys(chosen.values())
        if row["critiques"][index]
    ]
    chosen_by_any_rule = {i for by_size in row["chosen"].values() for i in by_size.values()}
    tags = ["tie-break matters"] if chosen_by_any_rule - set(chosen.values()) else []
    return responses, critiques, tags, [str(row["base"])]


def _describe_choice(row: RowFields) -> tuple[list[Titled], list[Titled], list[str], list[str]]:
    correct, ratings = int(row["correct"]), row["ratings"]
    responses = [
        (f"{'correct' if n < correct else 'wrong'}: rated {num(ratings[n])}", text)
        for n, text in enumerate(row["responses"])
    ]
    known_ratings = [rating for rating in ratings if rating is not None]
    best = {n for n, rating in enumerate(ratings) if known_ratings and rating == max(known_ratings)}
    right = bool(best) and all(n < correct for n in best)
    tags = ["agreement" if right else "disagreement"]
    tags += ["failed"] if len(known_ratings) < len(ratings) else []
    return responses, [], tags, [f"{correct} correct of {len(ratings)}"]


def _render_section(task: str, rows: str, results: Sequence[NamedResult]) -> str:
    """Return the section of one task on the same rows: metrics and heat map."""
    parts = [f"<h2>{esc(task)}</h2>", f'<p class="muted small">{esc(rows)}</p>']
    parts.append(_render_table(results))
    if heat := _render_heat_map(task, results):
        parts.append(f"<h3>By group</h3>{heat}")
    return "".join(parts)


def _collect_heat_cells(task: str, result: ResultFields) -> dict[str, float | None]:
    """Return the values of a result's row in the heat map, by column."""
    if bases := result.get("bases"):
        return {
            f"{base}, best of {size}": _check_number("grade", best["grade"])
            for base, metrics in bases.items()
            for size, best in metrics["best_of"].items()
        }
    name = MAIN_METRIC.get(task, "agreement")
    groups = result.get("groups", {})
    return {group: _check_number(name, metrics.get(name)) for group, metrics in groups.items()}


def _render_table(results: Sequence[NamedResult]) -> str:
    names = list(
        dict.fromkeys(
            key.removesuffix("_95")
            for _, result in results
            for key in result["overall"]
            if key.endswith("_95") or key in METRICS_WITHOUT_INTERVAL
        )
    )
    scales = {name: _find_range(results, name) for name in names}
    body = "".join(
        "<tr>"
        + _render_name(file, result)
        + _render_cell(result["overall"].get("n"), str(result["overall"].get("n", "")))
        + "".join(_render_metric(result["overall"], name, scales[name]) for name in names)
        + "</tr>"
        for file, result in results
    )
    return _render_sortable_table(["judge", "n", *names], body, "")


def _render_heat_map(task: str, results: Sequence[NamedResult]) -> str:
    heat_rows = [_collect_heat_cells(task, result) for _, result in results]
    columns = list(dict.fromkeys(column for row in heat_rows for column in row))
    known_values = [value for row in heat_rows for value in row.values() if value is not None]
    if not columns or not known_values:
        return ""
    low, span = min(known_values), (max(known_values) - min(known_values)) or 1.0

    def render_heat_cell(value: float | None) -> str:
        if value is None:
            return _render_cell(None, "–")
        level = 0.06 + 0.54 * (value - low) / span
        return f'<td data-heat data-value="{value}" style="--level: {level:.3f}">{num(value)}</td>'

    body = "".join(
        "<tr>"
        + _render_name(file, result)
        + "".join(render_heat_cell(row.get(c)) for c in columns)
        + "</tr>"
        for (file, result), row in zip(results, heat_rows, strict=True)
    )
    return _render_sortable_table(["judge", *columns], body, "heat")


def _render_sortable_table(head: Sequence[str], body: str, kind: str) -> str:
    heads = "".join(
        f'<th scope="col"><button type="button">{esc(name)}</button></th>' for name in head
    )
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _render_name(file: str, result: ResultFields) -> str:
    title = _make_title(file, result)
    return f'<td data-value="{esc(title)}" title="{esc(result["judge"])}">{esc(title)}</td>'


def _make_title(file: str, result: ResultFields) -> str:
    return f"{result['name']} ({file})"


def _render_cell(value: Any, text: str) -> str:
    attribute = "" if value is None else f' data-value="{esc(value)}"'
    return f"<td{attribute}>{esc(text)}</td>"


def _render_metric(overall: ResultFields, name: str, scale: tuple[float, float]) -> str:
    value, low, high = _read_numbers(overall, name)
    if value is None:
        return _render_cell(None, "–")
    digits = 3 if name in CORRELATION_NAMES else 2
    if low is None or high is None:
        return _render_cell(value, f"{value:.{digits}f}")
    return (
        f'<td data-value="{value}">{value:.{digits}f}<span>{low:.{digits}f} to {high:.{digits}f}'
        f"</span>{_draw_interval(value, low, high, scale)}</td>"
    )


def _draw_interval(value: float, low: float, high: float, scale: tuple[float, float]) -> str:
    start, span = scale[0], (scale[1] - scale[0]) or 1.0
    a, b, c = (5 + (v - start) / span * (INTERVAL_WIDTH - 10) for v in (low, high, value))
    return (
        f'<svg width="{INTERVAL_WIDTH}" height="12" role="img" '
        f'aria-label="from {num(low)} to {num(high)}">'
        f'<path class="range" d="M{a:.1f} 6H{b:.1f}"/>'
        f'<circle class="point" cx="{c:.1f}" cy="6" r="3.5"/></svg>'
    )


def _find_range(results: Sequence[NamedResult], name: str) -> tuple[float, float]:
    values = [
        v for _, result in results for v in _read_numbers(result["overall"], name) if v is not None
    ]
    return (min(values), max(values)) if values else (0.0, 1.0)


def _read_numbers(
    overall: ResultFields, name: str
) -> tuple[float | None, float | None, float | None]:
    """Return a metric and the ends of its interval; None where one is missing."""
    low, high = overall.get(f"{name}_95") or (None, None)
    value, low, high = (_check_number(name, number) for number in (overall.get(name), low, high))
    return value, low, high


def _check_number(name: str, value: Any) -> float | None:
    if value is None:
        return None
    if (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and abs(value) <= sys.float_info.max
    ):
        return value
    raise InputError(f"a result has {str(value)[:40]!r} as its {name}: evaluate again")
