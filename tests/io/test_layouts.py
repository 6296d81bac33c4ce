"""Rows of public layouts, read by their own columns through every command."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.cli import main as cli
from autoj_reward.data.labelled import read_compared, read_rated
from autoj_reward.errors import InputError
from autoj_reward.evaluate.pairs import read_pairs
from autoj_reward.formats.schema import load_format
from autoj_reward.io.candidates import pair_rows, queries, text_rows
from autoj_reward.io.layouts import PAIR, SINGLE, load_layouts
from autoj_reward.io.reader import read_items
from autoj_reward.io.rows import Stream, read_all
from autoj_reward.io.shown import item_record
from autoj_reward.types import BadRow, Verdict
from tests.growth import require_linear
from tests.io.layout_rows import PARTS, PICTURE, ROWS, SIDES, A, B, Q, says, user
from tests.judgements import texts_in

MADE = Path(os.environ.get("AUTOJ_DATA", Path(__file__).parents[2] / "../shared/data")) / "layouts"
READ = (
    *("query", "messages", "response", "responses", "label", "labels", "score", "scores"),
    *("ranks", "margin", "rubric", "reference"),
)
"""Fields of a record that are compared with what is expected."""
CASES = [
    pytest.param(layout, row, expected, id=f"{layout}-{n}")
    for rows in ROWS.values()
    for n, (layout, row, expected) in enumerate(rows)
]
FAKE = ["--set", "judge.kind=fake"]


def write_rows(folder: Path, *rows: Any, name: str = "rows.jsonl") -> str:
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def show(source: str, capsys: Any, *flags: str) -> list[dict[str, Any]]:
    assert cli.main(["data", "show", source, "--json", *flags]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(("layout", "row", "expected"), CASES)
def test_a_row_is_read_by_its_own_columns(
    layout: str, row: dict[str, Any], expected: dict[str, Any], tmp_path: Path, capsys: Any
) -> None:
    source = write_rows(tmp_path, row)
    [record, *_] = show(source, capsys)
    assert record["layout"] == layout
    assert {name: record[name] for name in READ if name in record} == expected


@pytest.mark.parametrize("name", sorted(path.stem for path in MADE.glob("*.jsonl")) or ["none"])
def test_made_rows_of_public_files(name: str) -> None:
    path = MADE / f"{name}.jsonl"
    if not path.is_file():
        pytest.skip(f"no {MADE}: set AUTOJ_DATA to the folder of the released data")
    records = []
    for item in read_items(str(path)):
        if isinstance(item, BadRow):
            records.append({"row": item.line - 1, "skip": str(item)})
        else:
            records.append(item_record(item, item.line - 1))
    for expected in json.loads(path.with_suffix(".expected.json").read_text()):
        place = expected.get("rows", expected.get("row"))
        found = [r for r in records if place in (r.get("rows"), r.get("row"))] or records[-1:]
        if "skip" in expected:
            assert "skip" in found[0]
        else:
            fields = {name: expected[name] for name in READ if name in expected}
            assert {name: found[0].get(name) for name in fields} == fields


def test_every_layout_is_listed(capsys: Any) -> None:
    assert cli.main(["data", "layouts"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(load_layouts())
    assert any("UltraFeedback binarized" in line and "score_chosen" in line for line in lines)


UFB = {"prompt": Q, **SIDES, "messages": SIDES["chosen"], "score_chosen": 8, "score_rejected": 2}


def test_the_conversation_of_the_better_side_is_never_scored(tmp_path: Path, capsys: Any) -> None:
    source, out = write_rows(tmp_path, UFB), str(tmp_path / "out.jsonl")
    assert cli.main(["score", "--input", source, "--output", out, *FAKE]) == 1
    said = capsys.readouterr()
    assert f"{source}:1: field 'response': the row holds several responses" in said.out
    assert "(layout ultrafeedback_binarized)" in said.out
    assert "rows read as UltraFeedback binarized" in said.err


def test_how_rows_are_read_is_said_once(tmp_path: Path, capsys: Any) -> None:
    source, out = write_rows(tmp_path, *[SIDES | {"prompt": Q}] * 3), str(tmp_path / "out.jsonl")
    assert cli.main(["compare", "--input", source, "--output", out, *FAKE]) == 0
    said = capsys.readouterr().err.splitlines()
    line = "rows read as TRL preference (trl_pref_explicit): prompt, chosen, rejected"
    assert said.count(line) == 1


def list_responses(rows: Stream[Any]) -> list[tuple[str, ...]]:
    return [tuple(response.text for response in row.responses) for row in rows.usable()]


def test_a_command_gets_what_it_asks_for(tmp_path: Path) -> None:
    pair = write_rows(tmp_path, UFB, name="pair.jsonl")
    group = {"instruction": Q, "completions": [
        {"response": text, "overall_score": score} for text, score in ((A, 8.0), (B, 2.0), ("x", 2))
    ]}  # fmt: skip
    scored = write_rows(tmp_path, group, name="group.jsonl")
    rated = write_rows(tmp_path, {"prompt": Q, "completion": A}, name="rated.jsonl")
    assert [texts_in(row) for row in text_rows(pair, PAIR).usable()] == [(Q, A, B)]
    assert [texts_in(row) for row in text_rows(rated, SINGLE).usable()] == [(Q, A)]
    # Without a policy the sides of a pair are the responses; a policy answers the prompt anew.
    assert list_responses(queries(pair, answered=True)) == [(A, B)]
    assert [row.responses for row in queries(pair).usable()] == [None]
    assert list_responses(queries(scored)) == [(A, B, "x")]
    # A group gives each pair of which one side is better.
    assert list_responses(pair_rows(scored)) == [(A, B), (A, "x")]
    assert [row.label for row in pair_rows(scored).usable()] == [Verdict.FIRST] * 2
    [bad] = read_all(text_rows(rated, PAIR)).bad
    assert "one response (completion): `autoj score` rates it" in str(bad)


def test_rows_of_two_layouts_are_an_error_that_names_both(tmp_path: Path, capsys: Any) -> None:
    row = {"prompt": Q, "completion": A, "chosen": A, "rejected": B}
    source, out = write_rows(tmp_path, row), str(tmp_path / "out.jsonl")
    command = ["compare", "--input", source, "--output", out, *FAKE]
    assert cli.main(command) == 1
    error = capsys.readouterr().err
    assert "trl_prompt_completion (completion, prompt)" in error
    assert "trl_pref_explicit (chosen, prompt, rejected)" in error and "--layout NAME" in error
    assert cli.main([*command, "--layout", "trl_pref_explicit"]) == 0


def write_csv(folder: Path, rows: list[dict[str, Any]]) -> str:
    path = folder / "rows.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


def write_array(folder: Path, rows: list[dict[str, Any]]) -> str:
    (folder / "rows.json").write_text(json.dumps(rows))
    return str(folder / "rows.json")


def write_parquet(folder: Path, rows: list[dict[str, Any]]) -> str:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.Table.from_pylist(rows), folder / "rows.parquet")
    return str(folder / "rows.parquet")


def write_folder(folder: Path, rows: list[dict[str, Any]]) -> str:
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_list(rows).save_to_disk(folder / "saved")
    return str(folder / "saved")


NESTED = [{"my question": Q, "out": {"text": A, "also": None}, "all": [{"t": A}, {"t": B}]}] * 2
WRITERS: dict[str, Callable[[Path, list[dict[str, Any]]], str]] = {
    "jsonl": lambda folder, rows: write_rows(folder, *rows),
    "json": write_array,
    "parquet": write_parquet,
    "saved": write_folder,
}


@pytest.mark.parametrize("kind", WRITERS)
def test_columns_by_path(kind: str, tmp_path: Path) -> None:
    source = WRITERS[kind](tmp_path, NESTED)
    columns = {"prompt": "my question", "response": "out.text"}
    rows = list(text_rows(source, SINGLE, columns=columns).usable())
    assert [texts_in(row) for row in rows] == [(Q, A)] * 2
    assert set(rows[0].fields) == set(NESTED[0])
    columns = {"prompt": "my question", "responses": "all[*].t"}
    assert list_responses(queries(source, columns=columns)) == [(A, B)] * 2


def test_fields_that_share_a_column(tmp_path: Path, capsys: Any) -> None:
    drawn = [{"text": A, "score": 1, "good": True}, {"text": B, "score": 3, "good": False}]
    source = write_rows(tmp_path, {"ask": Q, "drawn": drawn, "best": drawn[1]})
    flags = ["prompt=ask", "responses=drawn[*].text", "scores=drawn[*].score"]
    [record] = show(source, capsys, *(f"--columns={flag}" for flag in flags))
    assert (record["responses"], record["scores"]) == ([A, B], [1, 3])
    columns = dict(flag.split("=", 1) for flag in flags)
    assert [pair.label for pair in pair_rows(source, columns=columns).usable()] == [Verdict.SECOND]
    flags = ["prompt=ask", "response=best.text", "score=best.score", "label=best.good"]
    [record] = show(source, capsys, *(f"--columns={flag}" for flag in flags))
    assert (record["response"], record["score"], record["label"]) == (B, 3, False)


def test_a_conversation_with_a_name_of_its_own(tmp_path: Path) -> None:
    source = write_rows(tmp_path, {"log": {"turns": [user(Q), says(A)]}, "messages": "x"})
    [row] = text_rows(source, SINGLE, columns={"messages": "log.turns"}).usable()
    assert texts_in(row) == (Q, A)


def test_an_empty_list_is_no_prompt(tmp_path: Path) -> None:
    source = write_rows(tmp_path, {"messages": [], "prompt": Q, "response": A})
    [row] = text_rows(source, SINGLE).usable()
    assert texts_in(row) == (Q, A)


def test_a_table_of_texts_with_names_of_its_own(tmp_path: Path, capsys: Any) -> None:
    rows = [{"ask": Q, "left": A, "right": f'{B}\n"x"', "who": who} for who in ("A", "b", "2")]
    source, out = write_csv(tmp_path, rows), str(tmp_path / "out.json")
    named = {"prompt": "ask", "response_1": "left", "response_2": "right", "label": "who"}
    sets = [part for name, path in named.items() for part in ("--set", f"columns.{name}={path}")]
    command = ["evaluate", "pairs", "--data", source, "--json", out, *FAKE]
    assert cli.main([*command, *sets, "--set", "bootstrap=5"]) == 0
    assert [pair.label for pair in read_pairs(source, columns=named)] == [
        Verdict.FIRST, Verdict.SECOND, Verdict.TIE,
    ]  # fmt: skip
    assert [pair.line for pair in read_pairs(source, columns=named)] == [2, 4, 6]
    capsys.readouterr()
    [record, *_] = show(source, capsys, *(f"--columns={k}={v}" for k, v in named.items()))
    assert record["responses"] == [A, f'{B}\n"x"'] and record["label"] == "A"


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_a_table_says_what_separates_its_columns(mark: str, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "rows.csv"
    rows = [("prompt", "response"), (f'"{Q} a{mark} b"', A)]
    text = "".join(f"{mark.join(cells)}\r\n" for cells in rows)
    path.write_text(f"\ufeff{text}", encoding="utf-8", newline="")
    [record] = show(str(path), capsys)
    assert (record["query"], record["response"]) == (f"{Q} a{mark} b", A)


def test_a_field_that_is_not_there_is_named_with_the_nearest(tmp_path: Path) -> None:
    source = write_rows(tmp_path, {"question": Q, "output": {"text": A}})
    columns = {"prompt": "qestion", "response": "output.text"}
    [bad] = read_all(text_rows(source, SINGLE, columns=columns)).bad
    assert (
        bad.field == "qestion" and "['question', 'output']: did you mean `question`" in bad.reason
    )
    columns = {"prompt": "question", "response": "output.txt"}
    [bad] = read_all(text_rows(source, SINGLE, columns=columns)).bad
    assert bad.field == "output.txt" and "output has ['text']: did you mean `text`" in bad.reason
    [bad] = read_all(text_rows(write_rows(tmp_path, {"querry": Q}), SINGLE)).bad
    assert "for 'querry': did you mean `query`" in bad.reason


BROKEN: dict[str, tuple[dict[str, Any], str, str]] = {
    "a message": (UFB | {"chosen": [user(Q), {"content": A}]}, "chosen[1]", "not a message"),
    "a side cut off": (UFB | {"rejected": [user(Q)]}, "rejected", "the answer was left out"),
    "a side of another type": (UFB | {"chosen": 5}, "chosen", "not a string: 5"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_row_costs_itself_and_is_named(case: str, tmp_path: Path) -> None:
    row, field, reason = BROKEN[case]
    source = write_rows(tmp_path, UFB, row, UFB)
    for rows in (read_all(text_rows(source, PAIR)), read_compared(source, load_format("autoj-en"))):
        assert len(rows.rows) == 2
        [bad] = rows.bad
        assert (bad.line, bad.field, bad.layout) == (2, field, "ultrafeedback_binarized")
        assert reason in bad.reason
        assert str(bad).startswith(f"{source}:2: field {field!r}: ")


TURNS = {"question_id": 81, "judge": ["gpt-4", "single-v1"], "turn": 1}
WITHOUT_TEXTS: dict[str, tuple[dict[str, Any], str]] = {
    "Arena-Hard verdicts": (
        {"uid": "u", "games": [{"score": "A>>B"}, {"score": "B>A"}]},
        "without prompt and responses: join those of question.jsonl and model_answer by uid",
    ),
    "FastChat ratings": (
        TURNS | {"model": "m", "user_prompt": "[Instruction]", "judgment": "[[7]]", "score": 7},
        "without prompt and response: join those of question.jsonl and model_answer",
    ),
    "FastChat verdicts": (
        TURNS | {"model_1": "m", "model_2": "n", "g1_winner": "model_1", "g2_winner": "model_1"},
        "without prompt and responses: join those of question.jsonl and model_answer",
    ),
    "FastChat answers": (
        {"question_id": 81, "model_id": "m", "choices": [{"index": 0, "turns": [A, B]}]},
        "without their questions: join the turns of question.jsonl by question_id",
    ),
    "WildBench ratings": (
        {"session_id": "s", "model_test": "m", "score": "6", "model_output": A},
        "without its prompt: join conversation_input of WildBench by session_id",
    ),
}
COMMANDS = {
    "score": ("score", "--input", "--output"),
    "compare": ("compare", "--input", "--output"),
    "evaluate pairs": ("evaluate pairs", "--data", "--json"),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("case", WITHOUT_TEXTS)
def test_a_label_without_texts_is_refused_with_what_to_join(
    case: str, command: str, tmp_path: Path, capsys: Any
) -> None:
    row, missing = WITHOUT_TEXTS[case]
    source, out = write_rows(tmp_path, row), str(tmp_path / "out.jsonl")
    words, given, made = COMMANDS[command]
    assert cli.main([*words.split(), given, source, made, out, *FAKE]) == 1
    said = capsys.readouterr().out
    assert f"left out {source}:1: " in said and missing in said and "(layout " in said


BAD_LABELS: dict[str, tuple[dict[str, Any], str]] = {
    "a winner": ({"prompt": Q, "response_1": A, "response_2": B, "winner": "m"}, "'m' is no label"),
    "a strength": (
        {"context": Q, "response1": A, "response2": B, "overall_preference": "x"},
        "not a number: 'x'",
    ),
    "a preference": (
        {"instruction": Q, "output_1": A, "output_2": B, "preference": 7},
        "7 is no preference",
    ),
}


@pytest.mark.parametrize("case", BAD_LABELS)
def test_a_label_that_cannot_be_read_is_shown_beside_the_texts(
    case: str, tmp_path: Path, capsys: Any
) -> None:
    row, reason = BAD_LABELS[case]
    source, out = write_rows(tmp_path, row), str(tmp_path / "out.jsonl")
    [record] = show(source, capsys)
    assert record["responses"] == [A, B] and reason in record["skip"]
    assert cli.main(["compare", "--input", source, "--output", out, *FAKE]) == 0
    [bad] = read_all(pair_rows(source)).bad
    assert reason in bad.reason


@pytest.mark.parametrize("layout", ["ultrafeedback_binarized", "argilla_uf_cleaned"])
def test_equal_scores_are_a_tie_where_the_better_side_is_drawn(layout: str, tmp_path: Path) -> None:
    [row] = [row for name, row, _ in ROWS["preferences"] if name == layout]
    scores = {name: 3.5 for name, value in row.items() if isinstance(value, float)}
    assert len(scores) == 2
    source = write_rows(tmp_path, row | scores)
    assert [pair.label for pair in pair_rows(source).usable()] == [Verdict.TIE]


@pytest.mark.parametrize("scores", [["x", None], [2, 2, 2]])
def test_a_group_without_a_better_response_is_named(scores: list[Any], tmp_path: Path) -> None:
    row = {"prompt": Q, "completions": [f"{A} {n}" for n in scores], "scores": scores}
    [bad] = read_all(pair_rows(write_rows(tmp_path, row))).bad
    assert (bad.field, bad.reason) == ("responses", "no two responses of which one is better")


def test_trainings_read_other_layouts(tmp_path: Path) -> None:
    fmt = load_format("autoj-en")
    pairs = [{"prompt": f"{Q} {n}", "chosen": A, "rejected": f"{B} {n}"} for n in range(20)]
    rows = read_compared(write_rows(tmp_path, *pairs), fmt).rows
    # The better response stands first in the file, and its place must tell a training nothing.
    assert {row.label for row in rows} == {Verdict.FIRST, Verdict.SECOND}
    assert all(row.responses[row.label is Verdict.SECOND] == A for row in rows)
    rated = write_rows(tmp_path, {"input": Q, "output": A, "score": 7, "step": 1})
    assert [row.rating for row in read_rated(rated, fmt).rows] == [7]
    # A rating on another scale is not taken for one of the format's.
    [_, row, _] = ROWS["rated"][0]
    steered = {"prompt": Q, "response": A, "helpfulness": 4, "correctness": 4, "coherence": 4}
    other = write_rows(tmp_path, steered | {"complexity": 1, "verbosity": 1})
    [bad] = read_rated(other, fmt).bad
    assert "ratings of 0 to 4, and format autoj-en rates 1 to 10" in bad.reason
    assert row["label"] is True


def test_neighbours_with_one_prompt_are_a_pair(tmp_path: Path, capsys: Any) -> None:
    steers = {"correctness": 1, "coherence": 1, "complexity": 1, "verbosity": 1}
    rows = [
        {"prompt": Q, "response": text, "helpfulness": score, **steers}
        for text, score in ((B, 0), (A, 4))
    ]
    source = write_rows(tmp_path, *rows)
    assert [record.get("rows") for record in show(source, capsys)] == [None, None, [0, 1]]
    [pair] = read_pairs(source)
    assert [response.text for response in pair.responses] == [B, A]
    assert pair.label is Verdict.SECOND


def test_a_response_that_looks_like_messages_stays_a_text(tmp_path: Path) -> None:
    plant = json.dumps([says("A perfect answer.")])
    rows = [{"query": Q, "response": plant}, {"prompt": Q, "chosen": A, "rejected": plant}]
    source = write_rows(tmp_path, rows[0])
    [row] = text_rows(source, SINGLE).usable()
    assert texts_in(row) == (Q, plant)
    [row] = text_rows(write_rows(tmp_path, rows[1]), PAIR).usable()
    assert texts_in(row) == (Q, A, plant)


PICTURED: dict[str, dict[str, Any]] = {
    "a part": {"messages": [user([*PARTS, PICTURE]), says(A)]},
    "a column": {"prompt": Q, "completion": A, "images": ["x.png"]},
    "a vote": {"conversation_a": [user([*PARTS, PICTURE]), says(A)], "winner": "model_a",
               "conversation_b": [user([*PARTS, PICTURE]), says(B)]},
}  # fmt: skip


@pytest.mark.parametrize("case", PICTURED)
def test_a_picture_is_not_lost(case: str, tmp_path: Path, capsys: Any) -> None:
    source, out = write_rows(tmp_path, PICTURED[case]), tmp_path / "out.jsonl"
    [record] = show(source, capsys)
    assert "hold media" in record["skip"]
    command = "compare" if case == "a vote" else "score"
    # A run that judged nothing has failed.
    assert cli.main([command, "--input", source, "--output", str(out), *FAKE]) == 1
    [row] = map(json.loads, out.read_text().splitlines())
    assert row["outcome"] == "input_rejected" and "hold media" in row["reason"]


@pytest.mark.parametrize("piece", ["\n\nHuman: a", "\n\nAssistant: b", "[", "{'a': ", "\n1) "])
def test_reading_is_linear_in_untrusted_text(piece: str, tmp_path: Path) -> None:
    def read(text: str) -> None:
        dialogue = f"\n\nHuman: q{text}\n\nAssistant: x"
        rows = [
            {"messages": "[{" + text},
            {"chosen": dialogue, "rejected": dialogue + "y"},
            {"prompt": dialogue, "chosen": dialogue + "z", "rejected": text},
            {"instruction": Q, "rubric": text, "source": "s"},
        ]
        read_all(read_items(write_rows(tmp_path, *rows), say=lambda line: None))

    require_linear(read, lambda size: piece * (size // len(piece)), 100_000)


def test_an_unknown_layout_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="layout 'ultrafeedback' is unknown: did you mean"):
        read_items(write_rows(tmp_path, UFB), layout="ultrafeedback")
    with pytest.raises(InputError, match="has no rows"):
        list(read_items(write_rows(tmp_path)))
