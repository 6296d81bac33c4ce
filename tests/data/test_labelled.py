from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.config import load_config
from autoj_reward.data.collect import CollectConfig
from autoj_reward.data.labelled import (
    Compared,
    JudgeData,
    compared_files,
    data_path,
    is_held_out,
    rated_files,
    read_compared,
    read_rated,
    swapped,
)
from autoj_reward.errors import InputError
from autoj_reward.formats.render import render
from autoj_reward.formats.schema import load_format
from autoj_reward.training.judge.recipe import TrainJudgeConfig
from autoj_reward.types import Verdict
from tests.judgements import asked

FORMAT = load_format("autoj-en")
CONFIGS = Path(__file__).parents[2] / "configs"


def render_message(query: str, *responses: str) -> str:
    return render(asked(query, responses), FORMAT)[-1].text


def write_file(folder: Path, rows: list[Any]) -> str:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def test_the_published_form_of_rated_rows(tmp_path: Path) -> None:
    good = {
        "usrmsg": render_message("Why?\n***\nReally", "Because\n***"),
        "target_output": "Thin.\n\nRating: [[5.5]]",
        "pred_score": "5.5",
    }
    renamed = {"usermsg": render_message("Q", "R"), "target_output": "Fine.\n\nRating: [[7]]"}
    result = read_rated(write_file(tmp_path, [good, renamed]), FORMAT)
    first, second = result.rows
    assert (first.query, first.response, first.rating) == ("Why?\n***\nReally", "Because\n***", 5.5)
    assert (second.rating, second.judgement) == (7.0, "Fine.\n\nRating: [[7]]")
    assert not result.bad


@pytest.mark.parametrize(
    ("change", "field", "reason"),
    [
        pytest.param(
            {"pred_score": "11"}, "pred_score", "no rating of the scale 1 to 10", id="off"
        ),
        pytest.param({"pred_score": "5.3"}, "pred_score", "no rating", id="no half point"),
        pytest.param({"pred_score": None}, "pred_score", "null is no rating", id="null"),
        pytest.param({"pred_score": True}, "pred_score", "no rating", id="bool"),
        pytest.param({"pred_score": "nan"}, "pred_score", "no rating", id="nan"),
        pytest.param({"pred_score": 4}, "pred_score", "4, but the text rates 3", id="other"),
        pytest.param(
            {"target_output": "Nice."}, "target_output", "no rating at its end", id="none"
        ),
        pytest.param({"target_output": 3}, "target_output", "not a string", id="type"),
        pytest.param({"usrmsg": "Rate this"}, "usrmsg", "not the single input", id="template"),
        pytest.param({"usrmsg": render_message(" ", "R")}, "usrmsg", "blank", id="blank"),
        pytest.param(
            {"usrmsg": render_message("Q\n***\n[Response]: x", "R")},
            "usrmsg",
            "occurs 2",
            id="ambiguous",
        ),
    ],
)
def test_bad_rated_rows_are_named(
    tmp_path: Path, change: dict[str, Any], field: str, reason: str
) -> None:
    row = {"usrmsg": render_message("Q", "R"), "target_output": "Rating: [[3]]", "pred_score": "3"}
    result = read_rated(write_file(tmp_path, [row, row | change]), FORMAT)
    assert len(result.rows) == 1
    [bad] = result.bad
    assert (bad.line, bad.field) == (2, field)
    assert reason in bad.reason


def test_own_form_of_rated_rows(tmp_path: Path) -> None:
    rows = [{"query": "Q", "response": "", "rating": 2}, {"query": "Q", "response": "R"}]
    result = read_rated(write_file(tmp_path, rows), FORMAT)
    assert [(row.response, row.rating, row.judgement) for row in result.rows] == [("", 2.0, "")]
    assert [(bad.line, bad.field) for bad in result.bad] == [(2, "rating")]


PANDALM = {
    "instruction": "Sum up",
    "input": "a text",
    "response1": "x",
    "response2": "y",
    "annotator1": 1,
    "annotator2": 2,
    "annotator3": 2,
}
TRAINED = {
    "usrmsg": render_message("Q", "A", "B"),
    "target_output": "Response 2 is thin. So, the final decision is Response 1.",
    "gt_label": 0,
}


