from __future__ import annotations

import hashlib
import json
import os
import random
import re
import resource
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autoj_reward.conversation import Context, Prompt, Turn
from autoj_reward.errors import JournalError
from autoj_reward.journal import Journal, SampledResponses, judgement_key
from autoj_reward.journal.reading import Reader
from autoj_reward.journal.records import digest, judgement_cell, judgement_record, pack
from autoj_reward.types import JudgeInput, Judgement, Outcome, Reading, Usage, Verdict
from tests.judgements import asked, compared, rated

ITEM = JudgeInput("single", "q", ("r",))
NUMBER = count()

# A split surrogate pair is left out: JSON cannot tell it from the character that it spells.
texts = st.text(st.characters(codec=None), max_size=20).filter(
    lambda s: s == s.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
)
shares = st.floats(0, 1)
tables = st.lists(st.tuples(texts, shares), max_size=4).map(tuple)
counts = st.integers(0, 10**6)
usages = st.builds(Usage, counts, counts, counts, st.floats(0, 1e6))
readings = st.builds(
    Reading,
    slot=texts,
    label=texts,
    value=st.none() | st.floats(0, 10),
    distribution=st.none() | tables,
    expected=st.none() | st.floats(1, 10),
    outside=st.none() | shares,
    unknown=shares,
    forced=st.booleans(),
)
common = {
    "critique": texts,
    "reason": texts,
    "usage": usages,
    "judge": texts,
    "flags": st.lists(texts, max_size=3).map(tuple),
}
judgements = st.one_of(
    st.builds(
        Judgement,
        outcome=st.just(Outcome.OK),
        readings=st.lists(readings, min_size=1, max_size=3).map(tuple),
        **common,
    ),
    st.builds(
        Judgement,
        outcome=st.sampled_from([o for o in Outcome if o not in (Outcome.OK, Outcome.UNAVAILABLE)]),
        **common,
    ),
)
inputs = st.builds(
    JudgeInput,
    protocol=st.sampled_from(["single", "pairwise", "of your own"]),
    prompt=st.one_of(
        st.builds(Prompt, texts),
        st.lists(st.builds(Turn, st.sampled_from(["user", "bot"]), texts), max_size=2).map(
            Prompt.of
        ),
    ),
    responses=st.lists(texts, min_size=1, max_size=2).map(tuple),
    sample=st.integers(0, 63),
    context=st.builds(
        Context,
        st.dictionaries(st.sampled_from(["reference", "rubric"]), texts, max_size=2),
    ),
)


@pytest.fixture
def journal(tmp_path: Path):
    fresh_journal = Journal(tmp_path / "j.sqlite")
    yield fresh_journal
    fresh_journal.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(item=inputs, judgement=judgements)
def test_every_judgement_comes_back_as_it_was(
    journal: Journal, item: JudgeInput, judgement: Judgement
) -> None:
    judge = f"judge {next(NUMBER)}"  # the file is the same for all examples
    assert journal.put(judge, item, judgement) == judgement
    assert journal.get(judge, [item]) == {item: judgement}


@pytest.mark.parametrize(
    ("judge", "item"),
    [
        pytest.param("judge2", ITEM, id="judge"),
        pytest.param("judge", JudgeInput("single", "q ", ("r",)), id="query"),
        pytest.param("judge", JudgeInput("single", "q", ("r\0",)), id="response"),
        pytest.param("judge", JudgeInput("pairwise", "q", ("r", "")), id="one more response"),
        pytest.param("judge", JudgeInput("single", "q", ("r",), 1), id="sample"),
        pytest.param("judge", JudgeInput("single", "q", ("r",), direct=True), id="direct"),
        pytest.param(
            "judge", JudgeInput("single", "q", ("r",), context={"reference": "r"}), id="context"
        ),
        pytest.param(
            "judge",
            JudgeInput("single", Prompt("q", (Turn("user", "q"),)), ("r",)),
            id="turns",
        ),
        pytest.param("judgeq", JudgeInput("single", "", ("r",)), id="text moved over a border"),
    ],
)
def test_the_key_changes_with_every_part(journal: Journal, judge: str, item: JudgeInput) -> None:
    journal.put("judge", ITEM, rated(5))
    assert journal.get(judge, [item]) == {}
    assert set(journal.get("judge", [ITEM])) == {ITEM}


