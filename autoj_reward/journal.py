"""The record of every judgement: SQLite in WAL mode, written before a judgement is used.

One file serves resuming, caching across runs and auditing. A key is the SHA-256 of the judge's
fingerprint and the exact inputs, so another judge or another byte is another entry. What is on
record stays: of two judgements of one input the first good one counts, whoever wrote it, and a
checksum a row tells what is no longer as it was written. Rows of before there were any have none.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from autoj_reward.conversation import messages_of
from autoj_reward.errors import JournalError
from autoj_reward.types import JudgeInput, Judgement, Outcome, Rating, Usage, Verdict, as_json

T = TypeVar("T")
TABLES = {
    "judgements": """
        key TEXT PRIMARY KEY, judge TEXT NOT NULL, outcome TEXT NOT NULL,
        input TEXT NOT NULL, judgement TEXT NOT NULL, at REAL NOT NULL, checksum TEXT""",
    "samples": """
        key TEXT PRIMARY KEY, policy TEXT NOT NULL, query TEXT NOT NULL,
        samples TEXT NOT NULL, at REAL NOT NULL, checksum TEXT""",
}
BY_AGE = "CREATE INDEX IF NOT EXISTS judgements_by_age ON judgements (at)"
ROW = "key, judge, outcome, input, judgement, at, checksum"
PUT = f"""
INSERT INTO judgements ({ROW}) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (key) DO UPDATE SET
    outcome = excluded.outcome, judgement = excluded.judgement, at = excluded.at,
    input = excluded.input, judge = excluded.judge, checksum = excluded.checksum