@pytest.mark.parametrize(
    ("row", "query", "label"),
    [
        pytest.param(PANDALM, "Sum up\na text", Verdict.SECOND, id="pandalm"),
        pytest.param(PANDALM | {"input": ""}, "Sum up", Verdict.SECOND, id="pandalm, no input"),
        pytest.param(PANDALM | {"annotator2": 0}, "Sum up\na text", Verdict.TIE, id="no majority"),
        pytest.param(
            {"prompt": "Q", "response 1": "x", "response 2": "y", "label": 2},
            "Q",
            Verdict.TIE,
            id="eval-p",
        ),
        pytest.param(
            {"query": "Q", "response_1": "x", "response_2": "y", "label": "second"},
            "Q",
            Verdict.SECOND,
            id="own",
        ),
        pytest.param(TRAINED, "Q", Verdict.FIRST, id="training"),
    ],
)
def test_forms_of_pairs(tmp_path: Path, row: dict[str, Any], query: str, label: Verdict) -> None:
    [pair] = read_compared(write_file(tmp_path, [row]), FORMAT).rows
    assert (pair.query, pair.label) == (query, label)


@pytest.mark.parametrize(
    ("row", "field", "reason"),
    [
        pytest.param(PANDALM | {"response1": True}, "response1", "not a string", id="bool"),
        pytest.param(PANDALM | {"annotator3": 3}, "annotator3", "3 is no vote", id="vote"),
        pytest.param(TRAINED | {"gt_label": 3}, "gt_label", "3 is no label", id="label"),
        pytest.param(TRAINED | {"gt_label": True}, "gt_label", "True is no label", id="bool label"),
        pytest.param(
            TRAINED | {"gt_label": 2}, "gt_label", "tie, but the text decides first", id="other"
        ),
        pytest.param(
            {"chosen": "\n\nHuman: a\n\nAssistant: b", "rejected": "\n\nHuman: c\n\nAssistant: d"},
            "rejected",
            "differ before their last turn",
            id="dialogues",
        ),
        pytest.param({"chosen": "a", "rejected": "b"}, "chosen", "no prompt", id="no prompt"),
    ],
)
def test_bad_pairs_are_named(tmp_path: Path, row: dict[str, Any], field: str, reason: str) -> None:
    result = read_compared(write_file(tmp_path, [row]), FORMAT)
    assert not result.rows
    assert result.bad[0].field == field
    assert reason in result.bad[0].reason


def test_dialogues_come_in_both_orders_by_their_text(tmp_path: Path) -> None:
    rows = [
        {
            "chosen": f"\n\nHuman: q{n}\n\nAssistant: good",
            "rejected": f"\n\nHuman: q{n}\n\nAssistant: bad {n}",
        }
        for n in range(40)
    ]
    pairs = read_compared(write_file(tmp_path, rows), FORMAT).rows
    assert [row.query for row in pairs] == [f"q{n}" for n in range(40)]
    for row in pairs:
        best = row.responses[0] if row.label == Verdict.FIRST else row.responses[1]
        assert best == "good"
    firsts = sum(row.label == Verdict.FIRST for row in pairs)
    assert 8 <= firsts <= 32
    turns = "\n\nHuman: a\n\nAssistant: b\n\nHuman: c"
    long = {"chosen": turns + "\n\nAssistant: x", "rejected": turns + "\n\nAssistant: y"}
    [row] = read_compared(write_file(tmp_path, [long]), FORMAT).rows
    assert row.query == "User: a\n\nAssistant: b\n\nUser: c"


def test_swapping_exchanges_responses_label_and_the_words_of_the_judgement() -> None:
    text = "Response 1 beats response 2, and Response 12 is none. The final decision is Response 1."
    row = Compared("f", 1, "q", ("a", "b"), Verdict.FIRST, text)
    other = swapped(row, FORMAT)
    assert other.responses == ("b", "a")
    assert other.label == Verdict.SECOND
    assert other.judgement == (
        "Response 2 beats response 1, and Response 12 is none. The final decision is Response 2."
    )
    assert swapped(other, FORMAT) == row
    tie = Compared("f", 1, "q", ("a", "b"), Verdict.TIE)
    assert swapped(tie, FORMAT).label == Verdict.TIE


def test_labels_without_a_word_in_common_cannot_be_exchanged_in_a_text() -> None:
    fmt = load_format("prometheus2")
    with pytest.raises(InputError, match="cannot exchange 'A' and 'B'"):
        swapped(Compared("f", 1, "q", ("a", "b"), Verdict.FIRST, "A wins"), fmt)


