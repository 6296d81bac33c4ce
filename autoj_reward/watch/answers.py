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

import json
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from autoj_reward.errors import InputError
from autoj_reward.io.files import to_plain
from autoj_reward.io.markup import visible
from autoj_reward.journal.reading import Entry
from autoj_reward.questions.rank import Ranking
from autoj_reward.types import CHECKLIST, JudgeInput
from autoj_reward.watch.index import (
    ORDERS,
    Filter,
    IndexedCandidate,
    JudgedRow,
    scores_in_group,
    standers,
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

Given = Mapping[str, str]
"""Query parameters of a request, by name."""


class Answers:
    """API of one run. Raises InputError for an unknown endpoint or a bad parameter."""

    def __init__(self, run: Run, now: Callable[[], float] = time.time) -> None:
        self._run, self._now = run, now
        self._about = {
            "run": self._figures,
            "queries": self._queries,
            "query": self._query,
            "pair": self._pair,
            "curves": self._curves,
        }

    def answer(self, name: str, given: Given) -> dict[str, Any]:
        """Return the answer of the endpoint `name`."""
        if name not in self._about:
            raise InputError(f"{name[:80]!r}: ask for one of {', '.join(self._about)}")
        return self._about[name](given)

    def _figures(self, given: Given) -> dict[str, Any]:
        run, judge = self._run, self._judge(given)
        state = run.state()
        with run.lock:
            index = run.index
            timeline = index.timelines[judge] if index.timelines else Timeline()
            journal = timeline.as_json(self._now())
            statistics = index.statistics[judge] if index.statistics else RunStatistics()
            judges, flags = list(index.judges), list(index.flags)
            summary = run.summary() if state == "finished" else None
            figures = run_figures(statistics, summary, judges[judge] if judges else "")
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
            "training": self._training(),
            **figures,
        }

    def _training(self) -> dict[str, Any] | None:
        curves, config = self._run.curves, self._run.config() or {}
        if curves is None or not (curves.step or curves.without_events or "steps" in config):
            return None
        steps = config.get("steps")
        return {
            "step": curves.step,
            "steps": steps if isinstance(steps, int) else None,
            "without_events": curves.without_events,
        }

    def _curves(self, given: Given) -> dict[str, Any]:
        curves = self._run.curves
        told = curves.told() if curves else {}
        return {"curves": {visible(name): points for name, points in told.items()}}

    def _queries(self, given: Given) -> dict[str, Any]:
        wanted = Filter(
            self._judge(given),
            self._view(given),
            _one_of(given, "order", tuple(ORDERS), "newest"),
            given.get("outcome", ""),
            given.get("flag", ""),
        )
        start, text = _number(given, "start"), given.get("search", "")[:200]
        with self._run.lock:
            total = self._run.index.count(wanted)
        rows, following = self._search(wanted, text, start)
        return {
            "total": total,
            "next": following,
            "rows": [self._line(row, wanted.view) for row in rows],
        }

    def _search(
        self, wanted: Filter, text: str, start: int
    ) -> tuple[list[dict[str, Any]], int | None]:
        """Return (matching queries, position at which to continue).

        A query matches if its query, a response or a critique contains the text, ignoring case. An
        empty text matches all queries. The position is None when all queries have been searched.
        """
        if not text:
            rows = self._stretch(wanted, start, PAGE)
            return rows, start + PAGE if len(rows) == PAGE else None
        until, found, needle = time.monotonic() + SEARCH_S, list[dict[str, Any]](), text.casefold()
        while time.monotonic() < until:
            stretch = self._stretch(wanted, start, STRETCH)
            for row in stretch:
                start += 1
                if self._holds(row["id"], needle):
                    found.append(row)
                if len(found) == PAGE:
                    return found, start
            if len(stretch) < STRETCH:
                return found, None
        return found, start

    def _stretch(self, wanted: Filter, start: int, most: int) -> list[dict[str, Any]]:
        with self._run.lock:
            return self._run.index.queries(wanted, start, most)

    def _holds(self, asked: int, needle: str) -> bool:
        with self._run.lock:
            places = self._run.index.places(asked, SEARCHED)
        for n in range(0, len(places), 200):
            entries = self._run.texts(places[n : n + 200]).values()
            if any(needle in text.casefold() for text in _texts(entries)):
                return True
        return False

    def _line(self, row: dict[str, Any], view: int) -> dict[str, Any]:
        with self._run.lock:
            judged = self._run.index.rows(row["id"], 4 * CANDIDATES)
        entry = self._run.texts([judged[0].place]).get(judged[0].place)
        results = [own.result() for own in standers(judged)]
        rated = [value for own in results if (value := own.values[view]) is not None]
        values = sorted(rated or scores_in_group(judged, results))
        text = excerpt(entry.item.query) if entry else ""
        return row | {"text": text, "values": values}

    def _query(self, given: Given) -> dict[str, Any]:
        number, view = _number(given, "id"), self._view(given)
        rows = self._rows(number)
        ranked = ranking_of([(row.responses, row.mark) for row in rows])
        found = _ordered(_standing(rows, ranked), view)
        listed = found[: CANDIDATES // 2] + found[CANDIDATES // 2 :][-CANDIDATES // 2 :]
        by_id = {row.id: row for row in rows}
        first = [by_id[own.rows[0]] for own in listed]
        texts = self._run.texts([row.place for row in (*first, *rows[:1])])
        item = next((entry.item for entry in texts.values()), None)
        return {
            "id": number,
            "text": displayed_text(item.query) if item else "",
            "context": {visible(k): displayed_text(v) for k, v in item.context.items()}
            if item
            else {},
            "total": len(found),
            "candidates": [
                candidate_line(
                    str(own.response),
                    _response(own, row, texts.get(row.place)),
                    own.result(),
                )
                for own, row in zip(listed, first, strict=True)
            ],
            "relative": ranking_data(ranked[1], list(map(str, ranked[0])), POINTS)
            if ranked
            else None,
        }

    def _pair(self, given: Given) -> dict[str, Any]:
        rows = self._rows(_number(given, "id"))
        names = [name for key in ("one", "two") if (name := given.get(key, ""))]
        both = {str(row.id): row for row in rows if set(map(str, row.responses)) == set(names)}
        of = {name: [r for r in rows if name in map(str, r.responses)] for name in names}
        alone = {name: [r for r in own if r.mark.kind in ALONE] for name, own in of.items()}
        picked = {name: (alone[name] or of[name])[:SAID] for name in names}
        compared = [row for row in both.values() if row.mark.kind == COMPARISON][:SAID]
        checked = {
            name: [row for row in own if row.mark.kind == CHECKLIST][:CHECKED]
            for name, own in alone.items()
        }
        wanted = [row.place for some in (picked, checked) for own in some.values() for row in own]
        texts = self._run.texts([*wanted, *(row.place for row in compared)])
        return {
            "candidates": [_said(name, picked[name], checked[name], texts) for name in names],
            "comparisons": [
                _compared(row, entry) for row in compared if (entry := texts.get(row.place))
            ],
        }

    def _rows(self, number: int) -> list[JudgedRow]:
        with self._run.lock:
            rows = self._run.index.rows(number, JUDGED)
        if not rows:
            raise InputError(f"id: no query {number}")
        return rows

    def _judge(self, given: Given) -> int:
        with self._run.lock:
            timelines = self._run.index.timelines
            latest = max(range(len(timelines)), key=lambda n: timelines[n].last, default=0)
        judge = _number(given, "judge", latest)
        if judge and judge >= len(timelines):
            raise InputError(f"judge: no judge {judge}")
        return judge

    def _view(self, given: Given) -> int:
        return VIEWS.index(_one_of(given, "view", VIEWS, "rating"))


def as_text(answer: dict[str, Any]) -> str:
    """Return an answer as ASCII JSON; NaN and infinity become null."""
    return json.dumps(to_plain(answer), allow_nan=False)


def _texts(entries: Iterable[Entry]) -> Iterable[str]:
    for entry in entries:
        yield from entry.item.untrusted
        yield from (entry.judgement.critique, entry.judgement.thinking, entry.judgement.reason)


def _response(own: IndexedCandidate, row: JudgedRow, entry: Entry | None) -> str:
    return entry.item.responses[row.responses.index(own.response)] if entry else ""


def _compared(row: JudgedRow, entry: Entry) -> dict[str, Any]:
    one, two = map(str, row.responses)
    return {"one": one, "two": two} | comparison_details(entry.judgement)


def _said(
    name: str, rows: list[JudgedRow], checked: list[JudgedRow], texts: Mapping[Any, Entry]
) -> dict[str, Any]:
    """Return a candidate in full. rows: its judgements. checked: those of rubric items."""
    items = [texts[row.place] for row in checked if row.place in texts]
    known = [(row, texts[row.place]) for row in rows if row.place in texts]
    response = ""
    if known:
        row, entry = known[0]
        response = entry.item.responses[list(map(str, row.responses)).index(name)]
    return {
        "name": name,
        "response": displayed_text(response),
        "judgements": [
            judgement_details(e.judgement, row.mark.kind, e.item.sample) | {"about": _about(e.item)}
            for row, e in known
            if row.mark.kind != COMPARISON
        ],
        "rubric": rubric_on_record((e.item, e.judgement) for e in items),
    }


def _about(item: JudgeInput) -> str:
    """Return the criterion of the rubric item that an input asks about; empty unless it is one."""
    return excerpt(item.items[0].criterion) if len(item.items) == 1 else ""


def _standing(
    rows: list[JudgedRow], ranked: tuple[tuple[int, ...], Ranking] | None
) -> list[IndexedCandidate]:
    """Return the rated candidates, followed by those that were only judged beside others.

    The latter have their score in `ranked`, if no candidate was rated alone.
    """
    found = standers(rows)
    scores = dict(zip(ranked[0], ranked[1].scores, strict=True)) if ranked and not found else {}
    names = {own.response for own in found}
    for row in rows:
        for name in row.responses:
            if name not in names:
                names.add(name)
                alone = IndexedCandidate(name, [row.id], [row.mark], scores.get(name))
                found.append(alone)
    return found


def _ordered(found: list[IndexedCandidate], view: int) -> list[IndexedCandidate]:
    """Return the candidates, best first in the view.

    Equal values are ordered by expected rating. Candidates without a value come last.
    """

    def rank(own: IndexedCandidate) -> tuple[bool, float, float]:
        values = own.result().values
        value, expected = values[view], values[VIEWS.index("expected")]
        return value is None, -(value or 0.0), -(expected or 0.0)

    return sorted(found, key=rank)


def _number(given: Given, name: str, default: int = 0) -> int:
    text = given.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise InputError(f"{name}: {text[:40]!r} is no number")
    return int(text)


def _one_of(given: Given, name: str, known: tuple[str, ...], default: str) -> str:
    value = given.get(name, default)
    if value not in known:
        raise InputError(f"{name}: {value[:40]!r} is none of {', '.join(known)}")
    return value
