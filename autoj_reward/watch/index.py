"""Index of a run's judgements, without their texts, for filtering, sorting and counting.

It is a temporary SQLite database without a name, deleted when the process ends. It has a row for
each judgement and one for each query. The texts stay in the journals and are read from there by
key.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, NamedTuple

from autoj_reward.config import Vote
from autoj_reward.conversation import media_of
from autoj_reward.journal.reading import Entry
from autoj_reward.questions.rate import vote_of
from autoj_reward.types import DIRECT, Judgement, Outcome, Reading, Usage
from autoj_reward.watch.relative import ranking_of
from autoj_reward.watch.statistics import (
    VIEWS,
    CandidateResult,
    QueryStanding,
    RunStatistics,
    result_of,
    standing,
    standing_of,
)
from autoj_reward.watch.timeline import ALONE, RATING, Mark, Timeline, mark_of

MARK, STANDING = ", ".join(Mark._fields), ", ".join(QueryStanding._fields)
SCHEMA = f"""
PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;
CREATE TABLE judged (id INTEGER PRIMARY KEY, journal INTEGER, key TEXT, asked INTEGER,
    responses TEXT, {MARK});
CREATE UNIQUE INDEX judged_by_key ON judged (key, journal);
CREATE INDEX judged_by_query ON judged (asked);
CREATE TABLE asked (id INTEGER PRIMARY KEY, name INTEGER UNIQUE, judge INTEGER,
    last DEFAULT 0, judged DEFAULT 0, candidates DEFAULT 0, failed DEFAULT 0,
    outcomes DEFAULT 0, flags DEFAULT 0);
CREATE INDEX asked_by_age ON asked (judge, last);
CREATE TABLE standings (asked INTEGER, view INTEGER, {STANDING},
    PRIMARY KEY (asked, view)) WITHOUT ROWID;
"""
OWN = "id, journal, key, asked, responses"
PUT = f"""
INSERT OR REPLACE INTO judged ({OWN}, {MARK})
VALUES ({", ".join("?" * (5 + len(Mark._fields)))})
"""
AS_JSON = ("scores", "flags")
"""Fields of a mark that are stored as JSON."""
OUTCOMES = {outcome.value: 1 << n for n, outcome in enumerate(Outcome)}
"""Bit of each outcome in a query's `outcomes` column."""
ORDERS = {
    "newest": "last DESC",
    "oldest": "last",
    "spread": "best - worst DESC",
    "highest": "best DESC",
    "lowest": "worst IS NULL, worst",
    "tied": "CAST(tied AS REAL) / pairs DESC",
    "failures": "failed DESC",
}
"""SQL order of each sort order of queries."""
FLAGS = 62
"""Maximum flags to filter by: they are bits of SQLite's integers."""


class TextPlace(NamedTuple):
    """Location of a judgement's texts."""

    journal: int
    """Number of the journal."""
    key: str
    """Key of the judgement in that journal."""


class Filter(NamedTuple):
    """Filter and sort order of a list of queries."""

    judge: int
    """Index of the judge."""
    view: int = 0
    """Index in VIEWS."""
    order: str = "newest"
    """Name in ORDERS."""
    outcome: str = ""
    """Outcome that at least one judgement of the query must have; empty for all queries."""
    flag: str = ""
    """Flag that at least one judgement of the query must have; empty for all queries."""


class JudgedRow(NamedTuple):
    """A judgement in the index."""

    id: int
    place: TextPlace
    responses: tuple[int, ...]
    """Hashes of its responses, in the order shown."""
    mark: Mark


@dataclass(slots=True)
class IndexedCandidate:
    """A candidate of a query with its judgements."""

    response: int
    """Hash of the response."""
    vote: Vote
    """How the ratings of its critiques make one."""
    rows: list[int] = field(default_factory=list)
    """Ids of its judgements alone, in order of arrival. If it was only compared: the first
    comparison's id."""
    marks: list[Mark] = field(default_factory=list)
    score: float | None = None
    """Score among the query's responses, if they were only judged together."""

    def result(self) -> CandidateResult:
        """Return the result of its judgements, counted as in a job: k critiques make one result.

        Without a rating it is ok if at least half of the judgements are, as for rubric items.
        """
        ratings = [mark for mark in self.marks if mark.kind == RATING]
        others = [mark for mark in self.marks if mark.kind != RATING]
        direct = _average([mark.direct for mark in others])
        if not ratings:
            ok = [mark for mark in others if mark.outcome == Outcome.OK]
            failed = [mark for mark in others if mark.outcome != Outcome.OK]
            first = ok[0] if ok and len(ok) >= len(failed) else failed[0]
            return CandidateResult(
                first.outcome,
                first.reason,
                (self.score, None, direct, None),
                any(mark.forced for mark in others),
                tuple(sorted({flag for mark in others for flag in mark.flags})),
                sum(map(_restore_usage, others), Usage()),
            )
        result = result_of(vote_of([_restore_judgement(mark) for mark in ratings], self.vote))
        value, expected, voted_direct, pessimistic = result.values
        values = value, expected, direct if voted_direct is None else voted_direct, pessimistic
        return result._replace(values=values)


