"""The report of a best-of-N job: one HTML page that needs nothing but itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from autoj_reward.io.page import clip, count, counts, esc, num, page, percent, plural, rate, table
from autoj_reward.types import BadRow, Outcome
from rollouts.best_of_n.plots import bar_plot, line_plot
from rollouts.best_of_n.report_query import NO_CURVE, query_section
from rollouts.best_of_n.sample import Shown
from rollouts.best_of_n.spending import BudgetSummary, budget_text
from rollouts.best_of_n.summary import Summary

_VIEW = {"rating": "rating", "expected": "expected rating", "direct": "direct rating"}
_PLOT = (420, 250)
_KINDS = {
    "first": "that came first",
    "last": "that came last",
    "lowest": "whose best candidate is rated lowest, or not at all",
    "drawn": "drawn at random",
}
SEARCH = (
    '<p><input id="find" type="search" aria-label="Search the queries shown here" '
    'placeholder="Search the queries shown here"> <span id="found" class="muted small"></span></p>'
)


def render_report(summary: Summary, shown: Sequence[Shown], *, title: str, config_text: str) -> str:
    """The whole page. shown: the queries that are shown in detail; the page says what is not.

    Whatever a model, a row or a file name says is shown as text: escaped, with control
    characters and lone surrogates made visible. Only the page's own script runs, by its hash.
    """
    sections = "".join(query_section(own, summary.view) for own in shown)
    judge = f"judge {esc(summary.judge)} · " if summary.judge else ""
    return page(
        "rollouts.best_of_n",
        "report",
        title=esc(title),
        subtitle=f"{judge}ranked by {esc(_VIEW.get(summary.view, summary.view))}",
        notices="".join(f'<p class="warn">{notice}</p>' for notice in notices(summary)),
        tiles=_tiles(summary),
        overview=_overview(summary),
        queries="<h2>Queries</h2>\n" + _which(summary.queries, shown) + SEARCH + sections,
        config=esc(config_text),
    )


def notices(summary: Summary) -> list[str]:
    """What a reader must know before trusting the choices, as sentences in HTML."""
    found = []
    ok = summary.outcomes.get(Outcome.OK.value, 0)
    if summary.budget and summary.budget.share < 1:
        found.append(
            f"Judged on a {esc(budget_text(summary.budget))}. Ratings, ties and spread below are "
            "those of the candidates that were judged in full."
        )
    if summary.candidates and not ok:
        found.append("No candidate got a rating: every choice below is arbitrary.")
    elif summary.ok_share is not None and summary.ok_share < 0.95:
        found.append(
            f"{percent(1 - summary.ok_share)} of the judgements failed. Failed candidates cannot "
            "be chosen unless all of a query's candidates failed."
        )
    if summary.forced_share is not None and summary.forced_share > 0.5:
        found.append(
            f"{percent(summary.forced_share)} of the ratings were forced: the judge did not write "
            "them itself, so they say less than ratings that it wrote after its critique."
        )
    if summary.spread is not None and summary.spread < 0.1:
        found.append(
            "The judge hardly tells the candidates of a query apart (standard deviation "
            f"{rate(summary.spread)} points on average), so the choices mean little."
        )
    elif summary.pair_tie_rate is not None and summary.pair_tie_rate > 0.7:
        found.append(
            f"{percent(summary.pair_tie_rate)} of the candidate pairs of a query got the same "
            f"{esc(_VIEW.get(summary.view, summary.view))}: the tie-break decides most choices."
        )
    return found


def _tiles(s: Summary) -> str:
    ok, abandoned = (s.outcomes.get(o.value, 0) for o in (Outcome.OK, Outcome.ABANDONED))
    copies = s.budget.fates["copy"] if s.budget else 0
    judged = s.candidates - abandoned - copies
    gain = s.curve[-1][1] - s.curve[0][1] if s.curve else None
    cells = [
        (count(s.queries), "queries", f"{plural(s.rows_left_out, 'row')} left out"),
        (
            count(judged),
            "candidates judged",
            f"{count(abandoned)} abandoned, {count(copies)} copies" * bool(s.budget)
            or f"{count(s.reused)} read from the journal",
        ),
        (percent(s.ok_share), "with a rating", f"{count(judged - ok)} without"),
        (percent(s.forced_share), "of ratings forced", f"{count(s.forced)} in all"),
        (percent(s.tie_rate), "of queries tied at the top", f"{percent(s.pair_tie_rate)} of pairs"),
        (num(gain), "points gained by selection", "mean best minus mean"),
        (rate(s.judgements_per_second), "judgements per second", _seconds(s)),
        (count(s.usage.tokens_out), "tokens written", f"{count(s.usage.tokens_in)} read"),
    ]
    return "".join(
        f'<div class="tile"><b>{value}</b>{name}<span>{note}</span></div>'
        for value, name, note in cells
    )


def _seconds(s: Summary) -> str:
    return f"{rate(sum(s.seconds.values()))} s in all" if s.seconds else "time not measured"


def _overview(s: Summary) -> str:
    name = _VIEW.get(s.view, s.view)
    fewest = (
        f" The curve ends at N = {s.curve[-1][0]}, the fewest rated in a query." if s.curve else ""
    )
    missing = s.queries - s.curve_queries
    absent = f" Left out: {plural(missing, 'query')} without any rating." if missing else ""
    cards = [
        (
            "Mean best-of-N curve",
            NO_CURVE
            if s.budget
            else line_plot(s.curve, f"best {name}", _PLOT)
            + f'<p class="muted small">Mean best {esc(name)} over all subsets of N candidates, '
            f"averaged over {plural(s.curve_queries, 'query')}.{fewest}{absent}</p>",
        ),
        (
            "Ratings",
            bar_plot(s.histogram, _PLOT)
            + f'<p class="muted small">Standard deviation within a query: {num(s.spread)} points '
            "on average.</p>",
        ),
        ("Failures by reason", counts(s.reasons, "Every judgement gave a rating.")),
        ("Outcomes", counts({k: v for k, v in s.outcomes.items() if v}, "Nothing was judged.")),
        ("Choices by deciding rule", counts(s.rules, "No choice was made.")),
        ("Flags", counts(s.flags, "No input was flagged.")),
        ("Tokens and throughput", _throughput(s)),
        *((("Budget", _budget(s.budget)),) if s.budget else ()),
        ("Rows left out", _bad_rows(s.bad_rows, s.rows_left_out)),
    ]
    body = "".join(f'<section class="card"><h3>{head}</h3>{text}</section>' for head, text in cards)
    return f'<h2>Overview</h2><div class="two">{body}</div>'


def _throughput(s: Summary) -> str:
    rows = [
        ("tokens read", f"{s.usage.tokens_in:,}"),
        ("of these from the prefix cache", f"{s.usage.tokens_cached:,}"),
        ("prefix cache hit rate", percent(s.cache_hit_rate)),
        ("tokens written", f"{s.usage.tokens_out:,}"),
        ("judgements per second", rate(s.judgements_per_second)),
        ("tokens written per second", rate(s.output_tokens_per_second)),
        ("judgements read from the journal", f"{s.reused:,}"),
        ("tie-break comparisons", f"{s.comparisons:,}"),
    ]
    rows += [(f"seconds: {esc(phase)}", rate(time)) for phase, time in s.seconds.items()]
    return table((), rows, "counts")


def _budget(b: BudgetSummary) -> str:
    rows = [
        ("share of full judging allowed", percent(b.share)),
        ("share written, by estimate", percent(b.written_share)),
        ("tokens written", f"{b.written:,}"),
        ("full judging would have written, by estimate", f"{b.full_tokens:,.0f}"),
        ("cheap readings", f"{b.readings:,}"),
        ("critiques", f"{b.critiques:,}"),
        ("critiques skipped", f"{b.skipped:,}"),
        ("orders of comparisons", f"{b.orders:,}"),
        ("queries over their share", f"{b.over:,}"),
    ]
    rows += [
        (f"candidates: {esc(fate.replace('_', ' '))}", f"{k:,}") for fate, k in b.fates.items()
    ]
    rows += [
        (f"{kind}: tokens read, of these cached", f"{u.tokens_in:,}, {u.tokens_cached:,}")
        for kind, u in b.usage.items()
    ]
    return table((), rows, "counts")


def _bad_rows(rows: Sequence[BadRow], total: int, limit: int = 50) -> str:
    if not rows:
        return '<p class="muted">Every row could be read.</p>'
    cells = [
        (clip(row.file, 200), str(row.line), clip(row.field, 100), clip(row.reason, 300))
        for row in rows[:limit]
    ]
    more = f'<p class="muted small">{total - limit:,} more rows were named while it ran.</p>'
    return table(("file", "line", "field", "reason"), cells, "bad") + more * (total > limit)


def _which(total: int, shown: Sequence[Shown]) -> str:
    if not total:
        return '<p class="muted">No query was judged.</p>'
    if len(shown) == total:
        return ""
    of = Counter(own.why for own in shown)
    kinds = ", ".join(f"{of[why]:,} {text}" for why, text in _KINDS.items() if of[why])
    return (
        f'<p class="warn">{len(shown):,} of {plural(total, "query")} are shown in detail: {kinds}. '
        "The result files hold all of them.</p>"
    )
