"""What the page asks for, each a small JSON object, whatever the size of the run.

    run         the run in figures, for one judge
    queries     a page of queries, sorted, filtered and searched
    query       one query with its candidates and comparisons
    pair        two of its candidates, or one, with all that was said of them
    curves      what a trainer logged

Texts are cut at a length and made visible (`io/page.py`); the page shows them as text alone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from autoj_reward.errors import InputError
from autoj_reward.io.files import to_plain
from autoj_reward.io.page import visible
from autoj_reward.watch.details import (
    candidate,
    comparison,
    excerpt,
    judged,
    shown,
    summary_figures,
)
from autoj_reward.watch.figures import COMPARISON, Figures
from autoj_reward.watch.index import ORDERS, Filter, Row
from autoj_reward.watch.run import Run
from autoj_reward.watch.search import search
from autoj_reward.watch.standing import VIEWS, Stander, standers

PAGE = 20
JUDGED = 20_000
"""Most judgements of a query that are read."""
CANDIDATES = 200
"""Most candidates of a query that are listed: its best, and its worst."""
SAID = 16
"""Most judgements of a candidate, and comparisons of two, that are shown whole."""
COMPARISONS = 100

Given = Mapping[str, str]


class Answers:
    """Answers for one run. Raises InputError for a question that is none."""

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
        if name not in self._about:
            raise InputError(f"{name[:80]!r}: ask for one of {', '.join(self._about)}")
        return self._about[name](given)

    def _figures(self, given: Given) -> dict[str, Any]:
        run, judge = self._run, self._judge(given)
        with run.lock:
            index = run.index
            own = index.figures[judge] if index.figures else Figures()
            figures = own.told(self._now())
            views = {name: index.totals[judge, n].told() for n, name in enumerate(VIEWS)}
            judges, flags = list(index.judges), list(index.flags)
        return {
            "name": visible(run.path.name or run.path.absolute().name),
            "path": visible(run.path),
            "state": run.state(),
            "total": run.total(),
            "now": self._now(),
            "reading": not run.read_all,
            "trouble": visible(run.trouble),
            "damaged": run.damaged,
            "judges": [shown(name, 300) for name in judges],
            "judge": judge,
            "all_flags": flags,
            "views": views,
            "summary": summary_figures(run.summary()),
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
        found = search(self._run, wanted, text, start, PAGE)
        return {
            "total": total,
            "next": found.next,
            "rows": [self._line(row, wanted.view) for row in found.rows],
        }

    def _line(self, row: dict[str, Any], view: int) -> dict[str, Any]:
        with self._run.lock:
            judged = self._run.index.rows(row["id"], 4 * CANDIDATES)
        entry = self._run.texts([judged[0].place]).get(judged[0].place)
        values = sorted(v for own in _standing(judged) if (v := own.values[view]) is not None)
        text = excerpt(entry.item.query) if entry else ""
        return row | {"text": text, "values": values}

    def _query(self, given: Given) -> dict[str, Any]:
        number, view = _number(given, "id"), self._view(given)
        rows = self._rows(number)
        found = _ordered(_standing(rows), view)
        listed = found[: CANDIDATES // 2] + found[CANDIDATES // 2 :][-CANDIDATES // 2 :]
        pairs = [row for row in rows if row.mark.kind == COMPARISON][:COMPARISONS]
        by_id = {row.id: row for row in rows}
        first = [by_id[own.rows[0]] for own in listed]
        texts = self._run.texts([row.place for row in (*first, *pairs[:1], *rows[:1])])
        item = next((entry.item for entry in texts.values()), None)
        return {
            "id": number,
            "text": shown(item.query) if item else "",
            "context": {visible(k): shown(v) for k, v in item.context.items()} if item else {},
            "total": len(found),
            "candidates": [
                candidate(own, row, texts.get(row.place))
                for own, row in zip(listed, first, strict=True)
            ],
            "comparisons": [
                {"one": str(row.one), "two": str(row.two), "verdict": row.mark.verdict,
                 "outcome": row.mark.outcome} for row in pairs
            ],
        }  # fmt: skip

    def _pair(self, given: Given) -> dict[str, Any]:
        rows = self._rows(_number(given, "id"))
        names = [name for key in ("one", "two") if (name := given.get(key, ""))]
        both = {str(row.id): row for row in rows if {str(row.one), str(row.two)} == set(names)}
        of = {name: [r for r in rows if str(r.one) == name or str(r.two) == name] for name in names}
        alone = {name: [r for r in own if r.mark.kind != COMPARISON] for name, own in of.items()}
        picked = {name: (alone[name] or of[name])[:SAID] for name in names}
        compared = [row for row in both.values() if row.mark.kind == COMPARISON][:SAID]
        wanted = [row.place for own in picked.values() for row in own]
        texts = self._run.texts([*wanted, *(row.place for row in compared)])
        return {
            "candidates": [_said(name, picked[name], texts) for name in names],
            "comparisons": [
                comparison(row, entry) for row in compared if (entry := texts.get(row.place))
            ],
        }

    def _rows(self, number: int) -> list[Row]:
        with self._run.lock:
            rows = self._run.index.rows(number, JUDGED)
        if not rows:
            raise InputError(f"id: no query {number}")
        return rows

    def _judge(self, given: Given) -> int:
        with self._run.lock:
            figures = self._run.index.figures
            latest = max(range(len(figures)), key=lambda n: figures[n].last, default=0)
        judge = _number(given, "judge", latest)
        if judge and judge >= len(figures):
            raise InputError(f"judge: no judge {judge}")
        return judge

    def _view(self, given: Given) -> int:
        return VIEWS.index(_one_of(given, "view", VIEWS, "rating"))


def as_text(answer: dict[str, Any]) -> str:
    """JSON of ASCII alone; numbers that it lacks become null."""
    return json.dumps(to_plain(answer), allow_nan=False)


def _said(name: str, rows: list[Row], texts: Mapping[Any, Any]) -> dict[str, Any]:
    known = [(row, texts[row.place]) for row in rows if row.place in texts]
    response = ""
    if known:
        row, entry = known[0]
        response = entry.item.responses[str(row.one) != name]
    return {
        "name": name,
        "response": shown(response),
        "judgements": [judged(row, e) for row, e in known if row.mark.kind != COMPARISON],
    }


def _standing(rows: list[Row]) -> list[Stander]:
    """The rated candidates, and those that were only compared."""
    found = standers((row.id, row.one, row.mark) for row in rows)
    names = {own.response for own in found}
    for row in rows:
        for name in (row.one, row.two):
            if name and name not in names:
                names.add(name)
                found.append(Stander(name, [row.id], [row.mark]))
    return found


def _ordered(found: list[Stander], view: int) -> list[Stander]:
    """Best first in the view, equal ones by their expected rating, those without a number last."""

    def rank(own: Stander) -> tuple[bool, float, float]:
        value, expected = own.values[view], own.values[VIEWS.index("expected")]
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
