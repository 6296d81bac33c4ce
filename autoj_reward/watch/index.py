"""What of a run's judgements the page filters, sorts and counts by, without their texts.

It stands in a temporary file of SQLite's own, which has no name and goes with the process: a line
a judgement, one a query. The texts stay in the journals, and are read from there by key.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from autoj_reward.journal.reading import Entry
from autoj_reward.types import Outcome
from autoj_reward.watch.figures import Figures, Mark, mark_of
from autoj_reward.watch.standing import VIEWS, Standing, Totals, standers, standing

MARK, STANDING = ", ".join(Mark._fields), ", ".join(Standing._fields)
SCHEMA = f"""
PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;
CREATE TABLE judged (id INTEGER PRIMARY KEY, journal INTEGER, key TEXT, asked INTEGER,
    one INTEGER, two INTEGER, {MARK});
CREATE UNIQUE INDEX judged_by_key ON judged (key, journal);
CREATE INDEX judged_by_query ON judged (asked);
CREATE TABLE asked (id INTEGER PRIMARY KEY, name INTEGER UNIQUE, judge INTEGER,
    last DEFAULT 0, judged DEFAULT 0, candidates DEFAULT 0, failed DEFAULT 0,
    outcomes DEFAULT 0, flags DEFAULT 0);
CREATE INDEX asked_by_age ON asked (judge, last);
CREATE TABLE standings (asked INTEGER, view INTEGER, {STANDING},
    PRIMARY KEY (asked, view)) WITHOUT ROWID;
"""
OWN = "id, journal, key, asked, one, two"
PUT = f"""
INSERT OR REPLACE INTO judged ({OWN}, {MARK})
VALUES ({", ".join("?" * (6 + len(Mark._fields)))})
"""
OUTCOMES = {outcome.value: 1 << n for n, outcome in enumerate(Outcome)}
ORDERS = {
    "newest": "last DESC",
    "oldest": "last",
    "spread": "best - worst DESC",
    "highest": "best DESC",
    "lowest": "worst IS NULL, worst",
    "tied": "CAST(tied AS REAL) / pairs DESC",
    "failures": "failed DESC",
}
"""How queries can be sorted, and by what."""
FLAGS = 62
"""Flags that can be filtered by: bits of SQLite's integers."""


class Place(NamedTuple):
    """Where the texts of a judgement are."""

    journal: int
    key: str


class Filter(NamedTuple):
    """Which queries, and in which order. outcome, flag: of any of their judgements."""

    judge: int
    view: int = 0
    order: str = "newest"
    outcome: str = ""
    flag: str = ""


class Row(NamedTuple):
    """A judgement of a query. one, two: names of its responses; two is 0 where there is one."""

    id: int
    place: Place
    one: int
    two: int
    mark: Mark


