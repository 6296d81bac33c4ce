"""Reading a journal while others write it, without changing its files."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from autoj_reward.errors import JournalError
from autoj_reward.journal import Journal
from autoj_reward.journal.reading import Entry, Reader
from autoj_reward.types import Outcome
from tests.judgements import texts_of
from tests.watch.conftest import JUDGE, Record

KILLED = """
import os, sys
from pathlib import Path
from autoj_reward.journal import Journal
from autoj_reward.types import JudgeInput, Judgement
journal = Journal(Path(sys.argv[1]))
journal.put("j", JudgeInput("single", "q", ("r",)), Judgement.of_score(4))
os.kill(os.getpid(), 9)
"""


class Caller:
    """Client that keeps the entries that a reader returned."""

    def __init__(self, path: Path) -> None:
        self.reader = Reader(path)
        self.entries: dict[str, Entry] = {}

    def find_times(self, keys: Sequence[str]) -> dict[str, float]:
        return {key: self.entries[key].at for key in keys if key in self.entries}

    def look(self, limit: int = 500, looks: int = 1) -> list[str]:
        """Return the responses of new and changed entries."""
        responses = []
        for _ in range(looks):
            new_entries = self.reader.newer(limit, self.find_times)
            self.entries |= {entry.key: entry for entry in new_entries}
            responses += [entry.item.responses[0].text for entry in new_entries]
        return responses


def hash_files(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}


@pytest.fixture
def caller(record: Record) -> Caller:
    return Caller(record.journal.path)


def test_what_is_new_while_it_is_written(record: Record, caller: Caller) -> None:
    assert caller.look() == []
    for n in range(5):
        record.rate("q", f"r{n}", n + 1)
    assert caller.look(limit=3) == ["r0", "r1", "r2"]
    assert caller.look(limit=3) == ["r3", "r4"]
    assert caller.look(looks=3) == []
    record.rate("q", "r5", 6, critique="later")
    assert caller.look() == ["r5"]
    [entry] = [entry for entry in caller.entries.values() if texts_of(entry.item) == ("r5",)]
    assert (entry.judge, entry.item.prompt.text, entry.judgement.critique) == (JUDGE, "q", "later")


def test_a_failure_that_was_judged_again(record: Record, caller: Caller) -> None:
    record.rate("q", "r", outcome=Outcome.UNAVAILABLE)
    assert caller.look(looks=3) == ["r"]
    record.rate("q", "r", 7)
    assert caller.look(looks=3) == ["r"]
    assert [entry.judgement.view("rating") for entry in caller.entries.values()] == [7]


def test_reading_leaves_no_trace(record: Record, caller: Caller) -> None:
    record.rate("q", "r", 5)
    record.journal.close()
    before = hash_files(record.folder)
    assert caller.look(looks=2) == ["r"]
    assert hash_files(record.folder) == before


def test_reading_beside_a_writer_changes_nothing_of_its_own(record: Record, caller: Caller) -> None:
    record.rate("q", "r", 5)
    before = hash_files(record.folder)
    assert caller.look(looks=2) == ["r"]
    after = hash_files(record.folder)
    shared = "journal.sqlite-shm"  # who reads where: SQLite's locks, and no part of the record
    assert {k: v for k, v in before.items() if k != shared} == {
        k: v for k, v in after.items() if k != shared
    }


def test_a_reader_in_the_midst_holds_up_no_writer(record: Record, caller: Caller) -> None:
    record.rate("q", "r0", 5)
    with caller.reader._open() as db:
        rows = db.execute("SELECT key FROM judgements")
        rows.fetchone()
        record.rate("q", "r1", 5)
    assert caller.look() == ["r0", "r1"]


def test_what_a_killed_writer_left(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    process = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert process.returncode == -9
    assert path.with_name("journal.sqlite-wal").stat().st_size > 0
    assert Caller(path).look() == ["r"]
    journal = Journal(path)
    assert len(list(journal.export())) == 1
    journal.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written(record: Record, caller: Caller) -> None:
    record.rate("q", "r", 5)
    record.journal.close()
    record.folder.chmod(0o555)
    assert caller.look() == ["r"]
    record.folder.chmod(0o755)


def test_a_damaged_row_is_left_out_and_named(record: Record, caller: Caller) -> None:
    record.rate("q", "r0", 5)
    record.rate("q", "r1", 5)
    record.journal.close()
    with sqlite3.connect(record.journal.path) as db:
        db.execute("UPDATE judgements SET outcome = 'truncated' WHERE rowid = 1")
    db.close()
    assert caller.look(looks=4) == ["r1"]
    assert len(caller.reader.damaged) == 1


def test_files_that_are_no_journals(tmp_path: Path) -> None:
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as db:
        db.execute("CREATE TABLE t (a)")
    db.close()
    assert Caller(other).look() == []
    text = tmp_path / "text.sqlite"
    text.write_text("not a database, but long enough to be taken for one\n" * 40)
    with pytest.raises(JournalError, match=r"text.sqlite: cannot be read: file is not a database"):
        Caller(text).look()


def test_rows_by_key(record: Record, caller: Caller) -> None:
    record.rate("q", "r0", 5)
    caller.look()
    [key] = caller.entries
    assert list(caller.reader.entries([key, "0" * 64])) == [key]
