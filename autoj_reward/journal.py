"""The record of every judgement: SQLite in WAL mode, written before a judgement is used.

One file serves resuming, caching across runs and auditing. A key is the SHA-256 of the judge's
fingerprint and the exact inputs, so another judge or another byte is another entry.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autoj_reward.errors import JournalError
from autoj_reward.types import JudgeInput, Judgement, Outcome, Rating, Usage, Verdict

SCHEMA = """
CREATE TABLE IF NOT EXISTS judgements (
    key TEXT PRIMARY KEY, judge TEXT NOT NULL, outcome TEXT NOT NULL,
    input TEXT NOT NULL, judgement TEXT NOT NULL, at REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS samples (
    key TEXT PRIMARY KEY, policy TEXT NOT NULL, query TEXT NOT NULL,
    samples TEXT NOT NULL, at REAL NOT NULL) WITHOUT ROWID;
"""
BY_AGE = "CREATE INDEX IF NOT EXISTS judgements_by_age ON judgements (at)"
USED = """
SELECT page_size * (page_count - freelist_count)
FROM pragma_page_size(), pragma_page_count(), pragma_freelist_count()
"""
DROP_OLDEST = """
DELETE FROM judgements WHERE key IN (SELECT key FROM judgements ORDER BY at LIMIT ?)
"""
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
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.executescript(SCHEMA if max_gib is None else SCHEMA + BY_AGE)
        except (OSError, sqlite3.Error) as error:
            raise JournalError(
                f"journal {path}: cannot be opened: {error}; name a writable file, or remove it if "
                "it is no journal"
            ) from error

    def get(self, judge: str, items: Sequence[JudgeInput]) -> dict[JudgeInput, Judgement]:
        """What is on record for these inputs. `unavailable` is recorded but never given back."""
        keys = {judgement_key(judge, item): item for item in items}
        found: dict[JudgeInput, Judgement] = {}
        for chunk in _chunks(list(keys), 500):
            marks = ",".join("?" * len(chunk))
            rows = self._execute(
                f"SELECT key, judgement FROM judgements WHERE key IN ({marks}) AND outcome != ?",
                (*chunk, Outcome.UNAVAILABLE.value),
            )
            found |= {keys[key]: judgement_from_json(text) for key, text in rows}
        return found

    def put(self, judge: str, item: JudgeInput, judgement: Judgement) -> None:
        """Store one judgement; on disk when this returns, whatever kills the process later."""
        given = {"query": item.query, "responses": item.responses, "sample": item.sample}
        given |= {"direct": True} if item.direct else {}
        self._execute(
            "INSERT OR REPLACE INTO judgements VALUES (?, ?, ?, ?, ?, ?)",
            (
                judgement_key(judge, item),
                judge,
                judgement.outcome.value,
                json.dumps(given),
                json.dumps(asdict(judgement)),
                time.time(),
            ),
        )
        # The file itself is never moved: others have it open, and its log goes by its name.
        if self._most is not None and self._execute(USED, ())[0][0] > self._most:
            self._execute(DROP_OLDEST, (DROPPED,))

    def get_samples(self, policy: str, query: str) -> Sampled | None:
        """The responses a policy gave to a query in an earlier run, or None."""
        rows = self._execute("SELECT samples FROM samples WHERE key = ?", (_key(policy, query),))
        if not rows:
            return None
        kept = json.loads(rows[0][0])
        return Sampled(
            tuple(kept["responses"]),
            tuple(kept["logprobs"]),
            tuple(kept["finished"]),
            kept["tokens_out"],
        )

    def put_samples(self, policy: str, query: str, sampled: Sampled) -> None:
        """Store the responses to one query."""
        self._execute(
            "INSERT OR REPLACE INTO samples VALUES (?, ?, ?, ?, ?)",
            (
                _key(policy, query),
                policy,
                json.dumps(query),
                json.dumps(asdict(sampled)),
                time.time(),
            ),
        )

    def export(self) -> Iterator[dict[str, Any]]:
        """Every judgement as a plain record, oldest first."""
        for judge, given, text, at in self._execute(
            "SELECT judge, input, judgement, at FROM judgements ORDER BY at", ()
        ):
            yield {"at": at, "input": json.loads(given), **json.loads(text), "judge": judge}

    def close(self) -> None:
        self._db.close()

    def _execute(self, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        try:
            return self._db.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise JournalError(
                f"journal {self.path}: {error}; what was stored before is safe: free disk space or "
                "fix the permissions and start the same command again"
            ) from error


def judgement_key(judge: str, item: JudgeInput) -> str:
    """SHA-256 over the judge's fingerprint and the exact inputs."""
    direct = ["direct"] if item.direct else []
    return _key(judge, item.query, list(item.responses), item.sample, *direct)


def judgement_from_json(text: str) -> Judgement:
    """The inverse of json.dumps(asdict(judgement))."""
    data = json.loads(text)
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


def _pairs(value: list[list[Any]] | None) -> tuple[tuple[str, float], ...] | None:
    return None if value is None else tuple((label, p) for label, p in value)


def _key(*parts: Any) -> str:
    # Escaped, a split surrogate pair would read like the character that it spells.
    text = json.dumps(parts, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _chunks(items: list[str], size: int) -> Iterator[list[str]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
