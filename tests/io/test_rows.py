"""Input rows: which are kept, which are named and left out, and which errors stop the reading."""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoj_reward.conversation import Prompt, Response
from autoj_reward.errors import InputError
from autoj_reward.io.candidates import queries, read_queries, text_rows
from autoj_reward.io.layouts import PAIR, SINGLE
from autoj_reward.io.rows import (
    KEPT,
    QueryRow,
    Rows,
    TextRow,
    look_through,
    read_all,
    require_clean,
)
from autoj_reward.io.sources import HubDataset, hub_dataset
from autoj_reward.types import BadRow
from tests.judgements import texts_in

GOOD = b'{"query": "good"}'
Read = Callable[[str], Rows[Any]]


def read_singles(source: str) -> Rows[TextRow]:
    return read_all(text_rows(source, SINGLE))


def read_pairs(source: str) -> Rows[TextRow]:
    return read_all(text_rows(source, PAIR))


def write_file(folder: Path, content: bytes, name: str = "in.jsonl") -> str:
    path = folder / name
    path.write_bytes(content)
    return str(path)


@pytest.mark.parametrize(
    ("line", "field", "reason"),
    [
        pytest.param(b'{"query": }', "", "invalid JSON at column 11", id="invalid_json"),
        pytest.param(b'{"query": "a"', "", "invalid JSON at column 14", id="cut_off"),
        pytest.param(b'{"query": "a"} {}', "", "invalid JSON at column 16", id="two_in_a_line"),
        pytest.param(b"[" * 100_000, "", "nested too deeply", id="bracket_bomb"),
        pytest.param(b'{"query": "a", "n": ' + b"9" * 5000 + b"}", "", "digits", id="huge_integer"),
        pytest.param(b'{"query": "\xff"}', "", "not UTF-8: byte 0xff at byte 12", id="not_utf8"),
        pytest.param(b'{"query": "\xed\xa0\x80"}', "", "not UTF-8", id="surrogate_bytes"),
        pytest.param(b'["query"]', "", "not a JSON object: ['query']", id="list"),
        pytest.param(b'"query"', "", "not a JSON object: 'query'", id="string"),
        pytest.param(b"null", "", "not a JSON object: null", id="null"),
        pytest.param(b"NaN", "", "not a JSON object: nan", id="bare_nan"),
        pytest.param(b'{"x": 1}', "query", "missing; the row has ['x']", id="no_query"),
        pytest.param(b'{"prompt": 1}', "prompt", "not a string: 1", id="prompt_number"),
        pytest.param(b'{"query": 5}', "query", "not a string: 5", id="query_number"),
        pytest.param(b'{"query": null}', "query", "not a string: null", id="query_null"),
        pytest.param(b'{"query": ""}', "query", "blank: ''", id="query_empty"),
        pytest.param(b'{"query": " \\n\\t"}', "query", "blank: ' \\n\\t'", id="query_whitespace"),
        pytest.param(b'{"query": "a\\u0000"}', "query", "NUL at character 2", id="query_nul"),
        pytest.param(b'{"query": "\\ud800"}', "query", "lone surrogate U+D800", id="surrogate"),
        pytest.param(b'{"query": "a", "query": "b"}', "query", "'a', then 'b'", id="duplicate_key"),
        pytest.param(
            b'{"query": "a", "meta": {"k": 1, "k": 2}}', "k", "duplicate", id="duplicate_inner_key"
        ),
        pytest.param(b'{"\\ud800": 1, "\\ud800": 2}', "\\ud800", "dup", id="duplicate_surrogate"),
        pytest.param(b'{"query": "a", "x": NaN}', "x", "nan is not a finite", id="extra_nan"),
        pytest.param(b'{"query": "a", "x": [-Infinity]}', "x", "-inf is", id="extra_infinity"),
        pytest.param(b'{"query": "a", "x": 1e999}', "x", "inf is not", id="extra_overflow"),
        pytest.param(b'{"query": "a", "x": {"y": "\\udfff"}}', "x", "U+DFFF", id="extra_surrogate"),
        pytest.param(b'{"query": "a", "\\ud800": 1}', "\\ud800", "U+D800", id="key_surrogate"),
        pytest.param(
            b'{"query": "a", "x": ' + b"[" * 70 + b"]" * 70 + b"}", "x", "64 levels", id="deep"
        ),
    ],
)
def test_bad_line_is_named_and_left_out(
    tmp_path: Path, line: bytes, field: str, reason: str
) -> None:
    source = write_file(tmp_path, GOOD + b"\n" + line + b"\n" + GOOD)
    result = read_queries(source)
    assert [row.line for row in result.rows] == [1, 3]
    (bad,) = result.bad
    assert (bad.file, bad.line, bad.field) == (source, 2, field)
    assert reason in bad.reason
    assert len(bad.reason) < 250
    str(bad).encode()