@given(first=inputs, second=inputs)
def test_the_key_is_the_same_only_for_equal_inputs(first: JudgeInput, second: JudgeInput) -> None:
    assert (judgement_key("j", first) == judgement_key("j", second)) == (first == second)


def test_the_key_of_a_plain_input_stays() -> None:
    """Journals hold this key. Another key would make every judgement again."""
    key = hashlib.sha256(b'["j", "single", "q", ["r"], 0]').hexdigest()
    assert judgement_key("j", JudgeInput("single", "q", ("r",))) == key


def test_a_row_with_spaces_in_its_json_is_read(tmp_path: Path) -> None:
    """Earlier versions wrote such rows."""
    path = tmp_path / "j.sqlite"
    journal = Journal(path)
    journal.put("judge", ITEM, GOOD)
    [(key, judge, outcome, input_json, cell, at, _)] = journal._execute(
        "SELECT * FROM judgements", ()
    )
    input_json = json.dumps(json.loads(input_json))
    cell = pack(json.dumps(judgement_record(cell, judge)))
    row = digest(key, judge, outcome, input_json, cell, at)
    sql = "UPDATE judgements SET input = '{}', judgement = x'{}', checksum = '{}'"
    damage(path, sql.format(input_json, cell.hex(), row))
    assert journal.get("judge", [ITEM]) == {ITEM: GOOD}
    assert [row["input"] for row in journal.export()] == [ITEM.record()]
    journal.close()


def test_a_key_that_was_looked_up_for_one_judge_is_not_used_for_another(journal: Journal) -> None:
    assert journal.get("one", [ITEM]) == {}
    journal.put("two", ITEM, GOOD)
    assert journal.get("one", [ITEM]) == {}
    journal.put("one", ITEM, BETTER)
    assert journal.get("two", [ITEM]) == {ITEM: GOOD}
    assert journal.get("one", [ITEM]) == {ITEM: BETTER}


def test_a_split_surrogate_pair_is_another_text_than_its_character() -> None:
    split, whole = (
        JudgeInput("single", "\ud83d\ude00", ("r",)),
        JudgeInput("single", "\U0001f600", ("r",)),
    )
    assert judgement_key("j", split) != judgement_key("j", whole)


def test_responses_in_another_order_are_another_input() -> None:
    assert judgement_key("j", JudgeInput("pairwise", "q", ("a", "b"))) != judgement_key(
        "j", JudgeInput("pairwise", "q", ("b", "a"))
    )


def test_unavailable_is_recorded_but_not_given_back(journal: Journal) -> None:
    journal.put("judge", ITEM, Judgement(Outcome.UNAVAILABLE, reason="down"))
    assert journal.get("judge", [ITEM]) == {}
    assert [(r["outcome"], r["reason"]) for r in journal.export()] == [("unavailable", "down")]
    journal.put("judge", ITEM, rated(5))
    assert [r["outcome"] for r in journal.export()] == ["ok"]


GOOD, BETTER = rated(5), rated(9)
LOST = Judgement(Outcome.UNAVAILABLE, reason="down")
CUT, ODD = Judgement(Outcome.TRUNCATED, reason="cut"), Judgement(Outcome.UNPARSABLE, reason="odd")


