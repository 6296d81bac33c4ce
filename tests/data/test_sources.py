from __future__ import annotations

import json
import os
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.data.filters import (
    NearDuplicates,
    filter_rows,
    is_english,
    measured_queries,
)
from autoj_reward.data.preferences import Preference, SourceConfig, read_preferences
from autoj_reward.errors import ConfigError, InputError
from autoj_reward.types import Verdict

DATA = Path(os.environ.get("AUTOJ_DATA", Path(__file__).parents[2] / "../shared/data"))
FIRST, SECOND, TIE = Verdict.FIRST, Verdict.SECOND, Verdict.TIE
DATASKETCH = pytest.mark.skipif(find_spec("datasketch") is None, reason="datasketch is missing")


def make_dialogue(*texts: str) -> list[dict[str, str]]:
    return [
        {"role": "assistant" if n % 2 else "user", "content": text} for n, text in enumerate(texts)
    ]


ARENA = {
    "question_id": "1",
    "model_a": "m",
    "model_b": "n",
    "winner": "model_b",
    "conversation_a": make_dialogue("Why?", "A", "And?", "later"),
    "conversation_b": make_dialogue("Why?", "B", "And?", "last"),
    "turn": 2,
    "language": "English",
}
MT_BENCH = {name: field for name, field in ARENA.items() if name != "language"} | {
    "turn": 1,
    "judge": "expert_1",
}
SUMMARY: dict[str, Any] = {
    "info": {"id": "x", "title": "My {post} cat", "post": "It ran away.", "subreddit": "cats"},
    "summaries": [{"text": " Cat lost.", "policy": "p"}, {"text": " A cat.", "policy": "q"}],
    "choice": 0,
}
WEBGPT: dict[str, Any] = {
    "question": {"dataset": "eli5", "full_text": "Why is rain wet?"},
    "answer_0": "It is water [1].",
    "answer_1": "Because.",
    "score_0": 0.5,
    "score_1": -0.5,
}
SHP = {"history": "How?", "human_ref_A": "So", "human_ref_B": "Thus", "labels": 1, "domain": "x"}
SAFE = {
    "prompt": "How?",
    "response_0": "So",
    "response_1": "Thus",
    "better_response_id": 1,
    "safer_response_id": 0,
}
HH = {
    "chosen": "\n\nHuman: How?\n\nAssistant: Well",
    "rejected": "\n\nHuman: How?\n\nAssistant: So",
}
PANDALM = {
    "instruction": "Sum up",
    "input": "a text",
    "response1": "x",
    "response2": "y",
    "annotator1": 0,
    "annotator2": 0,
    "annotator3": 2,
}
OWN = {"query": "Q", "response_1": "x", "response_2": "y"}


def read_source(folder: Path, *rows: Any) -> Any:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return read_preferences(SourceConfig(path=""), str(path))


@pytest.mark.parametrize(
    ("layout", "row", "query", "responses", "label"),
    [
        pytest.param("arena", ARENA, "Why?", ("A", "B"), SECOND, id="arena"),
        pytest.param(
            "arena", ARENA | {"winner": "tie (bothbad)"}, "Why?", ("A", "B"), TIE, id="bad"
        ),
        pytest.param("arena", ARENA | {"winner": None}, "Why?", ("A", "B"), None, id="no vote"),
        pytest.param("mtbench", MT_BENCH, "Why?", ("A", "B"), SECOND, id="mt-bench"),
        pytest.param(
            "openai_summary",
            SUMMARY,
            "Summarize the following post\n\nTitle: My {post} cat\n\nPost: It ran away.",
            ("Cat lost.", "A cat."),
            FIRST,
            id="summary",
        ),
        pytest.param(
            "webgpt",
            WEBGPT,
            "Why is rain wet?",
            ("It is water [1].", "Because."),
            FIRST,
            id="webgpt",
        ),
        pytest.param(
            "webgpt",
            WEBGPT | {"score_0": 0.0, "score_1": 0.0},
            "Why is rain wet?",
            ("It is water [1].", "Because."),
            TIE,
            id="webgpt, tie",
        ),
        pytest.param("shp", SHP, "How?", ("So", "Thus"), FIRST, id="shp"),
        pytest.param("shp", SHP | {"labels": 0}, "How?", ("So", "Thus"), SECOND, id="shp, B"),
        pytest.param("safe_rlhf", SAFE, "How?", ("So", "Thus"), SECOND, id="safe-rlhf"),
        pytest.param("pandalm", PANDALM, "Sum up\na text", ("x", "y"), TIE, id="pandalm"),
        pytest.param("pair", OWN, "Q", ("x", "y"), None, id="own, no label"),
        pytest.param("pair", OWN | {"label": 2}, "Q", ("x", "y"), TIE, id="own"),
        pytest.param("pair", OWN | {"label": "first"}, "Q", ("x", "y"), FIRST, id="own, word"),
    ],
)
def test_published_rows(
    tmp_path: Path,
    layout: str,
    row: Any,
    query: str,
    responses: tuple[str, str],
    label: Verdict | None,
) -> None:
    result = read_source(tmp_path, row)
    [only] = result.rows
    assert (only.query, only.responses, only.label) == (query, responses, label)
    assert (only.source, only.line, result.bad) == (layout, 1, ())