def group_by_candidate(rows: Iterable[JudgedRow], vote: Vote) -> list[IndexedCandidate]:
    """Return the candidates of a query's judgements; comparisons do not make candidates.

    vote: how the ratings of a candidate's critiques make one.
    """
    candidates: dict[int, IndexedCandidate] = {}
    for row in rows:
        if row.mark.kind in ALONE:
            name = row.responses[0]
            candidate = candidates.setdefault(name, IndexedCandidate(name, vote))
            candidate.rows.append(row.id)
            candidate.marks.append(row.mark)
    return list(candidates.values())


def scores_in_group(rows: Sequence[JudgedRow], results: Sequence[CandidateResult]) -> list[float]:
    """Return the scores that a query's responses got from judging them as a group.

    Returns [] without such a judgement. Also returns [] if responses were rated alone, since the
    page then shows their ratings.
    """
    if any(value is not None for result in results for value in result.values):
        return []
    ranked = ranking_of([(row.responses, row.mark) for row in rows])
    return [score for score in ranked[1].scores if score is not None] if ranked else []


class Index:
    """Index of judgements and queries for each judge of a run.

    Not thread-safe: use it from one thread at a time.
    """

    def __init__(self) -> None:
        self._db = sqlite3.connect("", check_same_thread=False, isolation_level=None)
        self._db.executescript(SCHEMA)
        self.judges: list[str] = []
        self.timelines: list[Timeline] = []
        self.statistics: list[RunStatistics] = []
        self.flags: dict[str, int] = {}
        self.vote: Vote = "mean"
        """How the ratings of a candidate's critiques make one; set it with `use_vote`."""
        self._counted: dict[int, list[CandidateResult]] = {}

    def add(self, journal: int, entries: Sequence[Entry]) -> None:
        """Add judgements; each replaces an earlier one with the same key."""
        self._db.execute("BEGIN")
        for entry in entries:
            self._add(journal, entry)
        self._db.execute("COMMIT")

    def _add(self, journal: int, entry: Entry) -> None:
        if entry.judge not in self.judges:
            self.judges.append(entry.judge)
            self.timelines.append(Timeline())
            self.statistics.append(RunStatistics())
        judge, mark = self.judges.index(entry.judge), mark_of(entry)
        for flag in mark.flags:
            self.flags.setdefault(flag, 1 << min(len(self.flags), FLAGS))
        where = "WHERE key = ? AND journal = ?"
        old = self._select_rows(where, (entry.key, journal))
        for row in old:
            self.timelines[judge].add(row.mark, -1)
        self.timelines[judge].add(mark)
        item = entry.item
        prompt = [item.prompt.text, *(media.sha256 for media in media_of(item.prompt.turns))]
        query_id = self._find_query_id(
            judge, _hash_parts(entry.judge, *prompt, *sorted(item.context.items()))
        )
        responses = json.dumps([_hash_parts(response.record()) for response in item.responses])
        if query_id not in self._counted:
            self._counted[query_id] = self._list_results(query_id)
        number = old[0].id if old else None
        flat = mark._asdict() | {name: json.dumps(getattr(mark, name)) for name in AS_JSON}
        self._db.execute(PUT, (number, journal, entry.key, query_id, responses, *flat.values()))

    def _find_query_id(self, judge: int, name: int) -> int:
        row = self._db.execute("SELECT id FROM asked WHERE name = ?", (name,)).fetchone()
        if not row:
            statement = "INSERT INTO asked (name, judge) VALUES (?, ?) RETURNING id"
            row = self._db.execute(statement, (name, judge)).fetchone()
        return int(row[0])

    def _list_results(self, query_id: int) -> list[CandidateResult]:
        candidates = group_by_candidate(self.rows(query_id), self.vote)
        return [candidate.result() for candidate in candidates]

    def use_vote(self, vote: Vote) -> None:
        """Set how the ratings of a candidate's critiques make one. Another vote than before counts
        every query again at the next `settle`."""
        if vote == self.vote:
            return
        self.vote = vote
        self.statistics = [RunStatistics() for _ in self.judges]
        self._counted = {number: [] for (number,) in self._db.execute("SELECT id FROM asked")}

    def settle(self) -> None:
        """Update the statistics and standings of queries with new judgements."""
        self._db.execute("BEGIN")
        for query_id, old_results in self._counted.items():
            self._settle(query_id, old_results)
        self._db.execute("COMMIT")
        self._counted.clear()

    def _settle(self, query_id: int, old_results: list[CandidateResult]) -> None:
        rows = self.rows(query_id)
        results = [candidate.result() for candidate in group_by_candidate(rows, self.vote)]
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
                len(results),
                sum(row.mark.outcome != "ok" for row in rows),
                outcomes,
                flags,
                query_id,
            ),
        ).fetchone()
        if old_results:
            self.statistics[judge].add(old_results, -1)
        if results:
            self.statistics[judge].add(results)
        group_scores = scores_in_group(rows, results)
        for view in range(len(VIEWS)):
            self._db.execute("DELETE FROM standings WHERE asked = ? AND view = ?", (query_id, view))
            new = standing(results, view) or (standing_of(group_scores) if group_scores else None)
            if new:
                marks = ", ".join("?" * (2 + len(new)))
                self._db.execute(f"INSERT INTO standings VALUES ({marks})", (query_id, view, *new))

    def rows(self, query_id: int, most: int = -1) -> list[JudgedRow]:
        """Return a query's judgements in order of arrival, at most `most`; -1 means all."""
        return self._select_rows("WHERE asked = ? ORDER BY id LIMIT ?", (query_id, most))

    def _select_rows(self, where: str, values: Sequence[Any]) -> list[JudgedRow]:
        records = self._db.execute(
            f"SELECT id, journal, key, responses, {MARK} FROM judged {where}", values
        )
        return [
            JudgedRow(i, TextPlace(journal, key), tuple(json.loads(responses)), _restore_mark(mark))
            for i, journal, key, responses, *mark in records
        ]

    def queries(self, query_filter: Filter, start: int, most: int) -> list[dict[str, Any]]:
        """Return at most `most` queries from position `start` on, with their standing in
        the view."""
        where, values = self._build_where(query_filter)
        cursor = self._db.execute(
            f"SELECT id, last, judged, candidates, failed, {STANDING} FROM asked LEFT JOIN"
            f" standings ON asked.id = standings.asked AND view = ? WHERE {where}"
            f" ORDER BY {ORDERS[query_filter.order]}, id LIMIT ? OFFSET ?",
            (query_filter.view, *values, most, start),
        )
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]

    def count(self, query_filter: Filter) -> int:
        """Return the number of queries that pass the filter."""
        where, values = self._build_where(query_filter)
        row = self._db.execute(f"SELECT count(*) FROM asked WHERE {where}", values).fetchone()
        return int(row[0])

    def _build_where(self, query_filter: Filter) -> tuple[str, list[int]]:
        parts, values = ["judge = ?"], [query_filter.judge]
        if query_filter.outcome:
            parts.append("outcomes & ?")
            values.append(OUTCOMES.get(query_filter.outcome, 0))
        if query_filter.flag:
            parts.append("flags & ?")
            values.append(self.flags.get(query_filter.flag, 0))
        return " AND ".join(parts), values

    def find_times(self, journal: int, keys: Sequence[str]) -> dict[str, float]:
        """Return {key: time} of the given keys of a journal that are in the index."""
        marks = ", ".join("?" * len(keys))
        where = f"SELECT key, at FROM judged WHERE key IN ({marks}) AND journal = ?"
        return dict(self._db.execute(where, (*keys, journal)).fetchall())

    def places(self, query_id: int, most: int) -> list[TextPlace]:
        """Return the text locations of at most `most` judgements of a query."""
        where = "SELECT journal, key FROM judged WHERE asked = ? LIMIT ?"
        cursor = self._db.execute(where, (query_id, most))
        return [TextPlace(*row) for row in cursor]

    def close(self) -> None:
        self._db.close()