@pytest.mark.parametrize(
    ("first", "second", "winner"),
    [
        pytest.param(GOOD, BETTER, GOOD, id="the first good one"),
        pytest.param(GOOD, CUT, GOOD, id="a failure replaces no good one"),
        pytest.param(GOOD, LOST, GOOD, id="nor does an outage"),
        pytest.param(CUT, GOOD, GOOD, id="a good one replaces a failure"),
        pytest.param(CUT, ODD, CUT, id="the first failure, which was used"),
        pytest.param(CUT, LOST, CUT, id="an outage replaces no failure"),
        pytest.param(LOST, CUT, CUT, id="a failure replaces an outage"),
        pytest.param(LOST, GOOD, GOOD, id="a good one replaces an outage"),
    ],
)
def test_the_first_good_judgement_wins_whoever_writes_it(
    tmp_path: Path, first: Judgement, second: Judgement, winner: Judgement
) -> None:
    first_journal, second_journal = Journal(tmp_path / "j.sqlite"), Journal(tmp_path / "j.sqlite")
    assert (
        first_journal.get("judge", [ITEM]) == second_journal.get("judge", [ITEM]) == {}
    )  # both ask
    assert first_journal.put("judge", ITEM, first) == first
    assert second_journal.put("judge", ITEM, second) == winner
    assert (
        first_journal.get("judge", [ITEM]) == second_journal.get("judge", [ITEM]) == {ITEM: winner}
    )
    first_journal.close()
    second_journal.close()


