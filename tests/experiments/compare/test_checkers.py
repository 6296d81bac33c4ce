from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.compare.checkers import KINDS, Checkable, grade_response, read_checkable

BUNDLED = "experiments/data/checkable.jsonl"
ROOT = Path(__file__).parents[3]


def read_rows(folder: Path, *rows: Any) -> Any:
    path = folder / "rows.jsonl"
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
    return read_checkable(str(path))


@pytest.fixture(scope="module")
def bundled() -> tuple[Checkable, ...]:
    file_rows = read_checkable(str(ROOT / BUNDLED))
    assert file_rows.bad == ()
    return file_rows.rows


@pytest.mark.parametrize(
    ("check", "response", "score"),
    [
        pytest.param({"kind": "words", "low": 4, "high": 4}, "one two three four", 1, id="words"),
        pytest.param(
            {"kind": "words", "low": 4, "high": 4}, "well-known, isn't it", 0.75, id="joined"
        ),
        pytest.param({"kind": "words", "high": 4}, "a b c d e f", 0.5, id="half over"),
        pytest.param({"kind": "words", "high": 2}, "a b c d e f", 0, id="far over"),
        pytest.param(
            {"kind": "sentences", "low": 2, "high": 2}, "It is 3.5 m. Yes!", 1, id="sentences"
        ),
        pytest.param(
            {"kind": "sentences", "low": 2, "high": 2}, 'He said "no." Well', 1, id="open end"
        ),
        pytest.param({"kind": "sentences", "low": 1, "high": 1}, "So... what?! No", 0, id="dots"),
        pytest.param(
            {"kind": "bullets", "low": 3, "high": 3}, "- a\n * b\n-c\n-", 2 / 3, id="bullets"
        ),
        pytest.param({"kind": "numbered", "low": 3}, "1. a\n2) b\n3. c\n4. d", 1, id="numbered"),
        pytest.param({"kind": "numbered", "low": 3}, "1. a\n1. b\n1. c", 1 / 3, id="out of turn"),
        pytest.param({"kind": "case", "to": "lower"}, "all of it is small 5", 1, id="lower"),
        pytest.param(
            {"kind": "case", "to": "lower"},
            "One of nine words is big as can be",
            4 / 9,
            id="one big",
        ),
        pytest.param({"kind": "case", "to": "upper"}, "plain words", 0, id="not upper"),
        pytest.param({"kind": "case", "to": "upper"}, "42", 0, id="no letters"),
        pytest.param({"kind": "json", "keys": ["a", "b"]}, '{"a": 1, "b": {"c": 2}}', 1, id="json"),
        pytest.param(
            {"kind": "json", "keys": ["a", "b"]},
            '```json\n{"a": 1, "c": 2}\n```',
            1 / 3,
            id="fence",
        ),
        pytest.param({"kind": "json", "keys": ["a"]}, 'Sure: {"a": 1}', 0, id="words around"),
        pytest.param({"kind": "json", "keys": ["a"]}, '["a"]', 0, id="no object"),
        pytest.param({"kind": "json", "keys": ["a"]}, "[" * 100_000 + "a", 0, id="deep"),
        pytest.param(
            {"kind": "contains", "words": ["red", "sea"]}, "The Red seal", 0.5, id="contains"
        ),
        pytest.param({"kind": "avoids", "words": ["red", "sea"]}, "The Red seal", 0.5, id="avoids"),
        pytest.param(
            {"kind": "starts", "text": "Of course"}, "**Of course!** Peas", 1, id="starts"
        ),
        pytest.param({"kind": "ends", "text": "see you soon"}, "Bye, see you SOON!", 1, id="ends"),
        pytest.param(
            {"kind": "ends", "text": "see you soon"}, "see you soon, Ann", 0, id="not last"
        ),
        pytest.param({"kind": "number", "value": 43}, "17 + 26 = 43.", 1, id="number"),
        pytest.param({"kind": "number", "value": 1043.5}, "$1,043.50", 1, id="thousands"),
        pytest.param({"kind": "number", "value": -3}, "it is -3", 1, id="negative"),
        pytest.param({"kind": "number", "value": 40}, "30", 0.1875, id="near"),
        pytest.param({"kind": "number", "value": 40}, "4000", 0, id="far"),
        pytest.param({"kind": "number", "value": 40}, "forty", 0, id="no digits"),
        pytest.param({"kind": "number", "value": 2}, "1 2 3 4", 0, id="all numbers listed"),
        pytest.param(
            {"kind": "names", "values": ["Ruth"], "others": ["Omar"]}, "ruth.", 1, id="names"
        ),
        pytest.param(
            {"kind": "names", "values": ["Ruth"], "others": ["Omar"]},
            "Ruth or Omar",
            0.5,
            id="both",
        ),
        pytest.param(
            {"kind": "names", "values": ["6"], "others": ["9", "11"]},
            "16",
            0,
            id="part of a number",
        ),
    ],
)
def test_scores(tmp_path: Path, check: dict[str, Any], response: str, score: float) -> None:
    [row] = read_rows(tmp_path, {"query": "q", "kind": "format", "checks": [check]}).rows
    assert grade_response(response, row.checks) == pytest.approx(score)