def _restore_judgement(mark: Mark) -> Judgement:
    """Return a judgement with what aggregation needs of an indexed rating.

    Distributions are not kept. A certain rating with the same soft minimum stands for each.
    """
    readings = list[Reading]()
    if mark.rating is not None:
        rating, low = mark.rating, mark.pessimistic
        distribution = None if low is None else ((repr(low), 1.0),)
        readings.append(
            Reading(RATING, "", rating, distribution, mark.expected, forced=mark.forced)
        )
        if mark.direct is not None:
            readings.append(Reading(DIRECT, "", mark.direct, expected=mark.direct))
    all_readings = tuple(readings)
    outcome = Outcome(mark.outcome)
    return Judgement(
        outcome, mark.reason, readings=all_readings, usage=_restore_usage(mark), flags=mark.flags
    )


def _restore_usage(mark: Mark) -> Usage:
    tokens = mark.tokens_in, mark.tokens_cached, mark.tokens_out
    return Usage(*tokens, mark.latency_s, mark.queued_s, mark.usd)


def _average(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return fmean(numbers) if numbers else None


def _restore_mark(values: Sequence[Any]) -> Mark:
    flat = Mark(*values)
    lists = {name: json.loads(getattr(flat, name)) for name in AS_JSON}
    return flat._replace(
        forced=bool(flat.forced),
        flags=tuple(lists["flags"]),
        scores=tuple((score, forced) for score, forced in lists["scores"]),
    )


def _hash_parts(*parts: Any) -> int:
    """Return a 64-bit hash of the parts, never 0."""
    text = json.dumps(parts).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big", signed=True) or 1