def test_two_processes_end_with_the_same_judgements(tmp_path: Path) -> None:
    path = tmp_path / "j.sqlite"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, str(path), rating], stdout=subprocess.PIPE, text=True
        )
        for rating in ("3", "7")
    ]
    outputs = [process.communicate(timeout=600)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert outputs[0] == outputs[1] and len(json.loads(outputs[0])) == 300


def test_a_new_file_is_opened_by_many_at_once(tmp_path: Path) -> None:
    """Twenty files, eight processes each: they rarely meet where SQLite does not wait."""
    command = [sys.executable, "-c", OPEN, str(tmp_path)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (process.returncode, process.stderr) == (0, "")


OPEN = """
import multiprocessing, sys
from pathlib import Path
from autoj_reward.journal import Journal

def opened(path, ready):
    ready.wait()
    Journal(path).close()

fork = multiprocessing.get_context("fork")
for n in range(20):
    ready = fork.Barrier(8)
    ones = [
        fork.Process(target=opened, args=(Path(sys.argv[1]) / f"{n}.sqlite", ready))
        for _ in range(8)
    ]
    for one in ones:
        one.start()
    for one in ones:
        one.join()
    if any(one.exitcode for one in ones):
        sys.exit(1)
"""


RACE = """
import json, sys
from pathlib import Path
from autoj_reward.journal import Journal
from autoj_reward.types import JudgeInput, Judgement, Outcome

journal, used = Journal(Path(sys.argv[1])), []
for n in range(300):
    said = Judgement.of_score(int(sys.argv[2]))
    used.append(journal.put("judge", JudgeInput("single", "q", (str(n),)), said).rating)
journal.close()
print(json.dumps(used))
"""


def test_two_connections_share_a_file(tmp_path: Path) -> None:
    first, second = Journal(tmp_path / "j.sqlite"), Journal(tmp_path / "j.sqlite")
    judgement = rated(5)
    first.put("judge", ITEM, judgement)
    assert second.get("judge", [ITEM]) == {ITEM: judgement}
    other = JudgeInput("single", "q", ("s",))
    second.put("judge", other, judgement)
    assert set(first.get("judge", [ITEM, other])) == {ITEM, other}
    first.close()
    second.close()


def test_more_inputs_than_one_statement_takes(journal: Journal) -> None:
    items = [JudgeInput("single", "q", (str(n),)) for n in range(1203)]
    for item in items[::2]:
        journal.put("judge", item, rated(1))
    assert set(journal.get("judge", items)) == set(items[::2])


@pytest.mark.parametrize("logprobs", [(-1.5, None), (None, None)], ids=str)
def test_samples_come_back_for_their_policy_and_query(
    journal: Journal, logprobs: tuple[float | None, ...]
) -> None:
    sampled = SampledResponses(("a", "\ud800"), logprobs, (True, False), 12)
    journal.put_samples("policy", "q", sampled)
    assert journal.get_samples("policy", "q") == sampled
    assert journal.get_samples("policy2", "q") is None
    assert journal.get_samples("policy", "q2") is None


def test_the_first_samples_stay(journal: Journal) -> None:
    first, second = (SampledResponses((text,), (None,), (True,), 1) for text in "ab")
    assert journal.put_samples("policy", "q", first) == first
    assert journal.put_samples("policy", "q", second) == first
    assert journal.get_samples("policy", "q") == first


def test_export_is_oldest_first_and_plain(journal: Journal) -> None:
    pair = JudgeInput("pairwise", "\ud800\0", ("a", "b"))
    journal.put("judge", pair, compared(Verdict.TIE))
    journal.put("judge", ITEM, rated(5, (("5", 1.0),), 5.0, 0.0))
    first, second = journal.export()
    expected_input = {
        "protocol": "pairwise",
        "query": "\ud800\0",
        "responses": ["a", "b"],
        "sample": 0,
    }
    assert first["input"] == expected_input
    assert (first["verdict"], second["verdict"]) == ("tie", None)
    assert second["rating"]["distribution"] == (("5", 1.0),)
    assert [reading["slot"] for reading in second["readings"]] == ["rating"]
    assert second["judge"] == "judge" and first["at"] <= second["at"]


def test_the_oldest_judgements_make_room_for_new_ones(tmp_path: Path) -> None:
    path = tmp_path / "j.sqlite"
    reader = Journal(path)
    items = [JudgeInput("single", "q", (str(n),)) for n in range(1200)]
    draw = random.Random(1)  # what is drawn cannot be compressed to less than half

    def make_judgement() -> Judgement:
        return rated(5, critique=draw.randbytes(2000).hex())

    journal = Journal(path, max_gib=2 / 1024)
    for number, item in enumerate(items):
        journal.put("judge", item, make_judgement())
        if number % 100 == 0:
            newest = items[max(0, number - 99) : number + 1]
            assert set(reader.get("judge", newest)) == set(newest)
    still_stored = [
        item in stored_judgements
        for stored_judgements in [journal.get("judge", items)]
        for item in items
    ]
    assert 150 < sum(still_stored) < 600
    assert still_stored == sorted(still_stored)  # the newest, without a gap
    journal.close()
    reader.close()
    assert path.stat().st_size < 2.2 * 2**20
    # Without a limit the same file grows again.
    journal = Journal(path)
    for item in items:
        journal.put("judge", item, make_judgement())
    assert len(journal.get("judge", items)) == 1200
    journal.close()


def test_a_clock_that_is_set_back_drops_nothing_that_was_just_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(0)
    items = [asked(f"q{n}", (draw.randbytes(1500).hex(),)) for n in range(800)]
    path, now = tmp_path / "journal.sqlite", 1.7e9
    monkeypatch.setattr(time, "time", lambda: now)
    with closing(Journal(path, max_gib=1 / 1024)) as journal:
        # Texts of samples are kept for good.
        journal.put_samples("policy", "q", SampledResponses(("a",), (-1.0,), (True,), 1))
        for number, item in enumerate(items):
            if number == 200:
                now -= 3600.0
            journal.put("judge", item, rated(5))
            newest = items[max(0, number - 20) : number + 1]
            assert set(journal.get("judge", newest)) == set(newest)
        assert items[0] not in journal.get("judge", items[:1])
    assert path.stat().st_size < 1.3 * 2**20


def test_a_file_over_its_limit_keeps_what_was_just_put(tmp_path: Path) -> None:
    """A limit below one judgement's size leaves that judgement."""
    with closing(Journal(tmp_path / "journal.sqlite", max_gib=1e-9)) as journal:
        for query in ("one", "two"):
            item = asked(query, ("r",))
            journal.put("judge", item, rated(5))
            assert item in journal.get("judge", [item])


def test_a_text_is_stored_once(journal: Journal) -> None:
    journal.put_samples("policy", "q", SampledResponses(("a", "b"), (-1.0, -2.0), (True, True), 2))
    for pair in [("a",), ("b",), ("a", "b"), ("b", "a")]:
        judgement = rated(5)
        if len(pair) == 2:
            judgement = compared(Verdict.TIE)
        journal.put("judge", asked("q", pair, context={"reference": "a"}), judgement)
    assert journal.statistics()["texts"] == 3


def test_texts_are_packed_and_a_query_is_stored_once(
    journal: Journal,
) -> None:
    draw, words = random.Random(1), (Path(__file__).parent.parent / "README.md").read_text().split()

    def draw_text(length: int) -> str:
        return " ".join(draw.choices(words, k=length))

    query, letters = draw_text(500), 0
    for n in range(200):
        item, critique = JudgeInput("single", query, (draw_text(120),)), draw_text(200)
        slot = tuple((str(k + 1), draw.random()) for k in range(10))
        numbers = draw.randint(1, 10), slot, draw.random() * 10, draw.random(), n
        judgement = rated(*numbers, critique=critique, judge="judge")
        journal.put("judge", item, judgement)
        letters += len(item.responses[0].text) + len(critique)
    assert journal.statistics()["bytes"] < 0.85 * letters + 200 * 600


def test_judgements_that_come_together_are_stored_together_or_not_at_all(tmp_path: Path) -> None:
    path, items = tmp_path / "j.sqlite", [JudgeInput("single", "q", (str(n),)) for n in range(50)]
    journal = Journal(path)
    assert journal.put("judge", items[0], BETTER) == BETTER
    recorded_judgements = journal.put_all([("judge", item, GOOD) for item in items[:9]])
    assert recorded_judgements == [BETTER, *[GOOD] * 8]  # what is on record, in order
    [(pages,)] = journal._execute("PRAGMA page_count", ())
    journal._execute(f"PRAGMA max_page_count = {pages}", ())
    long = rated(5, critique=random.Random(1).randbytes(2000).hex())
    with pytest.raises(JournalError, match="database or disk is full"):
        journal.put_all([("judge", item, long) for item in items])
    assert set(journal.get("judge", items)) == set(items[:9])
    journal._execute("PRAGMA max_page_count = 1000000", ())
    journal.put_all([("judge", item, long) for item in items])
    assert set(journal.get("judge", items)) == set(items)
    journal.close()


def test_what_was_said_to_be_stored_survives_a_killed_process(tmp_path: Path) -> None:
    path = tmp_path / "j.sqlite"
    command = [sys.executable, "-c", GROUPS, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        for _ in range(20):
            process.stdout.readline()
        process.kill()
        stored = 20 + len(process.stdout.read().splitlines())
    journal = Journal(path)
    items = [JudgeInput("single", "q", (f"{n} {k}",)) for n in range(stored + 1) for k in range(16)]
    judgement_count = len(journal.get("judge", items))
    assert (
        judgement_count in (16 * stored, 16 * stored + 16)
        and len(list(journal.export())) == judgement_count
    )
    journal.close()


GROUPS = """
import sys
import time
from itertools import count
from pathlib import Path
from autoj_reward.journal import Journal
from autoj_reward.types import JudgeInput, Judgement, Outcome

journal, said = Journal(Path(sys.argv[1])), Judgement.of_score(5)
for n in count():
    journal.put_all([("judge", JudgeInput("single", "q", (f"{n} {k}",)), said) for k in range(16)])
    print(n, flush=True)
"""


def test_export_reads_while_others_write(journal: Journal) -> None:
    items = [JudgeInput("single", "q", (str(n),)) for n in range(5)]
    journal.put_all([("judge", item, GOOD) for item in items[:3]])
    for record in journal.export():
        journal.put("judge", items[4], GOOD)
        assert record["outcome"] == "ok"
    assert len(list(journal.export())) == 4


def test_the_folder_of_the_journal_is_made(tmp_path: Path) -> None:
    Journal(tmp_path / "a" / "b" / "j.sqlite").close()
    assert (tmp_path / "a" / "b" / "j.sqlite").is_file()


def no_sqlite(folder: Path) -> Path:
    path = folder / "notes.txt"
    path.write_text("Dear diary, " * 200)
    return path


def a_folder(folder: Path) -> Path:
    return folder


def under_a_file(folder: Path) -> Path:
    (folder / "file").write_text("")
    return folder / "file" / "j.sqlite"


def write_protected(folder: Path) -> Path:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    (folder / "locked").mkdir(mode=0o500)
    return folder / "locked" / "j.sqlite"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            no_sqlite,
            "file is not a database: name another file if this is no journal; if it is one",
        ),
        (a_folder, "unable to open database file: free disk space if it is full, else give this"),
        (under_a_file, "a file stands where a folder is needed: move it"),
        (write_protected, "give this user write permission"),
    ],
)
def test_a_journal_that_cannot_be_opened_is_named(tmp_path: Path, make, message: str) -> None:
    path = make(tmp_path)
    with pytest.raises(JournalError) as caught:
        Journal(path)
    assert str(caught.value).startswith(f"journal {path}: cannot be opened: ")
    assert message in str(caught.value) and "remove" not in str(caught.value)


