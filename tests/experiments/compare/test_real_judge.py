"""The study of a real judge on groups, with scripted judges."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from autoj_reward.config import load_config
from autoj_reward.data.graded import GRADER
from autoj_reward.evaluate.statistics import Draws
from experiments.compare.real_judge import (
    PARTS,
    WAYS,
    RealJudgeConfig,
    correlate_within,
    main,
    make_result_rows,
    read_short_groups,
)

GRADES = {f"system {n}": 10.0**-n for n in range(4)}


def text_of(query: str, system: str) -> str:
    return f"{system} on {query} " + "word " * (3 - int(system[-1]))


def write_config(folder: Path, **more: Any) -> Path:
    """Write a config and graded outputs in which the longer response has the higher grade."""
    queries = [f"query {n}" for n in range(3)]
    with gzip.open(folder / "preferences.jsonl.gz", "wt") as preferences:
        for query in queries:
            for system, grade in GRADES.items():
                preference = {"annotator": GRADER, "instruction": query, "second": system}
                preferences.write(json.dumps(preference | {"preference": grade}) + "\n")
    with gzip.open(folder / "outputs.jsonl.gz", "wt") as outputs:
        for query in queries:
            texts = {system: text_of(query, system) for system in GRADES}
            outputs.write(json.dumps({"instruction": query, "outputs": texts}) + "\n")
    ratings = {text_of(q, s): 9 - int(s[-1]) for q in queries for s in GRADES}
    script = {"ratings": ratings, "direct": ratings, "log": str(folder / "log.jsonl")}
    fake = {"kind": "fake", "script": script}
    config = {
        "output": str(folder / "out"),
        "data": {"graded": {"folder": str(folder), "test": 0, "validation": 0.999}},
        "judges": {"chat": fake, "default": fake | {"format": "autoj-en"}},
        "groups": 3,
        "responses": 4,
        "bootstrap": 20,
    }
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(config | more))
    return path


def test_every_way_ranks_and_the_same_command_judges_nothing_again(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    assert main(["--config", str(config)]) == 0
    steps = json.loads((tmp_path / "out/real_judge.json").read_text())["steps"]
    assert list(steps) == list(PARTS)
    calls = {part: steps[part]["calls"] for part in WAYS}
    assert (calls["alone"], calls["listwise"], calls["orders"]) == (12, 3, 9)
    assert calls["circular"] == 3 * 12  # two neighbours of four are all pairs
    groups = read_short_groups(load_config(RealJudgeConfig, config))
    grades = [[output.score for output in row.outputs] for row in groups]
    rows = make_result_rows(steps, grades, Draws(20))
    orders = {(row["judge"], row["by"]): row["spearman"]["value"] for row in rows}
    # A scripted judge knows a group, or the better of two, only in a text that it writes.
    blind = {(row["judge"], row["by"]) for row in rows if row["ties"] == 1}
    assert blind == {
        ("chat", "listwise, no text, 1 order"),
        ("chat", "listwise, no text, 3 orders"),
        ("chat", "circular, 2 neighbours"),
        ("default", "circular, 2 neighbours"),
    }
    assert all(value == (key not in blind) for key, value in orders.items()), orders
    page = (tmp_path / "out/real_judge.md").read_text()
    assert "| none | length | 1.000" in page
    log_text = (tmp_path / "log.jsonl").read_text()
    assert main(["--config", str(config)]) == 0
    assert (tmp_path / "log.jsonl").read_text() == log_text


def test_a_part_that_was_cut_short_goes_on_and_counts_all_of_it(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    assert main(["--config", str(config), "--parts", "orders"]) == 0
    whole = json.loads((tmp_path / "out/steps/orders.json").read_text())
    (tmp_path / "out/steps/orders.json").unlink()  # as if killed before the part was done
    log_text = (tmp_path / "log.jsonl").read_text()
    assert main(["--config", str(config), "--parts", "orders"]) == 0
    again = json.loads((tmp_path / "out/steps/orders.json").read_text())
    assert (tmp_path / "log.jsonl").read_text() == log_text
    assert again.pop("seconds") is None and whole.pop("seconds") >= 0
    assert again == whole


def test_too_few_instructions_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path, groups=4)
    assert main(["--config", str(config), "--parts", "length"]) == 1
    assert "3 validation instructions have 4 short responses" in capsys.readouterr().err


def test_equal_scores_order_nothing_and_an_abstention_ranks_last() -> None:
    assert correlate_within([5.0, 5.0, 5.0], [1, 2, 3]) == 0
    assert correlate_within([None, 2.0, 3.0], [1, 2, 3]) == 1
