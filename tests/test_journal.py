from __future__ import annotations

import hashlib
import os
import resource
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autoj_reward.errors import JournalError
from autoj_reward.journal import Journal, Sampled, judgement_key
from autoj_reward.types import JudgeInput, Judgement, Outcome, Rating, Usage, Verdict

ITEM = JudgeInput("q", ("r",))

# A split surrogate pair is left out: JSON cannot tell it from the character that it spells.
texts = st.text(st.characters(codec=None), max_size=20).filter(
    lambda s: s == s.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
)
shares = st.floats(0, 1)
tables = st.lists(st.tuples(texts, shares), max_size=4).map(tuple)
counts = st.integers(0, 10**6)
usages = st.builds(Usage, counts, counts, counts, st.floats(0, 1e6))
ratings = st.builds(
    Rating,
    value=st.floats(0, 10),
    distribution=st.none() | tables,
    expected=st.none() | st.floats(1, 10),
    outside=st.none() | shares,
    forced=st.booleans(),
)
common = {
    "critique": texts,
    "reason": texts,
    "usage": usages,
    "judge": texts,
    "flags": st.lists(texts, max_size=3).map(tuple),
    "confidence": st.none() | tables,
    "forced": st.booleans(),
}
judgements = st.one_of(
    st.builds(Judgement, outcome=st.just(Outcome.OK), rating=ratings, **common),
    st.builds(
        Judgement,
        outcome=st.just(Outcome.OK),
        verdict=st.sampled_from([Verdict.FIRST, Verdict.SECOND, Verdict.TIE]),
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
    query=texts,
    responses=st.lists(texts, min_size=1, max_size=2).map(tuple),
    sample=st.integers(0, 63),
)


@pytest.fixture
def journal(tmp_path: Path):
    opened = Journal(tmp_path / "j.sqlite")
    yield opened
    opened.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(item=inputs, judgement=judgements)
def test_every_judgement_comes_back_as_it_was(
    journal: Journal, item: JudgeInput, judgement: Judgement
) -> None:
    journal.put("judge", item, judgement)
    assert journal.get("judge", [item]) == {item: judgement}


@pytest.mark.parametrize(
    ("judge", "item"),
    [
        pytest.param("judge2", ITEM, id="judge"),
        pytest.param("judge", JudgeInput("q ", ("r",)), id="query"),
        pytest.param("judge", JudgeInput("q", ("r\0",)), id="response"),
        pytest.param("judge", JudgeInput("q", ("r", "")), id="one more response"),
        pytest.param("judge", JudgeInput("q", ("r",), 1), id="sample"),
        pytest.param("judge", JudgeInput("q", ("r",), direct=True), id="direct"),
        pytest.param("judgeq", JudgeInput("", ("r",)), id="text moved over a border"),
    ],
)
def test_the_key_changes_with_every_part(journal: Journal, judge: str, item: JudgeInput) -> None:
    journal.put("judge", ITEM, Judgement(Outcome.OK, rating=Rating(5)))
    assert journal.get(judge, [item]) == {}
    assert set(journal.get("judge", [ITEM])) == {ITEM}


@given(one=inputs, two=inputs)
def test_the_key_is_the_same_only_for_equal_inputs(one: JudgeInput, two: JudgeInput) -> None:
    assert (judgement_key("j", one) == judgement_key("j", two)) == (one == two)


def test_keys_of_earlier_journals_still_hold() -> None:
    # The SHA-256 of ["j", "q", ["r"], 0], as journals have held it from the start.
    old = hashlib.sha256(b'["j", "q", ["r"], 0]').hexdigest()
    assert judgement_key("j", JudgeInput("q", ("r",))) == old


def test_a_split_surrogate_pair_is_another_text_than_its_character() -> None:
    split, whole = JudgeInput("\ud83d\ude00", ("r",)), JudgeInput("\U0001f600", ("r",))
    assert judgement_key("j", split) != judgement_key("j", whole)


def test_responses_in_another_order_are_another_input() -> None:
    assert judgement_key("j", JudgeInput("q", ("a", "b"))) != judgement_key(
        "j", JudgeInput("q", ("b", "a"))
    )


def test_unavailable_is_recorded_but_not_given_back(journal: Journal) -> None:
    journal.put("judge", ITEM, Judgement(Outcome.UNAVAILABLE, reason="down"))
    assert journal.get("judge", [ITEM]) == {}
    assert [(r["outcome"], r["reason"]) for r in journal.export()] == [("unavailable", "down")]
    journal.put("judge", ITEM, Judgement(Outcome.OK, rating=Rating(5)))
    assert [r["outcome"] for r in journal.export()] == ["ok"]


def test_two_connections_share_a_file(tmp_path: Path) -> None:
    one, two = Journal(tmp_path / "j.sqlite"), Journal(tmp_path / "j.sqlite")
    said = Judgement(Outcome.OK, rating=Rating(5))
    one.put("judge", ITEM, said)
    assert two.get("judge", [ITEM]) == {ITEM: said}
    other = JudgeInput("q", ("s",))
    two.put("judge", other, said)
    assert set(one.get("judge", [ITEM, other])) == {ITEM, other}
    one.close()
    two.close()


def test_more_inputs_than_one_statement_takes(journal: Journal) -> None:
    items = [JudgeInput("q", (str(n),)) for n in range(1203)]
    for item in items[::2]:
        journal.put("judge", item, Judgement(Outcome.OK, rating=Rating(1)))
    assert set(journal.get("judge", items)) == set(items[::2])


@pytest.mark.parametrize("logprobs", [(-1.5, None), (None, None)], ids=str)
def test_samples_come_back_for_their_policy_and_query(
    journal: Journal, logprobs: tuple[float | None, ...]
) -> None:
    sampled = Sampled(("a", "\ud800"), logprobs, (True, False), 12)
    journal.put_samples("policy", "q", sampled)
    assert journal.get_samples("policy", "q") == sampled
    assert journal.get_samples("policy2", "q") is None
    assert journal.get_samples("policy", "q2") is None


def test_export_is_oldest_first_and_plain(journal: Journal) -> None:
    pair = JudgeInput("\ud800\0", ("a", "b"))
    journal.put("judge", pair, Judgement(Outcome.OK, verdict=Verdict.TIE))
    journal.put("judge", ITEM, Judgement(Outcome.OK, rating=Rating(5, (("5", 1.0),), 5.0, 0.0)))
    first, second = journal.export()
    assert first["input"] == {"query": "\ud800\0", "responses": ["a", "b"], "sample": 0}
    assert (first["verdict"], second["verdict"]) == ("tie", None)
    assert second["rating"]["distribution"] == [["5", 1.0]]
    assert second["judge"] == "judge" and first["at"] <= second["at"]


def test_the_oldest_judgements_make_room_for_new_ones(tmp_path: Path) -> None:
    path = tmp_path / "j.sqlite"
    reader = Journal(path)
    items = [JudgeInput("q", (str(n),)) for n in range(3000)]
    said = Judgement(Outcome.OK, critique="x" * 2000, rating=Rating(5))
    journal = Journal(path, max_gib=2 / 1024)
    for number, item in enumerate(items):
        journal.put("judge", item, said)
        if number % 100 == 0:
            newest = items[max(0, number - 99) : number + 1]
            assert set(reader.get("judge", newest)) == set(newest)
    kept = [item in found for found in [journal.get("judge", items)] for item in items]
    assert 150 < sum(kept) < 600
    assert kept == sorted(kept)  # the newest, without a gap
    journal.close()
    reader.close()
    assert path.stat().st_size < 2.2 * 2**20
    # Without a limit the same file grows again.
    journal = Journal(path)
    for item in items:
        journal.put("judge", item, said)
    assert len(journal.get("judge", items)) == 3000
    journal.close()


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


@pytest.mark.parametrize("make", [no_sqlite, a_folder, under_a_file, write_protected])
def test_a_journal_that_cannot_be_opened_is_named(tmp_path: Path, make) -> None:
    path = make(tmp_path)
    with pytest.raises(JournalError) as caught:
        Journal(path)
    assert str(caught.value).startswith(f"journal {path}: cannot be opened: ")
    assert str(caught.value).endswith("name a writable file, or remove it if it is no journal")


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
    journal = Journal(path)
    with pytest.raises(JournalError, match=str(path)):
        journal.get("judge", [ITEM])
    journal.close()


FILL = """
import sys
from pathlib import Path
from autoj_reward.errors import JournalError
from autoj_reward.journal import Journal
from autoj_reward.types import JudgeInput, Judgement, Outcome, Rating

journal = Journal(Path(sys.argv[1]))
for n in range(10_000):
    said = Judgement(Outcome.OK, critique="x" * 2000, rating=Rating(5))
    try:
        journal.put("judge", JudgeInput("q", (str(n),)), said)
    except JournalError as error:
        print(n, error)
        break
"""


def test_a_full_disk_is_an_error_and_what_was_stored_stays(tmp_path: Path) -> None:
    path = tmp_path / "j.sqlite"

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))

    done = subprocess.run(
        [sys.executable, "-c", FILL, str(path)],
        capture_output=True,
        text=True,
        preexec_fn=limit,
        timeout=60,
        check=True,
    )
    count, _, message = done.stdout.partition(" ")
    assert message.startswith(f"journal {path}: ")
    assert "what was stored before is safe: free disk space" in message
    assert int(count) > 10
    journal = Journal(path)
    items = [JudgeInput("q", (str(n),)) for n in range(int(count))]
    assert set(journal.get("judge", items)) == set(items)
    journal.close()
