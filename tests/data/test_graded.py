from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.data.graded import (
    GradedData,
    read_graded,
    read_splits,
    split_of,
)
from autoj_reward.errors import InputError

SYSTEMS = ("a", "b", "c", "d")


def write(folder: Path, outputs: list[Any], preferences: list[Any]) -> str:
    for name, rows in (("outputs", outputs), ("preferences", preferences)):
        with gzip.open(folder / f"{name}.jsonl.gz", "wt") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    return str(folder)


def make_preference(
    query: str, second: str, value: float, annotator: str = "gpt4_turbo_logprob"
) -> Any:
    return {"annotator": annotator, "instruction": query, "second": second, "preference": value}


def write_folder(path: Path, queries: int = 200) -> str:
    names = [f"Question {n}?" for n in range(queries)]
    outputs = [{"instruction": q, "outputs": {s: f"{s} to {q}" for s in SYSTEMS}} for q in names]
    preferences = [make_preference(q, s, 10.0**-n) for q in names for n, s in enumerate(SYSTEMS)]
    return write(path, outputs, preferences)


def test_scores_are_powers_of_ten_that_end_at_minus_eight(tmp_path: Path) -> None:
    texts = {"a": "x", "b": "y", "unread": "z"}
    source = write(
        tmp_path,
        [{"instruction": "Why?", "outputs": texts}, {"instruction": "Ungraded", "outputs": texts}],
        [
            make_preference("Why?", "b", 0.01),
            make_preference("Why?", "a", 0.0),
            make_preference("Why?", "unread", 1.0, "gpt4"),
        ],
    )
    [row] = read_graded(source)
    assert [(o.system, o.text, round(o.score, 6)) for o in row.outputs] == [
        ("a", "x", -8.0),
        ("b", "y", -2.0),
    ]


@pytest.mark.parametrize(
    ("outputs", "preferences", "message"),
    [
        (
            [{"instruction": "Why?", "outputs": {"a": "x"}}],
            [make_preference("Why?", "b", 1)],
            "of b",
        ),
        (
            [{"instruction": "Why?", "outputs": {"a": "x"}}],
            [make_preference("How?", "a", 1)],
            "1 of",
        ),
        ([{"outputs": {}}], [make_preference("Why?", "a", 1)], "needs instruction"),
        ([{"instruction": "Why?", "outputs": {}}], [{"annotator": "x"}], "preference"),
    ],
    ids=["no output", "no instruction", "malformed outputs", "malformed preference"],
)
def test_files_that_do_not_belong_together(
    outputs: list[Any], preferences: list[Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        read_graded(write(tmp_path, outputs, preferences))


def test_splits_share_no_instruction_and_hide_their_systems(tmp_path: Path) -> None:
    data = GradedData(
        test=0.3, validation=0.2, test_systems=("a",), validation_systems=("b",), left_out=("c",)
    )
    rows_of = read_splits(write_folder(tmp_path), data, ["question 7"])
    splits = {
        "training": rows_of("training"),
        "validation": rows_of("validation"),
        "test": rows_of("test"),
    }
    assert sum(map(len, splits.values())) == len({row.query for r in splits.values() for row in r})
    assert {name: {o.system for row in r for o in row.outputs} for name, r in splits.items()} == {
        "training": {"d"},
        "validation": {"b", "d"},
        "test": {"a", "b", "d"},
    }
    assert 40 < len(splits["test"]) < 80
    assert split_of("Question 7?", data, {"question 7"}) == "training"


def test_the_released_preferences_are_read() -> None:
    path = Path(os.environ.get("AUTOJ_DATA", "../shared/data")) / "alpaca_preferences"
    if not path.is_dir():
        pytest.skip(f"no {path}")
    rows = read_graded(str(path))
    assert len(rows) == 582
    assert len({output.system for row in rows for output in row.outputs}) == 53
    assert all(-8 <= output.score <= 0 for row in rows for output in row.outputs)