WHERE outcome = 'unavailable' OR (outcome != 'ok' AND excluded.outcome = 'ok')
RETURNING key
"""
SAMPLES = "key, policy, query, samples, at, checksum"
PUT_SAMPLES = f"INSERT INTO samples ({SAMPLES}) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
USED = """
SELECT page_size * (page_count - freelist_count)
FROM pragma_page_size(), pragma_page_count(), pragma_freelist_count()
"""
DROP_OLDEST = """
DELETE FROM judgements WHERE key IN (SELECT key FROM judgements ORDER BY at LIMIT ?)
"""
BROKEN = (sqlite3.Error, UnicodeDecodeError)
"""What sqlite3 raises; the latter where the name in an error's own words is damaged."""
DROPPED = 256
"""Judgements that go at a time: few enough to pause nobody, enough to be seldom."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """Responses of a policy to one query, with their log-probabilities and the tokens spent."""

    responses: tuple[str, ...]
    logprobs: tuple[float | None, ...]
    finished: tuple[bool, ...]
    tokens_out: int


class Journal:
    """One open journal file. Use it from one thread; several processes may share the file.

    max_gib: when the file holds more, the oldest judgements make room for new ones; None: it grows.
    """

    def __init__(self, path: Path, max_gib: float | None = None) -> None:
        self.path = path
        self._most = None if max_gib is None else max_gib * 2**30
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, timeout=60, isolation_level=None)
            # A damaged text must be told by its checksum, not by an error of its decoding.
            self._db.text_factory = lambda text: text.decode("utf-8", "surrogateescape")
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._make_tables()
            if max_gib is not None:
                self._db.execute(BY_AGE)
        except (OSError, *BROKEN) as error:
            if _is_corrupt(error):
                raise self._damaged(str(error)) from error
            raise JournalError(
                f"journal {path}: cannot be opened: {error}; name a writable file, or remove it if "
                "it is no journal"
            ) from error

    def _make_tables(self) -> None:
        """The tables, and in a file of before there were checksums the column for them."""
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")  # several processes may open a new file at once
            for name, columns in TABLES.items():
                self._db.execute(f"CREATE TABLE IF NOT EXISTS {name} ({columns}) WITHOUT ROWID")
                found = self._db.execute(f"PRAGMA table_info({name})").fetchall()
                known = {column[1] for column in found}
                if "key" not in known:
                    raise sqlite3.DatabaseError(f"its table {name} is no journal's")
                if "checksum" not in known:
                    self._db.execute(f"ALTER TABLE {name} ADD COLUMN checksum TEXT")

    def get(self, judge: str, items: Sequence[JudgeInput]) -> dict[JudgeInput, Judgement]:
        """What is on record for these inputs. `unavailable` is recorded but never given back."""
        keys = {judgement_key(judge, item): item for item in items}
        found: dict[JudgeInput, Judgement] = {}
        for chunk in _chunks(list(keys), 500):
            marks = ",".join("?" * len(chunk))
            for row in self._execute(f"SELECT {ROW} FROM judgements WHERE key IN ({marks})", chunk):
                judgement = self._read(row, 4, judgement_from_json)
                if judgement.outcome is not Outcome.UNAVAILABLE and row[0] in keys:
                    found[keys[row[0]]] = judgement
        return found

    def put(self, judge: str, item: JudgeInput, judgement: Judgement) -> Judgement:
        """Store one judgement, on disk when this returns, whatever kills the process later.

        Returns what is on record: an earlier one of this input, if that is ok, or if it failed as
        this one did.
        """
        key, outcome = judgement_key(judge, item), judgement.outcome.value
        texts = json.dumps(item.record()), json.dumps(as_json(judgement))
        row = (key, judge, outcome, *texts, time.time())
        if not self._execute(PUT, (*row, _key(*row))):
            return self.get(judge, [item]).get(item, judgement)
        # The file itself is never moved: others have it open, and its log goes by its name.
        if self._most is not None and self._execute(USED, ())[0][0] > self._most:
            self._execute(DROP_OLDEST, (DROPPED,))
        return judgement

    def get_samples(self, policy: str, query: str) -> Sampled | None:
        """The responses a policy gave to a query in an earlier run, or None."""
        rows = self._execute(f"SELECT {SAMPLES} FROM samples WHERE key = ?", (_key(policy, query),))
        return self._read(rows[0], 3, _sampled_from_json) if rows else None

    def put_samples(self, policy: str, query: str, sampled: Sampled) -> Sampled:
        """Store the responses to one query. Returns those on record: the first that came."""
        key, text = _key(policy, query), json.dumps(as_json(sampled))
        row = (key, policy, json.dumps(query), text, time.time())
        self._execute(PUT_SAMPLES, (*row, _key(*row)))
        return self.get_samples(policy, query) or sampled

    def export(self) -> Iterator[dict[str, Any]]:
        """Every judgement as a plain record, oldest first."""
        for row in self._execute(f"SELECT {ROW} FROM judgements ORDER BY at", ()):
            given, said = self._read(row, 3, _object), self._read(row, 4, _object)
            yield {"at": row[5], "input": given, **said, "judge": row[1]}

    def _read(self, row: tuple[Any, ...], column: int, parse: Callable[[str], T]) -> T:
        """A column of a row that is as it was written."""
        *written, checksum = row
        try:
            if checksum is None or checksum == _key(*written):
                return parse(row[column])
            problem = "is not what was written"
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            problem = f"cannot be read: {error}"
        raise self._damaged(f"the row {row[0]!r} {problem}")

    def _damaged(self, problem: str) -> JournalError:
        return JournalError(
            f"journal {self.path}: damaged: {problem}; put back a copy of the file, or remove it: "
            "what it held is then judged again"
        )

    def close(self) -> None:
        self._db.close()

    def _execute(self, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        try:
            return self._db.execute(sql, values).fetchall()
        except BROKEN as error:
            if _is_corrupt(error):
                raise self._damaged(str(error)) from error
            raise JournalError(
                f"journal {self.path}: {error}; what was stored before is safe: free disk space or "
                "fix the permissions and start the same command again"
            ) from error


def judgement_key(judge: str, item: JudgeInput) -> str:
    """SHA-256 over the judge's fingerprint and the exact inputs. What an input does not have leaves
    no trace, so that journals of before there was such a thing are still read."""
    added: list[Any] = ["direct"] if item.direct else []
    added += [{"context": dict(item.context)}] if item.context else []
    added += [{"turns": messages_of(item.turns)}] if item.turns else []
    return _key(judge, item.query, list(item.responses), item.sample, *added)


def judgement_from_json(text: str) -> Judgement:
    """The inverse of json.dumps(as_json(judgement))."""
    return judgement_of(json.loads(text))


def judgement_of(data: dict[str, Any]) -> Judgement:
    """The inverse of asdict(judgement), which JSON may have been through."""
    rating = data["rating"]
    if rating is not None:
        rating["distribution"] = _pairs(rating["distribution"])
        data["rating"] = Rating(**rating)
    data["outcome"] = Outcome(data["outcome"])
    data["verdict"] = Verdict(data["verdict"]) if data["verdict"] else None
    data["confidence"] = _pairs(data["confidence"])
    data["usage"] = Usage(**data["usage"])
    data["flags"] = tuple(data["flags"])
    return Judgement(**data)


def _object(text: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise TypeError(f"{type(found).__name__} in place of an object")
    return found


def _sampled_from_json(text: str) -> Sampled:
    kept = json.loads(text)
    responses, logprobs = tuple(kept["responses"]), tuple(kept["logprobs"])
    return Sampled(responses, logprobs, tuple(kept["finished"]), kept["tokens_out"])


def _is_corrupt(error: Exception) -> bool:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code == sqlite3.SQLITE_CORRUPT or isinstance(error, UnicodeDecodeError)


def _pairs(value: list[list[Any]] | None) -> tuple[tuple[str, float], ...] | None:
    return None if value is None else tuple((label, p) for label, p in value)


def _key(*parts: Any) -> str:
    # Escaped, a split surrogate pair would read like the character that it spells.
    text = json.dumps(parts, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _chunks(items: list[str], size: int) -> Iterator[list[str]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