def test_holding_out_is_by_query_and_near_the_share() -> None:
    held_out = [is_held_out(f"query {n}", 0.2) for n in range(2000)]
    assert 0.16 < sum(held_out) / len(held_out) < 0.24
    assert all(is_held_out(f"query {n}", 0.5) for n in range(2000) if held_out[n])
    assert not any(is_held_out(f"query {n}", 0.0) for n in range(100))


def test_where_data_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AUTOJ_DATA", raising=False)
    with pytest.raises(InputError, match="or the environment variable AUTOJ_DATA"):
        data_path(JudgeData(), "a.jsonl")
    monkeypatch.setenv("AUTOJ_DATA", str(tmp_path))
    assert data_path(JudgeData(), "a.jsonl") == str(tmp_path / "a.jsonl")
    assert data_path(JudgeData(folder=Path("/x")), "a.jsonl") == "/x/a.jsonl"
    assert data_path(JudgeData(), "hf://a/b") == "hf://a/b"
    assert data_path(JudgeData(), "/y/b.jsonl") == "/y/b.jsonl"
    assert data_path(JudgeData(), "./runs/b.jsonl") == "./runs/b.jsonl"


@pytest.mark.parametrize("elsewhere", [False, True], ids=["without", "with AUTOJ_DATA"])
def test_a_path_beside_the_run_file_needs_no_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    folder = tmp_path / "runs"
    (folder / "rows").mkdir(parents=True)
    rows = folder / "rows" / "a.jsonl"
    rows.write_text(json.dumps({"query": "Q", "response": "R", "rating": 3}) + "\n")
    run = folder / "train.yaml"
    run.write_text(json.dumps({"model": "m", "output": "o", "data": {"rated": ["rows/a.jsonl"]}}))
    monkeypatch.chdir(tmp_path)  # a run file is read from anywhere
    monkeypatch.delenv("AUTOJ_DATA", raising=False)
    if elsewhere:
        monkeypatch.setenv("AUTOJ_DATA", str(tmp_path / "data"))
    config = load_config(TrainJudgeConfig, "runs/train.yaml")
    [(_, found)] = rated_files(config.data, FORMAT)
    assert len(found.rows) == 1
    collected = {"protocol": "single", "teacher": {}, "output": "o", "sources": [{"path": "a"}]}
    (folder / "collect.yaml").write_text(json.dumps(collected))
    collect = load_config(CollectConfig, "runs/collect.yaml")
    assert data_path(collect, "rows/a.jsonl") == "runs/rows/a.jsonl"
    if elsewhere:  # a file that stands nowhere beside it is one of the data set
        assert data_path(config.data, "b.jsonl") == str(tmp_path / "data" / "b.jsonl")


def test_compressed_lines_and_arrays(tmp_path: Path) -> None:
    row = {"query": "Q", "response": "R", "rating": 3}
    with gzip.open(tmp_path / "r.jsonl.gz", "wt") as out:
        out.write(json.dumps(row) + "\n{bad\n")
    result = read_rated(str(tmp_path / "r.jsonl.gz"), FORMAT)
    assert (len(result.rows), result.bad[0].line) == (1, 2)
    array = tmp_path / "r.json"
    array.write_text(json.dumps([row, 7, row]), encoding="utf-8")
    result = read_rated(str(array), FORMAT)
    assert ([r.line for r in result.rows], result.bad[0].line) == ([1, 3], 2)
    array.write_text("[1, 2", encoding="utf-8")
    with pytest.raises(InputError, match="cannot be read"):
        read_rated(str(array), FORMAT)
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(b'{"query": 1}\n' * 99)[:-12])
    with pytest.raises(InputError, match="cannot be read"):
        read_rated(str(tmp_path / "cut.jsonl.gz"), FORMAT)


def test_the_released_files(release_folder: Path, released: Any) -> None:
    rows = released("autoj/single_traindata.jsonl")
    config = load_config(TrainJudgeConfig, CONFIGS / "judges/default_judge.yaml")
    data = config.data.model_copy(update={"folder": release_folder})
    [(name, rated)] = rated_files(data, FORMAT)
    assert (name, len(rated.rows), len(rated.bad)) == ("autoj/single_traindata.jsonl", 838, 0)
    assert [row.rating for row in rated.rows] == [float(row["pred_score"]) for row in rows]
    [pandalm] = compared_files(data, FORMAT)
    assert (len(pandalm.rows), len(pandalm.bad)) == (992, 7)
    hh = read_compared(str(release_folder / "hh/harmless_base_test.jsonl.gz"), FORMAT)
    assert (len(hh.rows), len(hh.bad)) == (2307, 5)
