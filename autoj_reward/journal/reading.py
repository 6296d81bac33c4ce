"""Read access to a journal while others write it: entries since the last read, and rows by key."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoj_reward.errors import JournalError
from autoj_reward.journal.errors import BROKEN, make_format_error
from autoj_reward.journal.records import digest, read_judgement
from autoj_reward.journal.tables import FORM, JUDGED, VERSION
from autoj_reward.journal.texts import Texts
from autoj_reward.types import JudgeInput, Judgement

NEXT = "SELECT rowid, key, at FROM judgements WHERE rowid > ? ORDER BY rowid LIMIT ?"
"""Keys and times of the rows after a row id."""

FindTimes = Callable[[Sequence[str]], Mapping[str, float]]
"""Function that returns the times of those keys that the caller has."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One judgement on record."""

    key: str
    """Key of the row; see `judgement_key`."""
    at: float
    """Time of the judgement, in seconds of the Unix epoch."""
    judge: str
    """Fingerprint of the judge."""
    item: JudgeInput
    judgement: Judgement


class Reader:
    """Reads a journal file while other processes write it.

    Its attribute `damaged` holds the keys of damaged rows. Each read opens the file anew. A file
    that no process has open is read as immutable, so that SQLite creates no file beside it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damaged: set[str] = set()
        self._last = self._again = 0
        self._read_at: object = None

    def newer(self, most: int, find_times: FindTimes) -> list[Entry]:
        """Return entries that the caller lacks or has in an older version; [] once it has all.

        most: about how many to return in one call. find_times: returns the times of the caller's
        entries. Raises JournalError if the file cannot be read.
        """
        now = [_read_stamp(path) for path in (self.path, _log_path(self.path))]
        if now == self._read_at:
            return []
        with self._open() as db:
            version = db.execute(VERSION).fetchone()
            if version is None:
                return []
            if version != (FORM,):
                raise make_format_error(self.path)
            rows = db.execute(NEXT, (self._last, most)).fetchall()
            if rows:
                self._last = rows[-1][0]
                return self._read_entries(db, [key for _, key, _ in rows])
            # A judgement may have replaced a failed one: go through the known rows again.
            rows = db.execute(NEXT, (self._again, 4 * most)).fetchall()
            self._again = rows[-1][0] if rows else 0
            self._read_at = now if not rows else None
            times = find_times([key for _, key, _ in rows])
            changed = [key for _, key, at in rows if times.get(key) != at]
            return self._read_entries(db, [key for key in changed if key not in self.damaged])

    def entries(self, keys: Sequence[str]) -> dict[str, Entry]:
        """Return the entries with these keys. Missing and damaged ones are left out."""
        with self._open() as db:
            return {entry.key: entry for entry in self._read_entries(db, keys)}

    def _read_entries(self, db: sqlite3.Connection, keys: Sequence[str]) -> list[Entry]:
        texts = Texts(lambda sql, values: db.execute(sql, values).fetchall())
        entries: dict[str, Entry] = {}
        for start in range(0, len(keys), 500):
            chunk = keys[start : start + 500]
            marks = ",".join("?" * len(chunk))
            for row in db.execute(f"{JUDGED} WHERE key IN ({marks})", chunk):
                if entry := self._read_entry(texts, row):
                    entries[entry.key] = entry
        return [entries[key] for key in keys if key in entries]

    def _read_entry(self, texts: Texts, row: tuple[Any, ...]) -> Entry | None:
        key, judge, *_, at, checksum = row
        try:
            if checksum == digest(*row[:-1]):
                item, record = texts.read_judged(row)
                return Entry(key, at, judge, item, read_judgement(record))
        except (ValueError, TypeError, KeyError, AttributeError):
            pass
        self.damaged.add(key)
        return None

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        mode = "mode=ro" if _log_path(self.path).exists() else "mode=ro&immutable=1"
        address = f"{self.path.absolute().as_uri()}?{mode}"
        try:
            with closing(sqlite3.connect(address, uri=True, timeout=5)) as db:
                db.text_factory = lambda text: text.decode("utf-8", "surrogateescape")
                yield db
        except BROKEN as error:
            raise JournalError(f"journal {self.path}: cannot be read: {error}") from error


def _log_path(path: Path) -> Path:
    """Return the path of the write-ahead log.

    It exists while a process has the journal open, and after such a process was killed.
    """
    return path.with_name(f"{path.name}-wal")


def _read_stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
