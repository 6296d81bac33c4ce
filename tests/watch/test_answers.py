"""API of the page: filters, sort orders, search and pairs, also with hostile texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.errors import ConfigError, InputError
from autoj_reward.io.files import to_compact_json
from autoj_reward.types import Outcome, Verdict
from autoj_reward.watch.answers import Answers
from autoj_reward.watch.run import Run
from autoj_reward.watch.shown import CUT
from tests.watch.conftest import JUDGE, OpenRun, ReadAnswers, Record


@pytest.fixture
def answers(record: Record, read_answers: ReadAnswers) -> Answers:
    """Return the answers for four queries: distinct ratings, ties, some failures, compared."""
    record.rate("apart", "good", 9, expected=8.5, critique="It names Rayleigh scattering.")
    record.rate("apart", "bad", 2, expected=2.5, critique="It names nothing.")
    record.rate("apart", "fair", 5, expected=5.1)
    record.rate("tied", "a", 6, expected=6.2)
    record.rate("tied", "b", 6, expected=5.8)
    record.rate("partly", "ok", 4, flags=("planted_verdict",))
    record.rate("partly", "cut", outcome=Outcome.TRUNCATED, reason="no rating slot")
    record.rate("paired", "x", 7)
    record.rate("paired", "y", 7)
    record.compare("paired", "x", "y", Verdict.FIRST, "X says more.")
    record.compare("paired", "y", "x", Verdict.SECOND)
    return read_answers(record.folder)


def list_queries(answers: Answers, **parameters: str) -> list[str]:
    return [row["text"] for row in answers.answer("queries", parameters)["rows"]]


def find_query_id(answers: Answers, query: str) -> str:
    rows = answers.answer("queries", {"search": query})["rows"]
    return str(rows[0]["id"])


@pytest.mark.parametrize(
    ("parameters", "texts"),
    [
        pytest.param({"order": "oldest"}, ["apart", "tied", "partly", "paired"], id="oldest"),
        pytest.param({"order": "newest"}, ["paired", "partly", "tied", "apart"], id="newest"),
        pytest.param({"order": "highest"}, ["apart", "paired", "tied", "partly"], id="highest"),
        pytest.param({"order": "lowest"}, ["apart", "partly", "tied", "paired"], id="lowest"),
        pytest.param({"order": "spread"}, ["apart", "tied", "partly", "paired"], id="spread"),
        pytest.param({"order": "failures", "outcome": "truncated"}, ["partly"], id="outcome"),
        pytest.param({"flag": "planted_verdict"}, ["partly"], id="flag"),
        pytest.param({"flag": "unheard of"}, [], id="no such flag"),
        pytest.param({"outcome": "ok", "search": "RAYLEIGH"}, ["apart"], id="critique"),
        pytest.param({"search": "x says more"}, ["paired"], id="critique of a comparison"),
        pytest.param({"search": "rating slot"}, ["partly"], id="reason"),
        pytest.param({"search": "no such words"}, [], id="nothing"),
    ],
)
def test_queries_are_sorted_filtered_and_searched(
    answers: Answers, parameters: dict[str, str], texts: list[str]
) -> None:
    assert list_queries(answers, **parameters) == texts


def test_a_line_of_the_list(answers: Answers) -> None:
    [row] = answers.answer("queries", {"search": "rayleigh"})["rows"]
    assert row["values"] == [2, 5, 9]
    assert (row["best"], row["worst"], row["candidates"], row["failed"]) == (9, 2, 3, 0)
    [row] = answers.answer("queries", {"search": "rayleigh", "view": "expected"})["rows"]
    assert row["values"] == [2.5, 5.1, 8.5]


def test_pages_follow_each_other(record: Record, read_answers: ReadAnswers) -> None:
    for n in range(45):
        record.rate(f"query {n}", "r", 5)
    answers, start, texts = read_answers(record.folder), 0, []
    while start is not None:
        page = answers.answer("queries", {"order": "oldest", "start": str(start)})
        texts += [row["text"] for row in page["rows"]]
        start = page["next"]
    assert texts == [f"query {n}" for n in range(45)]


def test_a_search_says_how_far_it_came(
    record: Record, monkeypatch: pytest.MonkeyPatch, read_answers: ReadAnswers
) -> None:
    for n in range(60):
        record.rate(f"query {n}", "needle" if n == 59 else "hay", 5)
    answers, start, looks, texts = read_answers(record.folder), 0, 0, []
    ticks = iter(range(1000))
    monkeypatch.setattr("autoj_reward.watch.answers.time.monotonic", lambda: next(ticks) * 0.6)
    while start is not None:
        parameters = {"search": "needle", "order": "oldest", "start": str(start)}
        page = answers.answer("queries", parameters)
        texts += [row["text"] for row in page["rows"]]
        start, looks = page["next"], looks + 1
    assert texts == ["query 59"]
    assert looks == 3  # a stretch of 25 a second


def test_a_query_with_its_best_first(answers: Answers) -> None:
    reply = answers.answer("query", {"id": find_query_id(answers, "rayleigh")})
    assert reply["text"] == "apart"
    assert [c["text"] for c in reply["candidates"]] == ["good", "fair", "bad"]
    values = {"rating": 9, "expected": 8.5, "direct": None, "pessimistic": 8.5}
    assert reply["candidates"][0]["values"] == values


def test_equal_ratings_are_ordered_by_the_expected_one(answers: Answers) -> None:
    reply = answers.answer("query", {"id": find_query_id(answers, "tied")})
    assert [c["text"] for c in reply["candidates"]] == ["a", "b"]


def test_two_candidates_and_what_each_order_said(answers: Answers) -> None:
    number = find_query_id(answers, "x says more")
    first, second = (c["name"] for c in answers.answer("query", {"id": number})["candidates"])
    reply = answers.answer("pair", {"id": number, "one": first, "two": second})
    assert [c["response"] for c in reply["candidates"]] == ["x", "y"]
    assert [len(c["judgements"]) for c in reply["candidates"]] == [1, 1]
    comparisons = [(c["one"], c["two"], c["verdict"], c["critique"]) for c in reply["comparisons"]]
    assert comparisons == [(first, second, "first", "X says more."), (second, first, "second", "")]


def test_a_run_that_only_compares(record: Record, read_answers: ReadAnswers) -> None:
    record.compare("q", "left", "right", Verdict.TIE)
    answers = read_answers(record.folder)
    [row] = answers.answer("queries", {})["rows"]
    reply = answers.answer("query", {"id": str(row["id"])})
    assert [c["text"] for c in reply["candidates"]] == ["left", "right"]
    assert answers.answer("run", {})["journal"]["verdicts"] == {"tie": 1}
    first, second = (c["name"] for c in reply["candidates"])
    pair = answers.answer("pair", {"id": str(row["id"]), "one": first, "two": second})
    assert [c["response"] for c in pair["candidates"]] == ["left", "right"]
    assert len(pair["comparisons"]) == 1


def test_the_figures_of_a_run(answers: Answers) -> None:
    reply = answers.answer("run", {})
    journal, statistics = reply["journal"], reply["statistics"]
    assert (journal["judged"], journal["failed"], reply["state"]) == (11, 1, "unknown")
    assert journal["kinds"] == {"rating": 9, "comparison": 2}
    assert (statistics["queries"], statistics["candidates"]) == (4, 9)
    assert (statistics["outcomes"]["ok"], statistics["outcomes"]["truncated"]) == (8, 1)
    assert reply["views"]["rating"]["pair_tie_rate"] == 2 / 5
    assert reply["views"]["rating"]["tie_rate"] == 2 / 3
    assert list(statistics["bars"]) == [(2.0, 1), (4.0, 1), (5.0, 1), (6.0, 2), (7.0, 2), (9.0, 1)]
    assert reply["all_flags"] == ["planted_verdict"]
    assert reply["summary"] is None and reply["training"] is None


def test_a_failure_that_was_judged_again_is_counted_once(record: Record, open_run: OpenRun) -> None:
    record.rate("q", "r", outcome=Outcome.UNAVAILABLE, reason="gone")
    run = open_run(record.folder)
    run.refresh()
    answers = Answers(run)
    assert answers.answer("run", {})["statistics"]["reasons"] == {"gone": 1}
    record.rate("q", "r", 8)
    run.refresh()
    run.refresh()
    reply = answers.answer("run", {})
    assert (reply["journal"]["judged"], reply["journal"]["failed"]) == (1, 0)
    outcomes = reply["statistics"]["outcomes"]
    assert {name: n for name, n in outcomes.items() if n} == {"ok": 1}
    assert reply["statistics"]["reasons"] == {}
    assert list_queries(answers, outcome="unavailable") == []


def test_several_judges_are_kept_apart(record: Record, read_answers: ReadAnswers) -> None:
    record.rate("q", "r", 3, judge="first judge")
    record.rate("q", "r", 9, judge="second judge")
    answers = read_answers(record.folder)
    reply = answers.answer("run", {})
    assert reply["judges"] == ["first judge", "second judge"]
    assert (reply["judge"], reply["statistics"]["mean_rating"]) == (1, 9)
    assert answers.answer("run", {"judge": "0"})["statistics"]["mean_rating"] == 3


HOSTILE = "</script><script>alert(1)</script>\u202e\x00\ud800"


def test_hostile_texts_travel_as_visible_text(record: Record, read_answers: ReadAnswers) -> None:
    judge = HOSTILE.replace("\ud800", "")
    record.rate(HOSTILE, HOSTILE, 3, critique=HOSTILE, flags=(HOSTILE,), judge=judge)
    answers = read_answers(record.folder)
    number = str(answers.answer("queries", {})["rows"][0]["id"])
    name = answers.answer("query", {"id": number})["candidates"][0]["name"]
    for reply in (
        answers.answer("run", {}),
        answers.answer("query", {"id": number}),
        answers.answer("pair", {"id": number, "one": name}),
    ):
        text = to_compact_json(reply, finite=True).decode()
        assert text.isascii()
        assert not any(bad in text for bad in ("\\u202e", "\\u0000", "\\ud800"))
    critique = answers.answer("pair", {"id": number, "one": name})["candidates"][0]["judgements"][0]
    assert critique["critique"] == "</script><script>alert(1)</script>\ufffd\u2400\ufffd"


def test_texts_without_an_end_are_cut(record: Record, read_answers: ReadAnswers) -> None:
    record.rate("q " * CUT, "r" * 10**6, 3, critique="c" * 10**6)
    answers = read_answers(record.folder)
    number = str(answers.answer("queries", {})["rows"][0]["id"])
    reply = answers.answer("query", {"id": number})
    name = reply["candidates"][0]["name"]
    pair = answers.answer("pair", {"id": number, "one": name})
    assert pair["candidates"][0]["response"].endswith("… 960,000 more characters")
    assert len(to_compact_json(reply)) + len(to_compact_json(pair)) < 4 * CUT


def test_a_query_with_many_candidates_names_its_ends(
    record: Record, read_answers: ReadAnswers
) -> None:
    ratings = [(n % 97) / 10 for n in range(450)]
    for n, rating in enumerate(ratings):
        record.rate("q", f"r{n}", rating)
    answers = read_answers(record.folder)
    reply = answers.answer("query", {"id": "1"})
    values = [c["values"]["rating"] for c in reply["candidates"]]
    assert reply["total"] == 450
    assert values == sorted(ratings, reverse=True)[:100] + sorted(ratings, reverse=True)[-100:]


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        pytest.param("nothing", {}, "ask for one of run, queries", id="unknown question"),
        pytest.param("queries", {"order": "at; DROP TABLE asked"}, "none of newest", id="order"),
        pytest.param("queries", {"view": "worst"}, "none of rating", id="view"),
        pytest.param("queries", {"start": "-1"}, "no number", id="negative"),
        pytest.param("queries", {"start": "9" * 20}, "no number", id="huge"),
        pytest.param("run", {"judge": "7"}, "no judge 7", id="judge"),
        pytest.param("query", {"id": "999"}, "no query 999", id="query"),
        pytest.param("query", {}, "no query 0", id="no id"),
    ],
)
def test_questions_that_are_none(
    answers: Answers, name: str, parameters: dict[str, str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        answers.answer(name, parameters)


def test_names_that_are_not_there_find_nothing(answers: Answers) -> None:
    reply = answers.answer("pair", {"id": "1", "one": "12", "two": "x' OR 1"})
    assert [c["judgements"] for c in reply["candidates"]] == [[], []]


def test_a_run_in_which_nothing_is_judged(tmp_path: Path, read_answers: ReadAnswers) -> None:
    answers = read_answers(tmp_path)
    reply = answers.answer("run", {})
    assert (reply["journal"]["judged"], reply["judges"], reply["journal"]["series"]) == (0, [], [])
    assert answers.answer("queries", {}) == {"total": 0, "next": None, "rows": []}
    assert answers.answer("curves", {}) == {"curves": {}}
    json.loads(to_compact_json(reply, finite=True))


def test_no_run_is_said_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no run is there: name the output of best-of-n"):
        Run(tmp_path / "runs" / "none")


def test_runs_are_named_by_their_results_too(tmp_path: Path, read_answers: ReadAnswers) -> None:
    record = Record(tmp_path, "judged.jsonl.journal.sqlite")
    record.rate("q", "r", 5)
    record.journal.close()
    (tmp_path / "judged.jsonl.summary.json").write_text('{"rows": 1, "rows_left_out": 1}')
    for path in (tmp_path / "judged.jsonl", tmp_path / "judged.jsonl.journal.sqlite"):
        assert read_answers(path).answer("run", {})["journal"]["judged"] == 1
    reply = read_answers(tmp_path / "judged.jsonl").answer("run", {})
    assert reply["summary"] == {
        "view": "rating",
        "scored_by": None,
        "value_name": "rating",
        "rows": 1,
        "rows_left_out": 1,
    }
    assert reply["state"] == "finished"


def test_the_journals_of_shards_are_one_run(tmp_path: Path, read_answers: ReadAnswers) -> None:
    for n in range(3):
        record = Record(tmp_path / f"shard-{n}")
        record.rate(f"query {n}", "r", n + 1)
        record.journal.close()
    answers = read_answers(tmp_path)
    assert answers.answer("run", {})["journal"]["judged"] == 3
    assert list_queries(answers, order="oldest") == ["query 0", "query 1", "query 2"]


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"curve": {"1": 2}, "rules": 7, "queries": "many"}', '{"curve": [[1], "a"]}'],
    ids=["empty", "a list", "half written", "other types", "no points"],
)
def test_a_summary_of_another_version(record: Record, text: str, read_answers: ReadAnswers) -> None:
    record.rate("q", "r", 5)
    (record.folder / "summary.json").write_text(text)
    reply: dict[str, Any] = read_answers(record.folder).answer("run", {})
    assert (reply["journal"]["judged"], reply["statistics"]["queries"]) == (1, 1)
    assert not (reply["summary"] or {}).get("curve") and not (reply["summary"] or {}).get("rules")
    assert JUDGE in reply["judges"]


def test_a_journal_that_cannot_be_read_is_said_on_the_page(
    tmp_path: Path, read_answers: ReadAnswers
) -> None:
    (tmp_path / "journal.sqlite").write_text("no journal\n" * 100)
    reply = read_answers(tmp_path).answer("run", {})
    assert "journal.sqlite: cannot be read" in reply["trouble"]
