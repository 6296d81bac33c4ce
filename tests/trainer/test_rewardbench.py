"""RewardBench's own generative runner, which asks a service with a scripted judge."""

from __future__ import annotations

import importlib
import importlib.util
import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.evaluate.intervals import Draws
from autoj_reward.evaluate.sections import WEIGHTS, sections
from autoj_reward.types import Verdict
from tests.edge.test_edge import made, scripted, serving
from tests.trainer.conftest import FRAMEWORKS

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of their code
    pytest.mark.usefixtures("frameworks"),
]
MODEL = "gpt-4o-2024-08-06"
"""The runner asks an OpenAI endpoint for models of its list alone."""
ROWS = [
    ("alpacaeval-easy", "much longer", "short", 1.0),
    ("llmbar-natural", "short", "much longer", 0.0),
    ("donotanswer", "alike", "ekila", 0.5),
    ("hep-go", "[User Question]\nlonger", "short", 0.5),
]


def run_generative(monkeypatch: pytest.MonkeyPatch, *flags: str) -> None:
    """The main function of their scripts/run_generative.py, on our rows."""
    from datasets import Dataset

    path = FRAMEWORKS / "scripts/run_generative.py"
    spec = importlib.util.spec_from_file_location("run_generative", path)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)

    def talk(said: str) -> list[dict[str, str]]:
        return [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": said}]

    rows = [
        {"text_chosen": talk(chosen), "text_rejected": talk(rejected), "id": n}
        for n, (_, chosen, rejected, _) in enumerate(ROWS)
    ]
    data = Dataset.from_list(rows), [subset for subset, *_ in ROWS]
    monkeypatch.setattr(script, "load_eval_dataset", lambda **_: data)
    monkeypatch.setattr(sys, "argv", ["run_generative.py", "--model", MODEL, *flags])
    script.main()


def test_the_runner_reads_every_verdict(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with serving(made(scripted())) as port:
        monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{port}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "secret")
        run_generative(monkeypatch, "--do_not_save", "--disable_beaker_save")
    [found] = tmp_path.rglob(f"eval-set/**/{MODEL}.json")
    scores = json.loads(found.read_text(encoding="utf-8"))
    assert {subset: scores[subset] for subset, *_ in ROWS} == {row[0]: row[3] for row in ROWS}


def test_sections_are_theirs() -> None:
    constants = importlib.import_module("rewardbench.constants")
    assert {name: list(own) for name, own in WEIGHTS.items()} == constants.SUBSET_MAPPING
    counts = {subset: n for own in WEIGHTS.values() for subset, n in own.items()}
    assert counts == constants.EXAMPLE_COUNTS
    theirs: Any = importlib.import_module("rewardbench.utils").calculate_scores_per_section
    drawn = random.Random(0)
    rows = [(drawn.choice(list(counts)), drawn.choice(list(Verdict))) for _ in range(500)]
    points = {Verdict.FIRST: 1.0, Verdict.SECOND: 0.0}
    means = {}
    for subset in {subset for subset, _ in rows}:
        own = [points.get(verdict, 0.5) for name, verdict in rows if name == subset]
        means[subset] = sum(own) / len(own)
    told = theirs(constants.EXAMPLE_COUNTS, constants.SUBSET_MAPPING, means)
    ours = sections(*zip(*rows, strict=True), [str(n) for n in range(500)], Draws(rounds=2))
    assert {name: round(100 * score, 2) for name, score in told.items()} == {
        name: ours[name]["score"] for name in told
    }
