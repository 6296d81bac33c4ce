"""API of the `autoj watch` page. Every answer is a small JSON object, whatever the size of the run.

    run         metrics of the run, for one judge
    queries     a page of queries, sorted, filtered and searched
    query       one query with its candidates
    pair        one or two of its candidates, with all judgements and comparisons
    curves      metrics that a trainer logged

Texts are truncated and their invisible characters made visible (`shown.py`). The page displays them
as plain text.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from autoj_reward.config import Vote
from autoj_reward.errors import InputError
from autoj_reward.io.markup import visible
from autoj_reward.journal.reading import Entry
from autoj_reward.questions.rank import Ranking
from autoj_reward.types import CHECKLIST, JudgeInput
from autoj_reward.watch.index import (
    ORDERS,
    Filter,
    IndexedCandidate,
    JudgedRow,
    group_by_candidate,
    scores_in_group,
)
from autoj_reward.watch.relative import POINTS, ranking_data, ranking_of
from autoj_reward.watch.run import Run
from autoj_reward.watch.shown import (
    candidate_line,
    comparison_details,
    displayed_text,
    excerpt,
    judgement_details,
    rubric_on_record,
    run_figures,
)
from autoj_reward.watch.statistics import VIEWS, RunStatistics
from autoj_reward.watch.timeline import ALONE, COMPARISON, Timeline

PAGE = 20
"""Queries in one answer."""
JUDGED = 20_000
"""Maximum judgements that are read for a query."""
CANDIDATES = 200
"""Maximum candidates that are listed for a query: half from the best, half from the worst."""
SAID = 16
"""Maximum judgements of a candidate, and comparisons of two, that are shown in full."""
CHECKED = 500
"""Maximum judgements of a candidate that are read for its rubric items."""
SEARCH_S = 1.0
"""Seconds after which a search returns with the position that it has reached."""
STRETCH = 25
"""Queries that are searched at a time."""
SEARCHED = 5000
"""Maximum judgements of one query that are searched."""
OF_A_PANEL = (
    "A panel of judges rates each response. The figures here are those of one judge, the one that "
    "`judge` names above the queries. Their vote is in the results of the run."
)
"""Warning above the ratings of a panel, which a journal has judge by judge."""

Parameters = Mapping[str, str]
"""Query parameters of a request, by name."""


class Answers:
    """API of one run. Raises InputError for an unknown endpoint or a bad parameter."""

    def __init__(self, run: Run, now: Callable[[], float] = time.time) -> None:
        self._run, self._now = run, now
        self._endpoints = {
            "run": self._answer_run,
            "queries": self._answer_queries,
            "query": self._answer_query,
            "pair": self._answer_pair,
            "curves": self._answer_curves,
        }

    def answer(self, name: str, parameters: Parameters) -> dict[str, Any]:
        """Return the answer of the endpoint `name`."""
        if name not in self._endpoints:
            raise InputError(f"{name[:80]!r}: ask for one of {', '.join(self._endpoints)}")
        return self._endpoints[name](parameters)

    def _answer_run(self, parameters: Parameters) -> dict[str, Any]:
        run, judge = self._run, self._read_judge(parameters)
        state = run.state()
        with run.lock:
            index = run.index
            timeline = index.timelines[judge] if index.timelines else Timeline()
            journal = timeline.as_json(self._now())
            statistics = index.statistics[judge] if index.statistics else RunStatistics()
            judges, flags = list(index.judges), list(index.flags)
            summary = run.summary() if state == "finished" else None
            figures = run_figures(statistics, summary, judges[judge] if judges else "")
        if run.panel:
            figures["notices"].insert(0, OF_A_PANEL)
        return {
            "name": visible(run.path.name or run.path.absolute().name),
            "path": visible(run.path),
            "state": state,
            "total": run.total(),
            "now": self._now(),
            "reading": not run.read_all,
            "trouble": visible(run.trouble),
            "damaged": run.damaged,
            "judges": [displayed_text(name, 300) for name in judges],
            "judge": judge,
            "scored_by": run.scored_by(),
            "all_flags": flags,
            "journal": journal,
            "recorded": run.recorded,
            "training": self._describe_training(),
            **figures,
        }

    def _describe_training(self) -> dict[str, Any] | None:
        curves, config = self._run.curves, self._run.config() or {}
        if curves is None or not (curves.step or curves.without_events or "steps" in config):
            return None
        steps = config.get("steps")
        return {
            "step": curves.step,
            "steps": steps if isinstance(steps, int) else None,
            "without_events": curves.without_events,
            "judged": any(name.startswith("judge/") for name in curves.list_points()),
        }

    def _answer_curves(self, parameters: Parameters) -> dict[str, Any]:
        curves = self._run.curves
        points_by_name = curves.list_points() if curves else {}
        return {"curves": {visible(name): points for name, points in points_by_name.items()}}

    def _answer_queries(self, parameters: Parameters) -> dict[str, Any]:
        query_filter = Filter(
            self._read_judge(parameters),
            self._read_view(parameters),
            _read_choice(parameters, "order", tuple(ORDERS), "newest"),
            parameters.get("outcome", ""),
            parameters.get("flag", ""),
        )
        start, text = _read_number(parameters, "start"), parameters.get("search", "")[:200]
        with self._run.lock:
            total = self._run.index.count(query_filter)
        rows, following = self._search(query_filter, text, start)
        return {
            "total": total,
            "next": following,
            "rows": [self._describe_row(row, query_filter.view) for row in rows],
        }

    def _search(
        self, query_filter: Filter, text: str, start: int
    ) -> tuple[list[dict[str, Any]], int | None]:
        """Return (matching queries, position at which to continue).

        A query matches if its query, a response or a critique contains the text, ignoring case. An
        empty text matches all queries. The position is None when all queries have been searched.
        """
        if not text:
            rows = self._list_queries(query_filter, start, PAGE)
            return rows, start + PAGE if len(rows) == PAGE else None
        until, hits, needle = time.monotonic() + SEARCH_S, list[dict[str, Any]](), text.casefold()
        while time.monotonic() < until:
            stretch = self._list_queries(query_filter, start, STRETCH)
            for row in stretch:
                start += 1
                if self._holds(row["id"], needle):
                    hits.append(row)
                if len(hits) == PAGE:
                    return hits, start
            if len(stretch) < STRETCH:
                return hits, None
        return hits, start

    def _list_queries(self, query_filter: Filter, start: int, most: int) -> list[dict[str, Any]]:
        with self._run.lock:
            return self._run.index.queries(query_filter, start, most)

    def _holds(self, query_id: int, needle: str) -> bool:
        with self._run.lock:
            places = self._run.index.places(query_id, SEARCHED)
        for n in range(0, len(places), 200):
            entries = self._run.texts(places[n : n + 200]).values()
            if any(needle in text.casefold() for text in _list_texts(entries)):
                return True
        return False

    def _describe_row(self, row: dict[str, Any], view: int) -> dict[str, Any]:
        with self._run.lock:
            judged_rows = self._run.index.rows(row["id"], 4 * CANDIDATES)
            vote = self._run.index.vote
        entry = self._run.texts([judged_rows[0].place]).get(judged_rows[0].place)
        results = [candidate.result() for candidate in group_by_candidate(judged_rows, vote)]
        rated = [value for result in results if (value := result.values[view]) is not None]
        values = sorted(rated or scores_in_group(judged_rows, results))
        text = excerpt(entry.item.prompt.marked) if entry else ""
        return row | {"text": text, "values": values}

    def _answer_query(self, parameters: Parameters) -> dict[str, Any]:
        number, view = _read_number(parameters, "id"), self._read_view(parameters)
        rows = self._read_rows(number)
        ranked = ranking_of([(row.responses, row.mark) for row in rows])
        candidates = _sort_candidates(_list_candidates(rows, ranked, self._run.index.vote), view)
        listed_candidates = (
            candidates[: CANDIDATES // 2] + candidates[CANDIDATES // 2 :][-CANDIDATES // 2 :]
        )
        by_id = {row.id: row for row in rows}
        first_rows = [by_id[candidate.rows[0]] for candidate in listed_candidates]
        texts = self._run.texts([row.place for row in (*first_rows, *rows[:1])])
        item = next((entry.item for entry in texts.values()), None)
        return {
            "id": number,
            "text": displayed_text(item.prompt.marked) if item else "",
            "context": {visible(k): displayed_text(v) for k, v in item.context.items()}
            if item
            else {},
            "total": len(candidates),
            "candidates": [
                candidate_line(
                    str(candidate.response),
                    _find_response(candidate, row, texts.get(row.place)),
                    candidate.result(),
                )
                for candidate, row in zip(listed_candidates, first_rows, strict=True)
            ],
            "relative": ranking_data(ranked[1], list(map(str, ranked[0])), POINTS)
            if ranked
            else None,
        }

    def _answer_pair(self, parameters: Parameters) -> dict[str, Any]:
        rows = self._read_rows(_read_number(parameters, "id"))
        names = [name for key in ("one", "two") if (name := parameters.get(key, ""))]
        pair_rows = {str(row.id): row for row in rows if set(map(str, row.responses)) == set(names)}
        by_candidate = {name: [r for r in rows if name in map(str, r.responses)] for name in names}
        lone_rows = {
            name: [r for r in candidate_rows if r.mark.kind in ALONE]
            for name, candidate_rows in by_candidate.items()
        }
        shown_rows = {name: (lone_rows[name] or by_candidate[name])[:SAID] for name in names}
        comparison_rows = [row for row in pair_rows.values() if row.mark.kind == COMPARISON][:SAID]
        checklist_rows = {
            name: [row for row in candidate_rows if row.mark.kind == CHECKLIST][:CHECKED]
            for name, candidate_rows in lone_rows.items()
        }
        places = [
            row.place
            for rows_by_name in (shown_rows, checklist_rows)
            for candidate_rows in rows_by_name.values()
            for row in candidate_rows
        ]
        texts = self._run.texts([*places, *(row.place for row in comparison_rows)])
        return {
            "candidates": [
                _describe_candidate(name, shown_rows[name], checklist_rows[name], texts)
                for name in names
            ],
            "comparisons": [
                _describe_comparison(row, entry)
                for row in comparison_rows
                if (entry := texts.get(row.place))
            ],
        }

    def _read_rows(self, number: int) -> list[JudgedRow]:
        with self._run.lock:
            rows = self._run.index.rows(number, JUDGED)
        if not rows:
            raise InputError(f"id: no query {number}")
        return rows

    def _read_judge(self, parameters: Parameters) -> int:
        with self._run.lock:
            timelines = self._run.index.timelines
            latest = max(range(len(timelines)), key=lambda n: timelines[n].last, default=0)
        judge = _read_number(parameters, "judge", latest)
        if judge and judge >= len(timelines):
            raise InputError(f"judge: no judge {judge}")
        return judge

    def _read_view(self, parameters: Parameters) -> int:
        return VIEWS.index(_read_choice(parameters, "view", VIEWS, "rating"))


def _list_texts(entries: Iterable[Entry]) -> Iterable[str]:
    for entry in entries:
        yield from entry.item.untrusted
        yield from (entry.judgement.critique, entry.judgement.thinking, entry.judgement.reason)


def _find_response(candidate: IndexedCandidate, row: JudgedRow, entry: Entry | None) -> str:
    if entry is None:
        return ""
    return entry.item.responses[row.responses.index(candidate.response)].marked


def _describe_comparison(row: JudgedRow, entry: Entry) -> dict[str, Any]:
    first, second = map(str, row.responses)
    return {"one": first, "two": second} | comparison_details(entry.judgement)


def _describe_candidate(
    name: str, rows: list[JudgedRow], checklist_rows: list[JudgedRow], texts: Mapping[Any, Entry]
) -> dict[str, Any]:
    """Return a candidate in full.

    rows: its judgements. checklist_rows: those of rubric items.
    """
    items = [texts[row.place] for row in checklist_rows if row.place in texts]
    entries = [(row, texts[row.place]) for row in rows if row.place in texts]
    response = ""
    if entries:
        row, entry = entries[0]
        response = entry.item.responses[list(map(str, row.responses)).index(name)].marked
    return {
        "name": name,
        "response": displayed_text(response),
        "judgements": [
            judgement_details(e.judgement, row.mark.kind, e.item.sample)
            | {"about": _quote_criterion(e.item)}
            for row, e in entries
            if row.mark.kind != COMPARISON
        ],
        "rubric": rubric_on_record((e.item, e.judgement) for e in items),
    }


def _quote_criterion(item: JudgeInput) -> str:
    """Return the criterion of the rubric item that an input asks about; empty unless it is one."""
    return excerpt(item.items[0].criterion) if len(item.items) == 1 else ""


def _list_candidates(
    rows: list[JudgedRow], ranked: tuple[tuple[int, ...], Ranking] | None, vote: Vote
) -> list[IndexedCandidate]:
    """Return the rated candidates, followed by those that were only judged beside others.

    The latter have their score in `ranked`, if no candidate was rated alone.
    """
    candidates = group_by_candidate(rows, vote)
    scores = (
        dict(zip(ranked[0], ranked[1].scores, strict=True)) if ranked and not candidates else {}
    )
    names = {candidate.response for candidate in candidates}
    for row in rows:
        for name in row.responses:
            if name not in names:
                names.add(name)
                alone = IndexedCandidate(name, vote, [row.id], [row.mark], scores.get(name))
                candidates.append(alone)
    return candidates


def _sort_candidates(candidates: list[IndexedCandidate], view: int) -> list[IndexedCandidate]:
    """Return the candidates, best first in the view.

    Equal values are ordered by expected rating. Candidates without a value come last.
    """

    def rank(candidate: IndexedCandidate) -> tuple[bool, float, float]:
        values = candidate.result().values
        value, expected = values[view], values[VIEWS.index("expected")]
        return value is None, -(value or 0.0), -(expected or 0.0)

    return sorted(candidates, key=rank)


def _read_number(parameters: Parameters, name: str, default: int = 0) -> int:
    text = parameters.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise InputError(f"{name}: {text[:40]!r} is no number")
    return int(text)


def _read_choice(parameters: Parameters, name: str, choices: tuple[str, ...], default: str) -> str:
    value = parameters.get(name, default)
    if value not in choices:
        raise InputError(f"{name}: {value[:40]!r} is none of {', '.join(choices)}")
    return value
