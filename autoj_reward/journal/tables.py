"""Tables and SQL statements of a journal."""

from __future__ import annotations

TABLES = {
    "judgements": """
        key TEXT PRIMARY KEY, judge TEXT NOT NULL, outcome TEXT NOT NULL,
        input TEXT NOT NULL, judgement BLOB NOT NULL, at REAL NOT NULL, checksum TEXT NOT NULL""",
    "samples": """
        key TEXT PRIMARY KEY, policy TEXT NOT NULL, query TEXT NOT NULL,
        samples TEXT NOT NULL, at REAL NOT NULL, checksum TEXT NOT NULL""",
    "findings": """
        judge TEXT PRIMARY KEY, found TEXT NOT NULL, at REAL NOT NULL, checksum TEXT NOT NULL""",
    "texts": """
        id INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, body BLOB NOT NULL,
        at REAL NOT NULL""",
}
"""Columns of each table."""
KEYS = {"judgements": "key", "samples": "key", "findings": "judge", "texts": "digest"}
"""A column of each table that shows that it belongs to a journal."""
BY_AGE = (
    "CREATE INDEX IF NOT EXISTS judgements_by_age ON judgements (at)",
    "CREATE INDEX IF NOT EXISTS texts_by_age ON texts (at)",
)
"""Indexes for dropping the oldest rows."""
COLUMNS = {
    "judgements": "key, judge, outcome, input, judgement, at, checksum",
    "samples": "key, policy, query, samples, at, checksum",
    "findings": "judge, found, at, checksum",
}
"""Columns in the order of a row's tuple."""
FORM = 2
"""Version of the row format, stored as the file's `user_version`. The first format had no
version."""
VERSION = """
SELECT user_version FROM sqlite_master, pragma_user_version() WHERE name = 'judgements'
"""
"""Query of the file's format version. It returns no row for a file without the table."""
SET_FORM = f"PRAGMA user_version = {FORM}"
JUDGED = f"SELECT {COLUMNS['judgements']} FROM judgements"
PUT = f"""
INSERT INTO judgements ({COLUMNS["judgements"]}) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (key) DO UPDATE SET
    outcome = excluded.outcome, judgement = excluded.judgement, at = excluded.at,
    input = excluded.input, judge = excluded.judge, checksum = excluded.checksum
WHERE outcome = 'unavailable' OR (outcome != 'ok' AND excluded.outcome = 'ok')
RETURNING key
"""
"""Stores a judgement. It replaces an `unavailable` one, and a failed one by an OK one."""
REPLACE = "UPDATE judgements SET judgement = ?, at = ?, checksum = ? WHERE key = ?"
PUT_FINDING = "INSERT INTO findings VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
FINDING = f"SELECT {COLUMNS['findings']} FROM findings WHERE judge = ?"
PUT_SAMPLES = "INSERT INTO samples VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
COUNTS = "SELECT judge, outcome, count(*) FROM judgements GROUP BY judge, outcome"
STATISTICS = """
SELECT count(*), min(at), max(at), (SELECT count(*) FROM samples), (SELECT count(*) FROM texts),
    (SELECT page_size * page_count FROM pragma_page_size(), pragma_page_count())
FROM judgements
"""
USED = """
SELECT page_size * (page_count - freelist_count)
FROM pragma_page_size(), pragma_page_count(), pragma_freelist_count()
"""
DROP_OLDEST = """
DELETE FROM judgements
WHERE key IN (SELECT key FROM judgements WHERE at < ? ORDER BY at LIMIT ?)
"""
"""Drops the oldest rows before a time."""
NEWEST = "SELECT coalesce(max(at), 0) FROM judgements"
"""Time of the newest row; 0 in an empty file."""
DROP_TEXTS = "DELETE FROM texts WHERE at < (SELECT min(at) FROM judgements)"
"""A text's time is that of the newest row that refers to it, so texts older than all rows are
unused."""
SEEN = "UPDATE texts SET at = max(at, ?) WHERE digest = ? RETURNING id"
"""Sets the time of a text that a new row refers to."""
KEEP = "INSERT INTO texts (at, digest, body) VALUES (?, ?, ?) RETURNING id"
TEXT = "SELECT body FROM texts WHERE id = ?"