@pytest.mark.parametrize(
    ("fields", "field", "reason"),
    [
        pytest.param({"responses": "abc"}, "responses", "not a list: 'abc'", id="not_a_list"),
        pytest.param({"responses": []}, "responses", "0 responses; give 1 to 1024", id="none"),
        pytest.param({"responses": ["a"] * 1025}, "responses", "1025 responses", id="too_many"),
        pytest.param({"responses": ["a", 1]}, "responses[1]", "not a string: 1", id="number"),
        pytest.param({"responses": [None]}, "responses[0]", "not a string: null", id="null"),
        pytest.param({"responses": ["a\0"]}, "responses[0]", "NUL at character 2", id="nul"),
        pytest.param({"responses": ["\ud800"]}, "responses", "lone surrogate", id="surrogate"),
        pytest.param({"logprobs": [-1.0]}, "logprobs", "without responses", id="lp_alone"),
        pytest.param({"logprobs": []}, "logprobs", "without responses", id="lp_alone_empty"),
        pytest.param(
            {"responses": ["a"], "logprobs": -1.0}, "logprobs", "not a list: -1.0", id="lp_scalar"
        ),
        pytest.param(
            {"responses": ["a"], "logprobs": [-1, -2]}, "logprobs", "2 numbers for 1", id="lp_long"
        ),
        pytest.param(
            {"responses": ["a"], "logprobs": ["-1"]}, "logprobs[0]", "not a number", id="lp_text"
        ),
        pytest.param(
            {"responses": ["a"], "logprobs": [True]}, "logprobs[0]", "not a number", id="lp_bool"
        ),
        pytest.param(
            {"responses": ["a"], "logprobs": [None]}, "logprobs[0]", "number: null", id="lp_null"
        ),
        pytest.param(
            {"responses": ["a"], "logprobs": [math.nan]}, "logprobs", "not a finite", id="lp_nan"
        ),
        pytest.param(
            {"responses": ["a"], "logprobs": [-math.inf]}, "logprobs", "not a finite", id="lp_inf"
        ),
        pytest.param(
            {"responses": ["a"], "logprobs": [-(10**400)]}, "logprobs[0]", "large", id="lp_huge_int"
        ),
    ],
)
def test_bad_responses_and_logprobs(
    tmp_path: Path, fields: dict[str, Any], field: str, reason: str
) -> None:
    source = write_file(tmp_path, json.dumps({"query": "q", **fields}).encode())
    result = read_queries(source)
    assert result.rows == ()
    assert [bad.field for bad in result.bad] == [field]
    assert reason in result.bad[0].reason


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        pytest.param(b"\xef\xbb\xbf" + GOOD + b"\n", [1], id="byte_order_mark"),
        pytest.param(GOOD + b"\r\n\r\n" + GOOD + b"\r\n", [1, 3], id="crlf"),
        pytest.param(b"\n \t\n" + GOOD + b"\n\n\n" + GOOD, [3, 6], id="blank_lines"),
        pytest.param(b"\xef\xbb\xbf\n" + GOOD, [2], id="mark_alone"),
        pytest.param(b"  " + GOOD + b"  ", [1], id="indented"),
        pytest.param('{"query": "a\u2028b\u0085c"}'.encode(), [1], id="unicode_line_ends"),
        pytest.param(b'{"query": "\\ud83d\\ude00"}', [1], id="surrogate_pair"),
        pytest.param(json.dumps({"query": "x" * 1_000_000}).encode(), [1], id="line_of_1_mb"),
    ],
)
def test_legal_line_forms(tmp_path: Path, content: bytes, lines: list[int]) -> None:
    result = read_queries(write_file(tmp_path, content))
    assert ([row.line for row in result.rows], result.bad) == (lines, ())


