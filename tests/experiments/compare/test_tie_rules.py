"""The study of tie rules, on a scripted judge whose written ratings are equal."""

from __future__ import annotations

import json
from pathlib import Path

from experiments.compare import tie_rules
from experiments.compare.tie_rules import break_ties
from tests.experiments.compare.graded_outputs import write_graded_outputs

CONFIG = "configs/experiments/tie_rules.yaml"


def test_equal_ratings_are_ordered_by_the_other_number() -> None:
    ratings = (5, 4, 5, None, 5, 4)
    order = break_ties(ratings, (2.0, 9.0, 3.0, 1.0, None, None))
    assert order == [3, 1, 4, None, 2, 0]


def test_the_number_right_after_the_prompt_orders_what_equal_ratings_do_not(tmp_path: Path) -> None:
    texts = write_graded_outputs(tmp_path)
    places = {text: place for outputs in texts for place, text in enumerate(outputs)}
    script = {
        "ratings": dict.fromkeys(places, 5),
        "direct": {text: 1 + place for text, place in places.items()},
    }
    sets = {
        "output": str(tmp_path / "out"),
        "judges": {"scripted": {"kind": "fake", "script": script}},
        "scalar": None,
        "data": {"graded": {"folder": str(tmp_path), "test": 0.99, "validation": 0}},
        "ordered": {"instructions": 2, "systems": 4},
        "bootstrap": 20,
    }
    words = [
        word for key, value in sets.items() for word in ("--set", f"{key}={json.dumps(value)}")
    ]
    assert tie_rules.main(["--config", CONFIG, *words]) == 0
    ways = json.loads((tmp_path / "out/tie_rules.json").read_text())["judges"]["scripted"]
    gains = {way: figures["best_of_4"]["value"] for way, figures in ways.items()}
    assert gains == {
        "written": 0,
        "written-expected": 0,
        "expected": 0,
        "written-direct": 1,
        "direct": 1,
        "length": 1,
    }
    assert ways["written"]["ties"]["value"] == 1 and ways["written-direct"]["ties"]["value"] == 0
    assert ways["direct"]["less_best_of_4"]["value"] == 1
    assert "written-direct" in (tmp_path / "out/tie_rules-scripted.svg").read_text()
    overview = (tmp_path / "out/tie_rules-all.svg").read_text()
    assert ">scripted</text>" in overview and ">length</text>" in overview
    assert overview.count("stroke-dasharray") == 1  # the line of ties that are drawn
