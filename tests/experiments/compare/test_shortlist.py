"""The study of shortlists, on few simulated queries and on two instructions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from experiments.compare import shortlist
from tests.experiments.compare.graded_outputs import write_graded_outputs

CONFIG = "configs/experiments/shortlist.yaml"


def run(folder: Path, *arguments: str, **settings: Any) -> dict[str, list[dict[str, Any]]]:
    """Run the study and return its tables."""
    sets = [f"output={folder}", *(f"{key}={json.dumps(value)}" for key, value in settings.items())]
    words = [word for item in sets for word in ("--set", item)]
    assert shortlist.main(["--config", CONFIG, *words, *arguments]) == 0
    tables: dict[str, list[dict[str, Any]]]
    tables = json.loads((folder / "shortlist.json").read_text())["tables"]
    return tables


def test_simulated_judges_keep_more_of_the_gain_with_a_longer_shortlist(tmp_path: Path) -> None:
    tables = run(tmp_path, "--parts", "simulated", "--limit", "40", sizes=[1, 8, 32], bootstrap=20)
    assert len(tables) == 6
    everyone, one, eight, whole = tables["simulated, sharp, critiques: 4"]
    assert one["gain"]["value"] < eight["gain"]["value"] < 1
    # A shortlist of all candidates chooses as without one, and writes the first ratings besides.
    assert whole["less"]["value"] == 0 and whole["written"] > everyone["written"] == 1
    assert one["written"] < 0.04 and 0.2 < eight["written"] < 0.3


def test_outputs_of_systems_are_judged_once(tmp_path: Path) -> None:
    texts = write_graded_outputs(tmp_path)
    # Right after the prompt the judge orders the outputs the other way round.
    direct = {text: 9 - n for outputs in texts for n, text in enumerate(outputs)}
    ratings = {text: 10 - rating for text, rating in direct.items()}
    log = tmp_path / "log.jsonl"
    script = {"direct": direct, "ratings": ratings, "log": str(log)}
    graded = {"folder": str(tmp_path), "test": 0.99, "validation": 0}
    settings: dict[str, Any] = {
        "judge": {"kind": "fake", "script": script},
        "data": {"graded": graded},
        "ordered": {"instructions": 2, "systems": 4},
        "sizes": [1, 3],
    }
    tables = run(tmp_path / "out", "--parts", "systems", **settings)
    everyone, one, three = tables["outputs of systems"]
    assert everyone["gain"]["value"] == 1 and everyone["queries"] == 2
    # The worst one is chosen from a shortlist of one, and the second best from one of three.
    assert one["gain"]["value"] == -1 and 0 < three["gain"]["value"] < 1
    assert len(log.read_text().splitlines()) == 8
    assert run(tmp_path / "out", "--parts", "systems", **settings) == tables
    assert len(log.read_text().splitlines()) == 8