def test_a_locked_journal_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autoj_reward.journal.PATIENCE_S", 0.01)
    path = tmp_path / "j.sqlite"
    journal = Journal(path)
    journal.put("judge", ITEM, GOOD)
    message = f"journal {path}: database is locked: another process holds it locked: wait for that"
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(JournalError, match=re.escape(message)) as caught:
            journal.put("judge", JudgeInput("single", "q", ("s",)), GOOD)
        assert "what was stored before is safe" in str(caught.value)
        with pytest.raises(JournalError, match="cannot be opened: database is locked: another"):
            Journal(path)
    assert journal.put("judge", JudgeInput("single", "q", ("s",)), GOOD) == GOOD
    journal.close()


def test_a_damaged_journal_is_to_be_kept(tmp_path: Path) -> None:
    path = tmp_path / "j.sqlite"
    journal = Journal(path)
    journal.put("judge", ITEM, GOOD)
    journal.close()
    whole = path.read_bytes()
    for place, message in ((0, "file is not a database"), (100, "damaged: database disk image")):
        path.write_bytes(whole[:place] + b"damage" + whole[place + 6 :])
        with pytest.raises(JournalError, match=message) as caught:
            Journal(path)
        assert "put back a copy of the file, or move it aside" in str(caught.value)
        assert "remove" not in str(caught.value)