def test_query_row_keeps_everything(tmp_path: Path) -> None:
    row = {
        "id": 7,
        "query": "q",
        "responses": ["", "b"],
        "logprobs": [-1, -2.5],
        "tags": {"a": [1]},
    }
    result = read_queries(write_file(tmp_path, json.dumps(row).encode(), "in.json"))
    extra = {"id": 7, "tags": {"a": [1]}}
    assert result.rows == (
        QueryRow(1, Prompt("q"), (Response(""), Response("b")), (-1.0, -2.5), extra),
    )


def test_null_responses_and_logprobs_count_as_absent(tmp_path: Path) -> None:
    row = b'{"query": "q", "responses": null, "logprobs": null}'
    assert read_queries(write_file(tmp_path, row)).rows == (QueryRow(1, Prompt("q")),)


def test_singles_and_pairs_keep_all_fields_in_order(tmp_path: Path) -> None:
    fields = {"z": None, "response_2": "", "query": "q", "response": "r", "response_1": "1", "a": 1}
    source = write_file(tmp_path, json.dumps(fields).encode())
    (single,), (pair,) = read_singles(source).rows, read_pairs(source).rows
    assert texts_in(single) == ("q", "r")
    assert texts_in(pair) == ("q", "1", "")
    assert list(single.fields.items()) == list(pair.fields.items()) == list(fields.items())


@pytest.mark.parametrize(
    ("read_file", "row", "field"),
    [
        pytest.param(read_singles, {"query": "q"}, "response", id="single_no_response"),
        pytest.param(read_singles, {"response": "r"}, "query", id="single_no_query"),
        pytest.param(read_singles, {"query": " ", "response": "r"}, "query", id="single_blank"),
        pytest.param(
            read_singles, {"query": "q", "response": ["r"]}, "response[0]", id="single_list"
        ),
        pytest.param(read_pairs, {"query": "q", "response_1": "r"}, "response_2", id="pair_half"),
        pytest.param(
            read_pairs, {"query": "q", "response_1": 1, "response_2": ""}, "response_1", id="pair_1"
        ),
    ],
)
def test_bad_rows_of_the_other_readers(
    tmp_path: Path, read_file: Read, row: Any, field: str
) -> None:
    result = read_file(write_file(tmp_path, json.dumps(row).encode()))
    assert (result.rows, [bad.field for bad in result.bad]) == ((), [field])


def write_parquet(folder: Path, columns: dict[str, Any], name: str = "in.parquet") -> str:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table(columns), folder / name)
    return str(folder / name)


TABLE: dict[str, list[Any]] = {
    "query": ["a", None, "c", "d"],
    "responses": [["x", ""], ["y"], None, []],
    "logprobs": [[-1.0, -2.0], None, None, None],
    "day": [date(2024, 5, 1), None, None, None],
    "score": [1.5, 2.5, math.nan, 3.5],
}


def check_table(source: str) -> None:
    result = read_queries(source)
    assert result.rows == (
        QueryRow(
            1,
            Prompt("a"),
            (Response("x"), Response("")),
            (-1.0, -2.0),
            {"day": "2024-05-01", "score": 1.5},
        ),
        QueryRow(3, Prompt("c"), None, None, {"day": None, "score": None}),
    )
    assert result.bad == (
        BadRow(source, 2, "query", "not a string: null"),
        BadRow(source, 4, "responses", "0 responses; give 1 to 1024"),
    )


def test_parquet_round_trip(tmp_path: Path) -> None:
    check_table(write_parquet(tmp_path, TABLE))


