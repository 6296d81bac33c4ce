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
from autoj_reward.journal.tables import FORM, JUDGED, MADE
from autoj_reward.journal.texts import Texts
from autoj_reward.types import JudgeInput, Judgement

NEXT = "SELECT rowid, key, at FROM judgements WHERE rowid > ? ORDER BY rowid LIMIT ?"
"""Keys and times of the rows after a row id."""

Known = Callable[[Sequence[str]], Mapping[str, float]]
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
        self._left: object = None

    def newer(self, most: int, known: Known) -> list[Entry]:
        """Return entries that the caller lacks or has in an older version; [] once it has all.

        most: about how many to return in one call. known: returns the times of the caller's
        entries. Raises JournalError if the file cannot be read.
        """
        now = [_stamp(path) for path in (self.path, _log(self.path))]
        if now == self._left:
            return []
        with self._opened() as db:
            made = db.execute(MADE).fetchone()
            if made is None:
                return []
            if made != (FORM,):
                raise make_format_error(self.path)
            found = db.execute(NEXT, (self._last, most)).fetchall()
            if found:
                self._last = found[-1][0]
                return self._rows(db, [key for _, key, _ in found])
            # A judgement may have replaced a failed one: go through the known rows again.
            found = db.execute(NEXT, (self._again, 4 * most)).fetchall()
            self._again = found[-1][0] if found else 0
            self._left = now if not found else None
            times = known([key for _, key, _ in found])
            changed = [key for _, key, at in found if times.get(key) != at]
            return self._rows(db, [key for key in changed if key not in self.damaged])

    def entries(self, keys: Sequence[str]) -> dict[str, Entry]:
        """Return the entries with these keys. Missing and damaged ones are left out."""
        with self._opened() as db:
            return {entry.key: entry for entry in self._rows(db, keys)}

    def _rows(self, db: sqlite3.Connection, keys: Sequence[str]) -> list[Entry]:
        texts = Texts(lambda sql, values: db.execute(sql, values).fetchall())
        found: dict[str, Entry] = {}
        for start in range(0, len(keys), 500):
            chunk = keys[start : start + 500]
            marks = ",".join("?" * len(chunk))
            for row in db.execute(f"{JUDGED} WHERE key IN ({marks})", chunk):
                if entry := self._entry(texts, row):
                    found[entry.key] = entry
        return [found[key] for key in keys if key in found]

    def _entry(self, texts: Texts, row: tuple[Any, ...]) -> Entry | None:
        key, judge, *_, at, checksum = row
        try:
            if checksum == digest(*row[:-1]):
                item, said = texts.read_judged(row)
                return Entry(key, at, judge, item, read_judgement(said))
        except (ValueError, TypeError, KeyError, AttributeError):
            pass
        self.damaged.add(key)
        return None

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        mode = "mode=ro" if _log(self.path).exists() else "mode=ro&immutable=1"
        address = f"{self.path.absolute().as_uri()}?{mode}"
        try:
            with closing(sqlite3.connect(address, uri=True, timeout=5)) as db:
                db.text_factory = lambda text: text.decode("utf-8", "surrogateescape")
                yield db
        except BROKEN as error:
            raise JournalError(f"journal {self.path}: cannot be read: {error}") from error


def _log(path: Path) -> Path:
    """Return the path of the write-ahead log.

    It exists while a process has the journal open, and after such a process was killed.
    """
    return path.with_name(f"{path.name}-wal")


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        told = path.stat()
    except OSError:
        return None
    return told.st_mtime_ns, told.st_size
