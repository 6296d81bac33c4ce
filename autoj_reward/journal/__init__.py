"""Journal: every judgement in an SQLite file in WAL mode, written before the judgement is used.

One file serves resuming, caching across runs and auditing. A row's key is the SHA-256 of the
judge's fingerprint and the exact input, so another judge or a changed byte is another row. Records
stay: of several judgements of one input the first OK one counts, whoever wrote it. Each row has a
checksum, which detects damage. Texts are compressed, and those of inputs are stored once. Files of
an earlier format are refused.
"""

from __future__ import annotations

import json
import math
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from autoj_reward.io.files import to_compact_json
from autoj_reward.journal import tables
from autoj_reward.journal.errors import BROKEN, explain_error, make_damage_error, make_format_error
from autoj_reward.journal.records import (
    SampledResponses,
    digest,
    judgement_cell,
    judgement_key,
    judgement_record,
    read_judgement,
)
from autoj_reward.journal.texts import Texts
from autoj_reward.types import JudgeInput, Judgement, Outcome

__all__ = ["Journal", "SampledResponses", "judgement_key", "read_judgement"]

T = TypeVar("T")
Row = tuple[Any, ...]
Judged = tuple[str, JudgeInput, Judgement]
"""A judge's fingerprint, its input, and the judgement."""
PATIENCE_S = 60
"""Seconds to wait while other processes hold the file."""
DROPPED = 256
"""Judgements dropped at a time when the file is full: few enough for a short pause, enough that
drops are rare."""
MISSING = 8192
"""Maximum number of inputs whose keys are cached between looking them up and storing them."""