def test_the_better_response_is_not_always_first(tmp_path: Path) -> None:
    """Rows that differ in one letter come in both orders, each with the label of its order."""
    rows = [{"prompt": "How?", "chosen": " Well", "rejected": "So " + "s" * n} for n in range(20)]
    preferences = read_source(tmp_path, *rows).rows
    chosen_texts = [r.responses[0 if r.label is FIRST else 1] for r in preferences]
    assert set(chosen_texts) == {"Well"}
    assert {r.label for r in preferences} == {FIRST, SECOND}


@pytest.mark.parametrize(
    ("row", "field", "reason"),
    [
        pytest.param(
            ARENA | {"winner": "me"},
            "winner",
            "'me' is no label: one of model_a, model_b, tie",
            id="winner",
        ),
        pytest.param(
            ARENA | {"conversation_b": make_dialogue("What?", "B")},
            "conversation_b",
            "another than",
            id="two queries",
        ),
        pytest.param(
            ARENA | {"conversation_a": make_dialogue("Why?")},
            "conversation_a",
            "no query with its answer",
            id="no answer",
        ),
        pytest.param(
            ARENA
            | {
                "conversation_a": make_dialogue(" ", "A"),
                "conversation_b": make_dialogue(" ", "B"),
            },
            "conversation_a",
            "blank: ' '",
            id="blank",
        ),
        pytest.param(MT_BENCH | {"turn": 2}, "turn", "2: a vote on a later turn", id="later_turn"),
        pytest.param({"info": {}, "summaries": []}, "summaries", "not two", id="no summaries"),
        pytest.param(SUMMARY | {"choice": 2}, "choice", "one of 0, 1", id="choice"),
        pytest.param(WEBGPT | {"score_1": "x"}, "score_1", "'x'", id="score"),
        pytest.param(SHP | {"labels": True}, "labels", "True is no label", id="labels"),
        pytest.param({"prompt": "Q"}, "response_1", "missing", id="no responses"),
        pytest.param(SAFE | {"response_1": 3}, "response_1", "not a string", id="no"),
        pytest.param(OWN | {"label": "better"}, "label", "'better'", id="label"),
        pytest.param("text", "", "not a JSON object", id="no object"),
        pytest.param(
            {
                "chosen": "\n\nHuman: a\n\nAssistant: b\n\nHuman: c\n\nAssistant: d",
                "rejected": "\n\nHuman: a\n\nAssistant: b\n\nHuman: c\n\nAssistant: e",
            },
            "chosen",
            "a later turn",
            id="later answers",
        ),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, row: Any, field: str, reason: str) -> None:
    [bad] = read_source(tmp_path, row).bad
    assert (bad.line, bad.field) == (1, field)
    assert reason in bad.reason


@pytest.mark.parametrize(
    ("layout", "path", "rows", "bad"),
    [
        ("hh", "hh/harmless_base_test.jsonl.gz", 2312, None),
        ("pandalm", "pandalm/testset-v1.json", 999, 7),
    ],
)
def test_the_real_files(layout: str, path: str, rows: int, bad: int | None) -> None:
    if not (DATA / path).is_file():
        pytest.skip(f"no {DATA / path}: set AUTOJ_DATA to the folder of the released data")
    source = SourceConfig(path=path)
    result = read_preferences(source, str(DATA / path))
    assert len(result.rows) + len(result.bad) == rows
    assert {row.source for row in result.rows} == {layout}
    assert bad is None or len(result.bad) == bad
    assert len(result.rows) > 100
    labels = Counter(row.label for row in result.rows)
    assert labels[FIRST] > 0.25 * len(result.rows) < 4 * labels[SECOND]
    english = sum(is_english(row.query + " " + " ".join(row.responses)) for row in result.rows)
    assert english > 0.97 * len(result.rows)


@pytest.mark.parametrize(
    ("text", "english"),
    [
        ("How do I bake bread at home?", True),
        ("def f(x): return {k: v for k, v in x}", True),
        ("", True),
        ("Hallo", True),  # too short to tell
        ("Wie backe ich ein Brot und was ist die beste Sorte von Mehl?", False),
        ("¿Cómo se hace el pan en casa y qué harina es la mejor?", False),
        ("Comment faire du pain à la maison avec une farine qui est bonne ?", False),
        ("怎么在家里做面包？", False),
        ("Как испечь хлеб дома?", False),
        ('Translate "la casa es grande" to English, and explain the grammar of it to me.', True),
    ],
)
def test_english(text: str, english: bool) -> None:
    assert is_english(text) is english


def make_pair(
    query: str, first: str, second: str, label: Verdict | None = FIRST, **more: Any
) -> Any:
    return Preference(query, (first, second), label, source="s", file="f", line=1, **more)


@pytest.mark.parametrize(
    ("rows", "reasons"),
    [
        pytest.param(
            [make_pair("Q", "a", "b"), make_pair("q ", "B", "a", SECOND)], ["duplicate"], id="swap"
        ),
        pytest.param(
            [make_pair("Q", "a", "b"), make_pair("Q", "b", "a", FIRST)],
            ["labels_contradict"] * 2,
            id="labels",
        ),
        pytest.param([make_pair("Was ist das und wo?", "a", "b")], ["not_english"], id="german"),
        pytest.param([make_pair("Hallo", "a", "b", english=False)], ["not_english"], id="told"),
        pytest.param([make_pair("Was ist das und wo?", "a", "b", english=True)], [], id="told too"),
        pytest.param([make_pair("Q", "a ", "A")], ["equal_responses"], id="equal"),
        pytest.param([make_pair("Q", " ", "A")], ["empty_response"], id="empty"),
        pytest.param([make_pair("Known  QUERY", "a", "b")], ["measured"], id="measured"),
        pytest.param([make_pair("Q", "a", "b"), make_pair("Q", "a", "c")], [], id="same query"),
    ],
)
def test_what_is_left_out(rows: list[Preference], reasons: list[str]) -> None:
    result = filter_rows(rows, ["known query"], None)
    assert [d.reason for d in result.dropped] == reasons
    assert len(result.rows) + len(result.dropped) == len(rows)


LONG = "Tell me in detail how the steam engine changed the way people worked and lived in towns"


@DATASKETCH
def test_near_duplicates_are_left_out() -> None:
    rows = [
        make_pair(LONG + " please", "a", "b"),
        make_pair("Where do the swallows go in the winter months?", LONG, LONG + " and cities"),
        make_pair(
            "Where do the swallows go in the winter months", LONG + "?", LONG + " and cities!"
        ),
        make_pair("Where do the geese go?", "South", "North"),
    ]
    result = filter_rows(rows, [LONG], 0.8)
    assert [d.reason for d in result.dropped] == ["nearly_measured", "near_duplicate"]
    assert len(result.rows) == 2


@pytest.mark.skipif(find_spec("datasketch") is not None, reason="datasketch is installed")
def test_without_datasketch_the_remedy_is_named() -> None:
    with pytest.raises(ConfigError, match="needs the package datasketch: install it, or set"):
        NearDuplicates(0.8)


def test_measured_queries(tmp_path: Path) -> None:
    path = tmp_path / "eval.jsonl"
    path.write_text('{"prompt": "A"}\n{"query": "B"}\n{"instruction": "C"}\n')
    assert measured_queries([str(path)]) == ["A", "B", "C"]
    path.write_text('{"prompt": "A"}\n{"text": "B"}\n')
    with pytest.raises(
        InputError, match=r"eval.jsonl:2: no prompt and no response apart \(layout trl_lm\)"
    ):
        measured_queries([str(path)])
