"""Errors of a journal's file, each with a remedy that loses no record."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from autoj_reward.errors import JournalError
from autoj_reward.io.files import cannot_write

BROKEN = (sqlite3.Error, UnicodeDecodeError)
"""Exceptions of sqlite3. UnicodeDecodeError is raised where a damaged name is part of an error
message."""
_PERMISSION = "give this user write permission for the file and its folder, or name another journal"
_REMEDY = {
    sqlite3.SQLITE_FULL: "free disk space",
    sqlite3.SQLITE_IOERR: (
        "the disk refused it: free disk space, raise the quota or file size limit that it met, or "
        "see whether the disk is still there"
    ),
    sqlite3.SQLITE_BUSY: "another process holds it locked: wait for that to end, or stop it",
    sqlite3.SQLITE_LOCKED: "another process holds it locked: wait for that to end, or stop it",
    sqlite3.SQLITE_READONLY: _PERMISSION,
    sqlite3.SQLITE_PERM: _PERMISSION,
    sqlite3.SQLITE_AUTH: _PERMISSION,
    sqlite3.SQLITE_CANTOPEN: f"free disk space if it is full, else {_PERMISSION}",
}
_AGAIN = "start the same command again: what was stored before is safe"


def explain_error(path: Path, error: Exception, opening: bool = False) -> JournalError:
    """Return the JournalError that explains an sqlite3 error, or an OSError when the file is
    opened."""
    start = f"journal {path}: cannot be opened" if opening else f"journal {path}"
    if isinstance(error, OSError):
        return JournalError(f"{start}: {cannot_write(path.parent, error)}")
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_NOTADB:
        return JournalError(
            f"{start}: {error}: name another file if this is no journal; if it is one, its first "
            f"page is damaged: {_explain_recovery(path)}"
        )
    if code == sqlite3.SQLITE_CORRUPT or isinstance(error, UnicodeDecodeError):
        return make_damage_error(path, str(error))
    if code in _REMEDY:
        return JournalError(f"{start}: {error}: {_REMEDY[code]}; then {_AGAIN}")
    if opening:
        return JournalError(f"{start}: {error}; name another file")
    return JournalError(f"{start}: {error}; {_AGAIN}")


def make_damage_error(path: Path, problem: str) -> JournalError:
    """Return the error of a file that has been damaged."""
    return JournalError(f"journal {path}: damaged: {problem}; {_explain_recovery(path)}")


def make_format_error(path: Path) -> JournalError:
    """Return the error of a journal in a format that this version does not read."""
    return JournalError(
        f"journal {path}: another version of autoj-reward wrote it, in a form that this one does "
        "not read: delete it or name another file; its judgements are made anew"
    )


def _explain_recovery(path: Path) -> str:
    return (
        "put back a copy of the file, or move it aside with any -wal and -shm file beside it: "
        f"`sqlite3 {path.name} .recover` reads what is left in it, and the same command judges "
        "again what it needs"
    )
