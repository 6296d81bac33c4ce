"""Parts of a file's rows, drawn by a hash of their texts."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from autoj_reward.cli import main as cli
from autoj_reward.config import check
from autoj_reward.data.labelled import JudgeData, excluded_queries, trained_pairs
from autoj_reward.data.preferences import SourceConfig, read_preferences
from autoj_reward.errors import ConfigError
from autoj_reward.formats.schema import load_format
from autoj_reward.io.splits import RowSplit
from tests.io.test_layouts import FAKE, write_rows

FORMAT = load_format("autoj-en")
CONFIGS = Path(__file__).parents[2] / "configs"
PAIRS: list[dict[str, Any]] = [
    {
        "id": n,
        "prompt": f"Query {n}",
        "response 1": "a",
        "response 2": "b",
        "label": 0,
        "scenario": "planning",
    }
    for n in range(40)
]
BY = {"by": ["prompt", "response 1"], "into": 2, "take": [1]}
ODD = [f"Query {n}" for n in range(40) if hashlib.sha1(f"Query {n}a".encode()).digest()[-1] % 2]
"""Prompts of the rows whose hash is odd."""


def test_a_split_takes_the_rows_whose_hash_has_the_remainder(tmp_path: Path, capsys: Any) -> None:
    source = write_rows(tmp_path, *PAIRS)
    data = JudgeData(compared=({"path": source, "split": BY},), exclude=(source,))
    assert [pair.query for pair in trained_pairs(data, FORMAT)] == ODD
    # What measures is excluded whole.
    assert len(excluded_queries(data, FORMAT)) == 40
    rows = read_preferences(SourceConfig(path=source, split=BY), source).rows
    assert [row.query for row in rows] == ODD
    out = tmp_path / "out.json"
    command = ["evaluate", "pairs", "--data", source, "--json", str(out), *FAKE]
    assert cli.main([*command, "--set", "bootstrap=5", "--set", f"split={json.dumps(BY)}"]) == 0
    assert json.loads(out.read_text())["overall"]["n"] == len(ODD)


def test_parts_are_disjoint_and_together_the_file(tmp_path: Path) -> None:
    source = write_rows(tmp_path, *PAIRS)
    found = []
    for part in range(3):
        split = {"by": ["id"], "into": 3, "take": [part]}
        data = JudgeData(compared=({"path": source, "split": split},))
        found += [pair.query for pair in trained_pairs(data, FORMAT)]
    assert sorted(found) == sorted(row["prompt"] for row in PAIRS)


def test_a_row_without_the_text_is_named(tmp_path: Path) -> None:
    lacking = {name: value for name, value in PAIRS[0].items() if name != "response 1"}
    source = write_rows(tmp_path, lacking, PAIRS[0] | {"prompt": ["x"]})
    first, second = read_preferences(SourceConfig(path=source, split=BY), source).bad
    assert (first.line, first.field) == (1, "response 1")
    assert "the split is by it: missing; the row has" in first.reason
    assert (second.line, second.field) == (2, "prompt") and "texts and whole" in second.reason


@pytest.mark.parametrize(
    ("split", "error"),
    [
        ({"by": ["id"], "into": 2, "take": [2]}, "2 is no part of 0 to 1"),
        ({"by": ["id"], "into": 2, "take": []}, "take"),
        ({"by": [], "into": 2, "take": [0]}, "by"),
    ],
)
def test_a_split_that_takes_nothing_is_refused(split: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        check(RowSplit, split, "split")


def read_all_configs() -> list[Path]:
    paths = sorted(CONFIGS.rglob("*.yaml"))
    return [path for path in paths if "autoj/" in path.read_text(encoding="utf-8")]


def test_run_files_name_files_of_the_release() -> None:
    """Names as in the authors' repository, `data/training` and `data/test`."""
    released = ("single_traindata", "pairwise_traindata", "testdata_pairwise", "testdata_critique")
    named = set()

    def collect(value: Any) -> None:
        if isinstance(value, str) and value.startswith("autoj/"):
            named.add(value)
        for part in value.values() if isinstance(value, dict) else ():
            collect(part)
        for part in value if isinstance(value, list) else ():
            collect(part)

    for path in read_all_configs():
        collect(yaml.safe_load(path.read_text(encoding="utf-8")))
    assert named - {"autoj/scenario_train.jsonl"} == {f"autoj/{name}.jsonl" for name in released}