class Index:
    """Everything by judge: a journal may hold several. Use it from one thread at a time."""

    def __init__(self) -> None:
        self._db = sqlite3.connect("", check_same_thread=False, isolation_level=None)
        self._db.executescript(SCHEMA)
        self.judges: list[str] = []
        self.figures: list[Figures] = []
        self.totals: dict[tuple[int, int], Totals] = defaultdict(Totals)
        self.flags: dict[str, int] = {}
        self._unsettled: set[int] = set()

    def add(self, journal: int, entries: Sequence[Entry]) -> None:
        """Count judgements, each in the place of an earlier one of the same key."""
        self._db.execute("BEGIN")
        for entry in entries:
            self._add(journal, entry)
        self._db.execute("COMMIT")

    def _add(self, journal: int, entry: Entry) -> None:
        if entry.judge not in self.judges:
            self.judges.append(entry.judge)
            self.figures.append(Figures())
        judge, mark = self.judges.index(entry.judge), mark_of(entry)
        for flag in mark.flags:
            self.flags.setdefault(flag, 1 << min(len(self.flags), FLAGS))
        where = "WHERE key = ? AND journal = ?"
        old = self._rows(where, (entry.key, journal))
        for row in old:
            self.figures[judge].add(row.mark, -1)
        self.figures[judge].add(mark)
        item = entry.item
        asked = self._asked(judge, _name(entry.judge, item.query, *sorted(item.context.items())))
        one, two = (*(_name(text) for text in item.responses), 0)[:2]
        number = old[0].id if old else None
        flat = mark._replace(flags=json.dumps(mark.flags))  # type: ignore[arg-type]
        self._db.execute(PUT, (number, journal, entry.key, asked, one, two, *flat))
        self._unsettled.add(asked)

    def _asked(self, judge: int, name: int) -> int:
        found = self._db.execute("SELECT id FROM asked WHERE name = ?", (name,)).fetchone()
        if not found:
            put = "INSERT INTO asked (name, judge) VALUES (?, ?) RETURNING id"
            found = self._db.execute(put, (name, judge)).fetchone()
        return int(found[0])

    def settle(self) -> None:
        """Bring the standings of queries up to what was added."""
        self._db.execute("BEGIN")
        for asked in self._unsettled:
            self._settle(asked)
        self._db.execute("COMMIT")
        self._unsettled.clear()

    def _settle(self, asked: int) -> None:
        rows = self.rows(asked)
        candidates = standers((row.id, row.one, row.mark) for row in rows)
        outcomes = flags = 0
        for row in rows:
            outcomes |= OUTCOMES[row.mark.outcome]
            for flag in row.mark.flags:
                flags |= self.flags[flag]
        (judge,) = self._db.execute(
            "UPDATE asked SET last = ?, judged = ?, candidates = ?, failed = ?, outcomes = ?,"
            " flags = ? WHERE id = ? RETURNING judge",
            (
                max(row.mark.at for row in rows),
                len(rows),
                len(candidates),
                sum(row.mark.outcome != "ok" for row in rows),
                outcomes,
                flags,
                asked,
            ),
        ).fetchone()
        for view in range(len(VIEWS)):
            self._stand(judge, asked, view, standing(candidates, view))

    def _stand(self, judge: int, asked: int, view: int, new: Standing | None) -> None:
        totals, key = self.totals[judge, view], (asked, view)
        where = "FROM standings WHERE asked = ? AND view = ?"
        if old := self._db.execute(f"SELECT {STANDING} {where}", key).fetchone():
            totals.add(Standing(*old), -1)
            self._db.execute(f"DELETE {where}", key)
        if new:
            totals.add(new)
            marks = ", ".join("?" * (2 + len(Standing._fields)))
            self._db.execute(f"INSERT INTO standings VALUES ({marks})", (*key, *new))

    def rows(self, asked: int, most: int = -1) -> list[Row]:
        """A query's judgements, in the order in which they came in: all, or the first so many."""
        return self._rows("WHERE asked = ? ORDER BY id LIMIT ?", (asked, most))

    def _rows(self, where: str, values: Sequence[Any]) -> list[Row]:
        found = self._db.execute(
            f"SELECT id, journal, key, one, two, {MARK} FROM judged {where}", values
        )
        return [
            Row(i, Place(journal, key), one, two, _mark(mark))
            for i, journal, key, one, two, *mark in found
        ]

    def queries(self, wanted: Filter, start: int, most: int) -> list[dict[str, Any]]:
        """So many queries from the start-th on, each with its standing in the view."""
        where, values = self._where(wanted)
        found = self._db.execute(
            f"SELECT id, last, judged, candidates, failed, {STANDING} FROM asked LEFT JOIN"
            f" standings ON asked.id = standings.asked AND view = ? WHERE {where}"
            f" ORDER BY {ORDERS[wanted.order]}, id LIMIT ? OFFSET ?",
            (wanted.view, *values, most, start),
        )
        names = [column[0] for column in found.description]
        return [dict(zip(names, row, strict=True)) for row in found]

    def count(self, wanted: Filter) -> int:
        """Of the queries that pass."""
        where, values = self._where(wanted)
        found = self._db.execute(f"SELECT count(*) FROM asked WHERE {where}", values).fetchone()
        return int(found[0])

    def _where(self, wanted: Filter) -> tuple[str, list[int]]:
        parts, values = ["judge = ?"], [wanted.judge]
        if wanted.outcome:
            parts.append("outcomes & ?")
            values.append(OUTCOMES.get(wanted.outcome, 0))
        if wanted.flag:
            parts.append("flags & ?")
            values.append(self.flags.get(wanted.flag, 0))
        return " AND ".join(parts), values

    def known(self, journal: int, keys: Sequence[str]) -> dict[str, float]:
        """The times of those of a journal's keys that are here."""
        marks = ", ".join("?" * len(keys))
        where = f"SELECT key, at FROM judged WHERE key IN ({marks}) AND journal = ?"
        return dict(self._db.execute(where, (*keys, journal)).fetchall())

    def places(self, asked: int, most: int) -> list[Place]:
        """Where the texts of so many of a query's judgements are."""
        where = "SELECT journal, key FROM judged WHERE asked = ? LIMIT ?"
        found = self._db.execute(where, (asked, most))
        return [Place(*row) for row in found]

    def close(self) -> None:
        self._db.close()


def _mark(values: Sequence[Any]) -> Mark:
    flat = Mark(*values)
    return flat._replace(forced=bool(flat.forced), flags=tuple(json.loads(str(flat.flags))))


def _name(*parts: Any) -> int:
    """A text, or several, as a number of 64 bits, never 0."""
    text = json.dumps(parts).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big", signed=True) or 1