def test_a_file_that_is_no_journal_is_left_as_it_was(tmp_path: Path) -> None:
    path = no_sqlite(tmp_path)
    before = path.read_bytes()
    with pytest.raises(JournalError):
        Journal(path)
    assert path.read_bytes() == before


def test_a_sqlite_file_of_something_else_is_named(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE judgements (name TEXT)")
    db.close()
    with pytest.raises(JournalError, match=r"its table judgements is no journal's; name a"):
        Journal(path)
    opened = {link.resolve() for link in Path("/proc/self/fd").iterdir()}
    assert path.resolve() not in opened
    with sqlite3.connect(path) as db:
        assert [c[1] for c in db.execute("PRAGMA table_info(judgements)")] == ["name"]
    db.close()


OLD = """
CREATE TABLE judgements (
    key TEXT PRIMARY KEY, judge TEXT NOT NULL, outcome TEXT NOT NULL,
    input TEXT NOT NULL, judgement TEXT NOT NULL, at REAL NOT NULL);
INSERT INTO judgements VALUES ('k', 'j', 'ok', '{}', '{}', 1.5);
"""


@pytest.mark.parametrize("more", ["", "ALTER TABLE judgements ADD COLUMN checksum TEXT"])
def test_a_journal_of_an_earlier_form_is_refused_and_left_as_it_is(
    tmp_path: Path, more: str
) -> None:
    path = tmp_path / "j.sqlite"
    with closing(sqlite3.connect(path)) as db:
        db.executescript(OLD + more)
        before = list(db.iterdump())
    message = re.escape(f"journal {path}: another version") + ".*: delete it or name another file"
    with pytest.raises(JournalError, match=message):
        Journal(path)
    with pytest.raises(JournalError, match=message):
        Reader(path).newer(9, lambda keys: {})
    with closing(sqlite3.connect(path)) as db:
        assert list(db.iterdump()) == before


def test_compacting_gives_room_back_while_others_have_the_file(tmp_path: Path) -> None:
    path, items = tmp_path / "j.sqlite", [JudgeInput("single", "q", (str(n),)) for n in range(200)]
    journal, other = Journal(path), Journal(path)
    draw = random.Random(1)
    for item in items:
        judgement = rated(5, critique=draw.randbytes(1000).hex())
        journal.put("judge", item, judgement)
    damage(path, "DELETE FROM judgements WHERE rowid > 20", rows=180)
    records = list(other.export())
    size = journal.statistics()["bytes"]
    journal.compact()
    assert path.stat().st_size < size / 2
    assert list(journal.export()) == list(other.export()) == records and len(records) == 20
    other.put("judge", items[-1], GOOD)  # whoever had it open writes on
    assert journal.get("judge", [items[-1]]) == {items[-1]: GOOD}
    journal.close()
    other.close()


def damage(path: Path, sql: str, rows: int = 1) -> None:
    with sqlite3.connect(path) as db:
        assert db.execute(sql).rowcount == rows
    db.close()


CELL = judgement_cell("judge", BETTER)


@pytest.mark.parametrize(
    "sql",
    [
        pytest.param(
            f"UPDATE judgements SET judgement = x'{CELL.hex()}'",
            id="another's judgement",
        ),
        pytest.param("UPDATE judgements SET outcome = 'truncated'", id="another outcome"),
        pytest.param("UPDATE judgements SET input = '{}'", id="another input"),
        pytest.param("UPDATE judgements SET judge = 'Ann'", id="another judge"),
        pytest.param("UPDATE judgements SET at = at + 1", id="another time"),
        pytest.param("UPDATE judgements SET judgement = x'00ff'", id="bytes"),
        pytest.param("UPDATE judgements SET judgement = ''", id="nothing"),
        pytest.param("UPDATE judgements SET checksum = 'x'", id="another checksum"),
    ],
)
def test_a_changed_row_is_named(tmp_path: Path, sql: str) -> None:
    path = tmp_path / "j.sqlite"
    journal = Journal(path)
    journal.put("judge", ITEM, GOOD)
    damage(path, sql)
    message = (
        rf"journal {path}: damaged: the row '{judgement_key('judge', ITEM)}' .*; put back a copy"
    )
    with pytest.raises(JournalError, match=message):
        journal.get("judge", [ITEM])
    with pytest.raises(JournalError, match=message):
        list(journal.export())
    journal.close()


@pytest.mark.parametrize("content", ["[]", "{", '{"outcome": "ok"}'])
def test_a_row_that_is_as_written_and_no_judgement_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "j.sqlite"
    journal = Journal(path)
    journal.put("judge", ITEM, GOOD)
    [(key, *cells)] = journal._execute("SELECT * FROM judgements", ())
    cells[3] = pack(content)
    row = cells[3].hex(), digest(key, *cells[:-1])
    damage(path, "UPDATE judgements SET judgement = x'{}', checksum = '{}'".format(*row))
    with pytest.raises(JournalError, match=f"damaged: the row '{key}' cannot be read"):
        journal.get("judge", [ITEM])
    journal.close()


@pytest.mark.parametrize(
    "sql",
    [
        pytest.param(f"UPDATE texts SET body = x'{pack('s').hex()}' WHERE id = 1", id="another"),
        pytest.param("UPDATE texts SET body = x'00' WHERE id = 1", id="bytes"),
        pytest.param("DELETE FROM texts WHERE id = 1", id="gone"),
    ],
)
def test_a_changed_text_is_named_and_costs_no_judgement(tmp_path: Path, sql: str) -> None:
    path = tmp_path / "j.sqlite"
    journal = Journal(path)
    journal.put("judge", ITEM, GOOD)
    journal.put_samples("policy", "q", SampledResponses(("a",), (-1.5,), (True,), 2))
    damage(path, sql)
    with pytest.raises(JournalError, match=f"damaged: the row '{judgement_key('judge', ITEM)}'"):
        list(journal.export())
    with pytest.raises(JournalError, match="damaged: the row"):
        journal.get_samples("policy", "q")
    assert journal.get("judge", [ITEM]) == {ITEM: GOOD}
    journal.close()


def test_changed_samples_are_named(tmp_path: Path) -> None:
    path = tmp_path / "j.sqlite"
    journal = Journal(path)
    journal.put_samples("policy", "q", SampledResponses(("a",), (-1.5,), (True,), 2))
    damage(path, "UPDATE samples SET samples = replace(samples, '-1.5', '-1.4')")
    with pytest.raises(JournalError, match="damaged: the row"):
        journal.get_samples("policy", "q")
    journal.close()


def test_flipped_bits_are_an_error_or_a_missing_row_and_never_another_judgement(
    tmp_path: Path,
) -> None:
    path, items = tmp_path / "j.sqlite", [JudgeInput("single", "q", (str(n),)) for n in range(30)]
    journal = Journal(path)
    for n, item in enumerate(items):
        judgement = rated(n % 10 + 1, critique=f"critique {n} " * 9)
        journal.put("judge", item, judgement)
    truth, rows = journal.get("judge", items), {str(row) for row in journal.export()}
    journal.close()
    whole, draw, errors = path.read_bytes(), random.Random(1), 0
    for _ in range(400):
        flipped, place = bytearray(whole), draw.randrange(len(whole))
        flipped[place] ^= 1 << draw.randrange(8)
        path.write_bytes(flipped)
        try:
            journal = Journal(path)
            assert journal.get("judge", items).items() <= truth.items()
            assert {str(row) for row in journal.export()} <= rows
        except JournalError as error:
            assert str(path) in str(error)
            errors += 1
        finally:
            journal.close()
    assert errors > 50


FILL = """
import sys
import time
from dataclasses import replace
from pathlib import Path
from autoj_reward.errors import JournalError
from autoj_reward.journal import Journal
from autoj_reward.types import JudgeInput, Judgement

try:
    journal = Journal(Path(sys.argv[1]))
except JournalError as error:
    sys.exit(f"0 {error}")
for n in range(10_000):
    said = replace(Judgement.of_score(5), critique="x" * 2000)
    try:
        journal.put("judge", JudgeInput("single", "q", (str(n),)), said)
    except JournalError as error:
        print(n, error)
        break
"""


def test_a_full_disk_is_an_error_and_what_was_stored_stays(tmp_path: Path) -> None:
    path = tmp_path / "j.sqlite"

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))

    process = subprocess.run(
        [sys.executable, "-c", FILL, str(path)],
        capture_output=True,
        text=True,
        preexec_fn=limit,
        check=True,
    )
    count, _, message = process.stdout.partition(" ")
    assert message.startswith(f"journal {path}: ")
    assert "free disk space" in message and "what was stored before is safe" in message
    assert int(count) > 10
    journal = Journal(path)
    items = [JudgeInput("single", "q", (str(n),)) for n in range(int(count))]
    assert set(journal.get("judge", items)) == set(items)
    journal.close()


def test_a_full_disk_is_named_where_a_journal_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "j.sqlite"
    process = subprocess.run(
        [sys.executable, "-c", FILL, str(path)],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)),
        check=False,
    )
    assert process.stderr.startswith(f"0 journal {path}: cannot be opened: ")
    assert "free disk space" in process.stderr and "remove" not in process.stderr