class Journal:
    """An open journal file. Use it from one thread; several processes may share the file.

    max_gib: size in GiB at which new judgements replace the oldest ones; None for no limit. Raises
    JournalError if the file cannot be opened or is not a journal of this format.
    """

    def __init__(self, path: Path, max_gib: float | None = None) -> None:
        self.path = path
        self._most = None if max_gib is None else max_gib * 2**30
        self._texts = Texts(self._execute)
        self._missing: dict[tuple[str, JudgeInput], str] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with ExitStack() as refused:
                database = sqlite3.connect(path, timeout=PATIENCE_S, isolation_level=None)
                self._db = refused.enter_context(closing(database))
                # Damage is detected by the checksum, so decoding must not fail first.
                self._db.text_factory = lambda text: text.decode("utf-8", "surrogateescape")
                self._write_ahead()
                self._db.execute("PRAGMA synchronous=NORMAL")
                self._make_tables()
                refused.pop_all()
        except (OSError, *BROKEN) as error:
            raise explain_error(path, error, opening=True) from error

    def _write_ahead(self) -> None:
        """Set WAL mode. While other processes set it too SQLite fails without waiting, so retry."""
        last = time.monotonic() + PATIENCE_S
        while True:
            try:
                self._db.execute("PRAGMA journal_mode=WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > last:
                    raise
                time.sleep(0.01)

    def _make_tables(self) -> None:
        """Create missing tables. Raises JournalError for a file of another format."""
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")  # several processes may open a new file at once
            version = self._db.execute(tables.VERSION).fetchone()
            for name, columns in tables.TABLES.items():
                self._db.execute(f"CREATE TABLE IF NOT EXISTS {name} ({columns})")
                info = self._db.execute(f"PRAGMA table_info({name})").fetchall()
                if tables.KEYS[name] not in {column[1] for column in info}:
                    raise sqlite3.DatabaseError(f"its table {name} is no journal's")
            if version is None:
                self._db.execute(tables.SET_FORM)
            elif version != (tables.FORM,):
                raise make_format_error(self.path)
            for index in tables.BY_AGE if self._most is not None else ():
                self._db.execute(index)

    def get(self, judge: str, items: Sequence[JudgeInput]) -> dict[JudgeInput, Judgement]:
        """Return the judgements on record, by input. Those that are `unavailable` are left out."""
        keys = {judgement_key(judge, item): item for item in items}
        judgements: dict[JudgeInput, Judgement] = {}
        for chunk in _split(list(keys), 500):
            marks = ",".join("?" * len(chunk))
            for row in self._execute(f"{tables.JUDGED} WHERE key IN ({marks})", chunk):
                judgement = self._read(row, _read_row)
                if judgement.outcome is not Outcome.UNAVAILABLE and row[0] in keys:
                    judgements[keys[row[0]]] = judgement
        if len(self._missing) + len(keys) > MISSING:
            self._missing.clear()
        self._missing |= {(judge, i): key for key, i in keys.items() if i not in judgements}
        return judgements

    def put(self, judge: str, item: JudgeInput, judgement: Judgement) -> Judgement:
        """Store one judgement; see `put_all`."""
        return self.put_all([(judge, item, judgement)])[0]

    def put_all(self, judged: Sequence[Judged]) -> list[Judgement]:
        """Store judgements. All are on disk when this returns.

        Returns the judgement on record for each input. That is an earlier one if it was OK, or if
        it failed and the new one failed too. An earlier OK one without an expected rating is
        replaced by an OK one that has it.
        """
        with self._writing():
            at = self._date_rows()
            on_record = [self._put(*inputs, at) for inputs in judged]
            # The file itself is never replaced: other processes have it open.
            if self._most is not None and self._execute(tables.USED, ())[0][0] > self._most:
                self._execute(tables.DROP_OLDEST, (at, DROPPED + len(judged)))
                self._execute(tables.DROP_TEXTS, ())
        return on_record

    def _date_rows(self) -> float:
        """Return the time of new rows.

        With a limit on the size it is later than that of every row on record: a clock that was
        ahead, and has been set back, must not make the newest rows the oldest.
        """
        now = time.time()
        if self._most is None:
            return now
        [(newest,)] = self._execute(tables.NEWEST, ())
        return max(now, math.nextafter(newest, math.inf))

    def _put(self, judge: str, item: JudgeInput, judgement: Judgement, at: float) -> Judgement:
        row = self._make_row(judge, item, judgement, at)
        if self._execute(tables.PUT, row):
            return judgement
        recorded = self.get(judge, [item]).get(item, judgement)
        if not recorded.lacks("expected") or judgement.lacks("expected") or not judgement.ok:
            return recorded
        key, _, _, _, cell, _, _ = row  # the recorded one lacks a number, so it was judged again
        [(input_cell,)] = self._execute("SELECT input FROM judgements WHERE key = ?", (key,))
        row = _seal(key, judge, str(judgement.outcome), input_cell, cell, at)
        self._execute(tables.REPLACE, (cell, at, row[-1], key))
        return judgement

    def finding(self, judge: str) -> dict[str, Any]:
        """Return the endpoint capabilities on record for a judge; {} if there are none."""
        rows = self._execute(tables.FINDING, (judge,))
        return self._read(rows[0], lambda row: dict(json.loads(row[1]))) if rows else {}

    def keep_finding(self, judge: str, finding: Mapping[str, Any]) -> dict[str, Any]:
        """Store the endpoint capabilities of a judge, and return those on record.

        The first ones stored count for every process that shares the file.
        """
        with self._writing():
            row = _seal(judge, json.dumps(dict(finding), sort_keys=True), time.time())
            self._execute(tables.PUT_FINDING, row)
        return self.finding(judge)

    def _make_row(self, judge: str, item: JudgeInput, judgement: Judgement, at: float) -> Row:
        input_cell = to_compact_json(self._texts.keep_input(item, at)).decode("ascii")
        cells = judge, judgement.outcome.value, input_cell, judgement_cell(judge, judgement), at
        key = self._missing.pop((judge, item), None) or judgement_key(judge, item)
        return _seal(key, *cells)

    def get_samples(self, policy: str, query: str) -> SampledResponses | None:
        """Return the responses on record of a policy to a query, or None."""
        select = f"SELECT {tables.COLUMNS['samples']} FROM samples WHERE key = ?"
        rows = self._execute(select, (digest(policy, query),))
        return self._read(rows[0], self._texts.read_sampled)[1] if rows else None

    def put_samples(self, policy: str, query: str, sampled: SampledResponses) -> SampledResponses:
        """Store the responses to one query. Returns those on record, which are the first ones
        stored."""
        with self._writing():
            cells = self._texts.keep_samples(query, sampled)
            row = _seal(digest(policy, query), policy, *cells, time.time())
            self._execute(tables.PUT_SAMPLES, row)
        return self.get_samples(policy, query) or sampled

    def export(self) -> Iterator[dict[str, Any]]:
        """Yield every judgement as a plain record, oldest first. Rows are read lazily."""
        for row in self._rows(f"{tables.JUDGED} ORDER BY at"):
            item, record = self._read(row, self._texts.read_judged)
            judgement = read_judgement(record).record()
            yield {"at": row[5], "input": item.record(), **judgement, "judge": row[1]}

    def statistics(self) -> dict[str, Any]:
        """Return counts by judge and outcome, sizes in bytes, and the times of the oldest and
        newest row.

        `bytes_a_judgement` includes the bytes of samples and texts.
        """
        by_judge: dict[str, dict[str, int]] = {}
        for judge, outcome, count in self._execute(tables.COUNTS, ()):
            by_judge.setdefault(judge, {})[outcome] = count
        [(judgements, first, last, samples, texts, size)] = self._execute(tables.STATISTICS, ())
        return {
            "judgements": judgements,
            "by_judge": by_judge,
            "samples": samples,
            "texts": texts,
            "bytes": size,
            "bytes_a_judgement": size / judgements if judgements else None,
            "oldest": first,
            "newest": last,
        }

    def compact(self) -> None:
        """Return free pages to the disk.

        Needs free disk space of the file's size. If it is killed, the file stays as it was.
        """
        self._execute("VACUUM", ())
        self._execute("PRAGMA wal_checkpoint(TRUNCATE)", ())

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Run a `with` block as one transaction: all of it or nothing is written."""
        self._execute("BEGIN IMMEDIATE", ())
        self._texts.forget()  # other processes may have written since
        try:
            yield
            self._execute("COMMIT", ())
        finally:
            if self._db.in_transaction:
                # A disk error may have ended the transaction already; keep the first error.
                with suppress(*BROKEN):
                    self._db.rollback()

    def _read(self, row: Row, parse: Callable[[Row], T]) -> T:
        """Return what `parse` reads from a row. Raises JournalError if the row is damaged."""
        *written, checksum = row
        try:
            if checksum == digest(*written):
                return parse(row)
            problem = "is not what was written"
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            problem = f"cannot be read: {error}"
        raise make_damage_error(self.path, f"the row {row[0]!r} {problem}")

    def close(self) -> None:
        self._db.close()

    def _rows(self, sql: str) -> Iterator[Row]:
        try:
            yield from self._db.execute(sql)
        except BROKEN as error:
            raise explain_error(self.path, error) from error

    def _execute(self, sql: str, values: Sequence[Any]) -> list[Row]:
        try:
            return self._db.execute(sql, values).fetchall()
        except BROKEN as error:
            raise explain_error(self.path, error) from error


def _read_row(row: Row) -> Judgement:
    return read_judgement(judgement_record(row[4], row[1]))


def _seal(*cells: Any) -> Row:
    """Return a row: the cells and their checksum."""
    return (*cells, digest(*cells))


def _split(items: list[str], size: int) -> Iterator[list[str]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