def test_saved_dataset_round_trip(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict(TABLE).save_to_disk(tmp_path / "saved")
    check_table(str(tmp_path / "saved"))


def test_saved_splits_must_be_named(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    splits = {"dev": datasets.Dataset.from_dict({"query": ["q"]})}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "saved")
    with pytest.raises(InputError, match="holds the splits dev"):
        read_queries(str(tmp_path / "saved"))
    assert len(read_queries(str(tmp_path / "saved" / "dev")).rows) == 1


def test_table_cells_without_a_reading_spoil_only_their_row(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    text = pa.array([b"a", b"\xff", b"c"]).view(pa.utf8())
    raw = pa.array([None, None, b"\0"])
    result = read_queries(write_parquet(tmp_path, {"query": text, "raw": raw}))
    assert [row.line for row in result.rows] == [1]
    assert [(bad.line, bad.field) for bad in result.bad] == [(2, ""), (3, "raw")]
    assert "no JSON form" in result.bad[1].reason


def test_table_rows_are_numbered_across_batches(tmp_path: Path) -> None:
    result = read_queries(write_parquet(tmp_path, {"query": [str(i) for i in range(1, 1001)]}))
    assert [row.line for row in result.rows] == list(range(1, 1001))
    assert all(row.prompt.text == str(row.line) for row in result.rows)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        pytest.param("in.jsonl", b"", "has no rows", id="empty"),
        pytest.param("in.jsonl", b"\xef\xbb\xbf\r\n \n", "has no rows", id="blank_only"),
        pytest.param("in.txt", b"query\n", "cannot tell the format", id="unknown_suffix"),
        pytest.param("in.csv", b"query\n", "has no rows", id="empty_table"),
        pytest.param("in", GOOD, "cannot tell the format", id="no_suffix"),
        pytest.param("in.parquet", b"", "cannot be read", id="empty_parquet"),
        pytest.param("in.parquet", GOOD, "cannot be read", id="not_parquet"),
        pytest.param("in.parquet", b"PAR1" + b"\xff" * 40 + b"PAR1", "be read", id="torn_parquet"),
        pytest.param("in.jsonl", None, "cannot be found", id="missing"),
        pytest.param("in.parquet", None, "cannot be found", id="missing_parquet"),
        pytest.param("a\0.jsonl", None, "cannot be read", id="nul_in_path"),
    ],
)
def test_whole_file_problems(
    tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    source = str(tmp_path / name) if content is None else write_file(tmp_path, content, name)
    with pytest.raises(InputError, match=message) as caught:
        read_queries(source)
    assert name in str(caught.value) or "\0" in name or repr(source) in str(caught.value)


def test_folder_that_is_no_dataset(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    with pytest.raises(InputError, match="check the path"):
        read_queries(str(tmp_path))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        pytest.param({"query": []}, "has no rows", id="no_rows"),
    ],
)
def test_whole_table_problems(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_queries(write_parquet(tmp_path, columns))


def test_columns_of_one_name(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["query", "query"])
    pq.write_table(table, tmp_path / "in.parquet")
    with pytest.raises(InputError, match="columns of the same name"):
        read_queries(str(tmp_path / "in.parquet"))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        pytest.param("hf://o/n", HubDataset("o/n", "train", None, None), id="defaults"),
        pytest.param(
            "hf://o/n?split=test&config=main&revision=v1",
            HubDataset("o/n", "test", "main", "v1"),
            id="all",
        ),
        pytest.param(
            "hf://o/n?split=train%5B%3A9%5D", HubDataset("o/n", "train[:9]", None, None), id="slice"
        ),
    ],
)
def test_hub_address(source: str, expected: HubDataset) -> None:
    assert hub_dataset(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        "hf://",
        "hf://?split=a",
        "hf://json",  # a reader of files of the folder that the command is started in
        "hf://a/b/c",
        "hf://../x",
        "hf:///etc",
        "hf://a/b?splt=x",
        "hf://a/b?split=a&split=b",
        "hf://a/b?split=",
        "hf://a/b?split",
        "hf://a/b?trust_remote_code=1",
        "hf://a/b#c",
        "hf://[",
    ],
)
def test_bad_hub_address(source: str) -> None:
    with pytest.raises(InputError, match="bad dataset address"):
        read_queries(source)