def test_the_grade_is_the_weighted_mean(tmp_path: Path) -> None:
    number = {"kind": "number", "value": 4, "weight": 3}
    checks = [number, {"kind": "words", "low": 1, "high": 1}]
    [row] = read_rows(tmp_path, {"query": "q", "kind": "counting", "checks": checks}).rows
    assert grade_response("4", row.checks) == 1
    assert grade_response("It is 4", row.checks) == 0.75
    assert grade_response("3", row.checks) == (3 * 0.1875 + 1) / 4


@pytest.mark.parametrize(
    ("row", "field", "reason"),
    [
        ({"checks": [{"kind": "rhyme"}]}, "checks[0]", "'rhyme'"),
        (
            {"checks": [{"kind": "words", "high": 4}, {"kind": "words", "hihg": 4}]},
            "checks[1].words.hihg",
            "Extra",
        ),
        ({"checks": [{"kind": "words", "low": 5, "high": 4}]}, "checks[0].words", "above high"),
        ({"checks": [{"kind": "words"}]}, "checks[0].words", "give low, high or both"),
        ({"checks": [{"kind": "ends", "text": "a", "weight": 0}]}, "checks[0].ends.weight", "0"),
        ({"checks": None}, "checks", "null"),
        ({"kind": "poetry"}, "kind", "'poetry' is none of format, arithmetic"),
        ("{", "", "JSON"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, row: Any, field: str, reason: str) -> None:
    good = {"query": "q", "kind": "format", "checks": [{"kind": "words", "high": 4}]}
    file_rows = read_rows(tmp_path, good, good | row if isinstance(row, dict) else row)
    assert len(file_rows.rows) == 1
    [bad] = file_rows.bad
    assert bad.line == 2
    assert bad.field.startswith(field)
    assert reason in str(bad)


def test_the_bundled_queries(bundled: tuple[Checkable, ...]) -> None:
    assert len({row.query for row in bundled}) == len(bundled) >= 64
    counts = Counter(row.kind for row in bundled)
    assert set(counts) == set(KINDS)
    assert min(counts.values()) >= 16
    assert {row.kind for row in bundled[:4]} == set(KINDS), "interleaved"


@pytest.mark.parametrize(
    ("start", "good", "bad"),
    [
        ("What is 17 + 26?", "43", "42"),
        ('How many letters "e"', "2", "elephant: 1 2 3 4 5 6 7 8"),
        ('Text: "Maria bought', "Maria", "Maria bought a red scarf for her sister Elena."),
        ("Count backwards", "5\n4\n3\n2\n1", "1 2 3 4 5"),
        ("Return a JSON object", '{"name": "Ann", "age": 40}', "name: Ann, age: 40"),
        ("Describe the sea", "The sea is a wide blue mirror that never keeps quite still.", "Sea."),
    ],
)
def test_a_right_answer_beats_a_wrong_one(
    bundled: tuple[Checkable, ...], start: str, good: str, bad: str
) -> None:
    [row] = [row for row in bundled if row.query.startswith(start)]
    assert grade_response(good, row.checks) == pytest.approx(1)
    assert grade_response(bad, row.checks) < 0.8


def test_nothing_and_everything_pass_no_query(bundled: tuple[Checkable, ...]) -> None:
    numbers = " ".join(map(str, range(2000)))
    for row in bundled:
        for response in ("", " \n", "...", "-", "🙂"):
            assert grade_response(response, row.checks) == 0
        assert grade_response(numbers, row.checks) < 0.9, row.query
        assert grade_response(row.query, row.checks) < 1, row.query


@given(response=st.text(), row=st.integers(0, 63))
def test_every_response_has_a_grade(
    bundled: tuple[Checkable, ...], response: str, row: int
) -> None:
    assert 0 <= grade_response(response, bundled[row].checks) <= 1
