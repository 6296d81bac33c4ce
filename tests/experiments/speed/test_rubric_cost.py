"""The study of what a rubric costs, with a scripted judge."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from experiments.speed.rubric_cost import (
    PARTS,
    RubricCostConfig,
    main,
    make_cost_rows,
    make_response,
)


def write_config(folder: Path) -> Path:
    config = {"output": str(folder / "out"), "judge": {"kind": "fake"}, "rounds": 2}
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def test_each_way_is_measured_once_for_each_number_of_items(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    assert main(["--config", str(config)]) == 0
    steps = json.loads((tmp_path / "out/rubric_cost.json").read_text())["steps"]
    assert list(steps) == list(PARTS)
    calls = {part: [row["calls"] for row in rows] for part, rows in steps.items()}
    assert calls["items"] == calls["items-reasons"] == [1, 4, 12, 20]
    assert calls["checklist"] == calls["overall-reasons"] == [1, 1, 1, 1]
    assert all(row["failed"] == 0 for rows in steps.values() for row in rows)
    page = (tmp_path / "out/rubric_cost.md").read_text()
    assert page.count("| `items`, without reasons |") == 4


def test_computed_tokens_are_those_that_no_cache_held() -> None:
    single = {"items": 1, "tokens_in": 500, "tokens_cached": 100}
    many = {"items": 4, "tokens_in": 2000, "tokens_cached": 1400}
    rows = make_cost_rows({"items": [single, many]})
    assert [(row["computed"], row["ratio"]) for row in rows] == [(400, 1.0), (600, 1.5)]
    assert [row["ratio"] for row in make_cost_rows({"items": [many]})] == [None]


def test_responses_share_no_beginning_and_have_the_wanted_length() -> None:
    config = RubricCostConfig(output=Path("out"), item_words=20, response_words=50)
    first, other = (make_response(config, mark, 3) for mark in ("a 1", "a 2"))
    assert first.prompt.text.split()[:2] != other.prompt.text.split()[:2]
    assert first.response.text.split()[:2] != other.response.text.split()[:2]
    assert len(first.response.text.split()) == 50
    criteria = [item.criterion for item in first.rubric]
    assert len(set(criteria)) == 3 and {len(criterion.split()) for criterion in criteria} == {20}