def test_hub_dataset_out_of_reach() -> None:
    pytest.importorskip("datasets")
    code = (
        "from autoj_reward.io.candidates import read_queries\nread_queries('hf://no-owner/no-name')"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "InputError: hf://no-owner/no-name can" in result.stderr


def test_a_hub_dataset_is_never_a_local_folder_of_its_name(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    folder = tmp_path / "owner" / "name"
    folder.mkdir(parents=True)
    (folder / "train.jsonl").write_text('{"query": "local"}\n')
    code = "from autoj_reward.io.candidates import read_queries\nprint(read_queries('hf://owner/name').rows)"
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "HF_HOME": str(tmp_path / "home"),
            "PYTHONPATH": str(Path(__file__).parents[2]),
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "InputError: hf://owner/name cannot be read" in result.stderr and result.stdout == ""


def test_a_json_array_s_bad_rows_are_named_one_by_one(tmp_path: Path) -> None:
    text = b"""\xef\xbb\xbf [
        {"query": "a"},
        {"query": "b", "query": "c"},
        {"query": "d", "more": {"x": 1, "x": 2}} ,
        {"query": "e"}
    ] """
    source = write_file(tmp_path, text, "in.json")
    result = read_queries(source)
    assert [(row.line, row.prompt.text) for row in result.rows] == [(1, "a"), (4, "e")]
    begins = "in the row that begins on line"
    assert result.bad == (
        BadRow(source, 2, "query", f"duplicate key: first 'b', then 'c', {begins} 3"),
        BadRow(source, 3, "x", f"duplicate key: first 1, then 2, {begins} 4"),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param('[{"query": "a"}\n{"query": "b"}]', "line 2 column 1", id="no comma"),
        pytest.param('[{"query": "a"},\n]', "line 2 column 1", id="comma at the end"),
        pytest.param('[{"query": "a"},\n{"query"', "line 2 column 9", id="cut off"),
        pytest.param('[{"query": "a"}', "line 1 column 16", id="open"),
        pytest.param('[{"query": "a"}]\n[]', "Extra data: line 2 column 1", id="more"),
        pytest.param("[]", "has no rows", id="empty"),
        pytest.param(
            '[{"query": "a"},\n' + "[" * 100_000, "in.json:2: row 2 is nested too deeply", id="deep"
        ),
    ],
)
def test_a_json_array_that_is_none(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read_queries(write_file(tmp_path, text.encode(), "in.json"))
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["in.jsonl.gz", "in.json.gz"])
@pytest.mark.parametrize("damage", ["bits", "cut off"])
def test_a_damaged_packed_file_is_named_with_the_last_good_line(
    tmp_path: Path, name: str, damage: str
) -> None:
    draw = random.Random(1)
    rows = [json.dumps({"query": draw.randbytes(400).hex()}) for _ in range(500)]
    packed = gzip.compress("\n".join(rows).encode() + b"\n")
    if damage == "bits":  # a second part whose first block is of no type
        packed += packed[:10] + b"\xff" * 100
    else:
        packed = packed[: len(packed) // 2]
    with pytest.raises(InputError, match=r"cannot be read after line \d+; check what it is"):
        read_queries(write_file(tmp_path, packed, name))
    if name == "in.json.gz":
        whole = gzip.compress(f"[{','.join(rows)}]".encode())
        with pytest.raises(InputError, match="cannot be read; check what it is"):
            read_queries(write_file(tmp_path, whole[: len(whole) // 2], name))


def test_require_clean() -> None:
    def make_bad_rows(count: int) -> tuple[BadRow, ...]:
        return tuple(BadRow("f", i, "query", "missing") for i in range(1, count + 1))

    require_clean(Rows(("row",)))
    with pytest.raises(InputError) as caught:
        require_clean(Rows(("row",), make_bad_rows(22)))
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("22 of 23 rows are bad")
    assert lines[1:21] == [f"  f:{i}: field 'query': missing" for i in range(1, 21)]
    assert lines[21:] == ["  and 2 more"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()), inner),
    max_leaves=5,
)
ROW = st.fixed_dictionaries(
    {},
    optional={
        "query": JSON | st.text(),
        "responses": JSON | st.lists(st.text()),
        "logprobs": JSON | st.lists(st.floats()),
        "extra": JSON,
    },
)
LINE = st.binary() | ROW.map(lambda row: json.dumps(row).encode())


@settings(max_examples=200)
@given(lines=st.lists(LINE, max_size=6), end=st.sampled_from([b"\n", b"\r\n"]))
def test_any_bytes_end_in_rows_or_bad(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], end: bytes
) -> None:
    content = end.join(lines)
    source = write_file(tmp_path_factory.getbasetemp(), content, "any.jsonl")
    pieces = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    filled = [number for number, piece in enumerate(pieces, 1) if piece.strip()]
    try:
        result = read_queries(source)
    except InputError:
        assert not filled
        return
    numbers = [row.line for row in result.rows] + [bad.line for bad in result.bad]
    assert sorted(numbers) == filled
    for row in result.rows:
        json.dumps(row.extra, allow_nan=False, ensure_ascii=False).encode()


@settings(max_examples=60)
@given(content=st.binary(max_size=200), framed=st.booleans())
def test_any_bytes_as_parquet_are_an_input_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, framed: bool
) -> None:
    pytest.importorskip("pyarrow")
    content = b"PAR1" + content + b"PAR1" if framed else content
    with pytest.raises(InputError):
        read_queries(write_file(tmp_path_factory.getbasetemp(), content, "any.parquet"))


def test_parquet_cut_anywhere_is_an_input_error(tmp_path: Path) -> None:
    whole = Path(write_parquet(tmp_path, {"query": ["a", "b"]})).read_bytes()
    for size in range(0, len(whole), 7):
        with pytest.raises(InputError):
            read_queries(write_file(tmp_path, whole[:size], "cut.parquet"))


def test_bundled_queries_are_clean() -> None:
    source = Path(__file__).parents[2] / "rollouts" / "data" / "queries.jsonl"
    result = read_queries(str(source))
    require_clean(result)
    assert len(result.rows) == 3
    assert len({row.extra["id"] for row in result.rows}) == 3


def test_import_is_light() -> None:
    code = (
        "import sys, autoj_reward.io.candidates\n"
        "sys.exit(bool({'pyarrow', 'datasets', 'pandas', 'torch'} & set(sys.modules)))"
    )
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


def test_rows_on_standard_input_are_read_as_often_as_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = b'{"query": "a"}\nno\n{"query": "b"}\n'
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
    stream = queries("-")
    assert [row.prompt.text for row in stream.usable()] == ["a", "b"]
    assert [row.prompt.text for row in stream.usable()] == ["a", "b"]
    left_out = look_through(stream)
    assert (left_out.count, str(left_out.first[0])[:10]) == (1, "<stdin>:2:")
    part = stream.mapped(lambda row: row.prompt.text.upper()).part(2, 3)
    del stream  # whose temporary file the others read
    assert list(part) == ["B"]


def test_rows_are_read_as_they_are_asked_for(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    for source in (
        write_file(tmp_path, GOOD + b"\n" + b"{" * 10),
        write_parquet(tmp_path, {"query": [str(n) for n in range(1000)]}),
    ):
        rows = iter(queries(source))
        assert isinstance(next(rows), QueryRow)


def test_bad_rows_are_counted_and_the_first_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_file(tmp_path, GOOD + b"\n" + b"no\n" * (KEPT + 5))
    left_out = look_through(queries(source))
    assert (left_out.count, len(left_out.first)) == (KEPT + 5, KEPT)
    assert capsys.readouterr().out.count("left out") == KEPT + 5
