from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from torch.utils.tensorboard import SummaryWriter

from autoj_reward.errors import ConfigError, EngineError
from autoj_reward.io.chart import curves
from experiments import learning_proof
from experiments.learning_proof import LearningConfig, logged, score
from experiments.speed import grpo_overlap
from experiments.speed.grpo_overlap import OverlapConfig, measure

MACHINE = {"processor": "p", "cores": 2}


def logs(folder: Path, **figures: list[float]) -> Path:
    with SummaryWriter(str(folder)) as writer:
        for name, values in figures.items():
            for step, value in enumerate(values, 1):
                writer.add_scalar(name.replace("__", "/"), value, step)
    return folder


def test_what_the_program_grants() -> None:
    given = {"": 6, "a b": 8, "a b c d": 10, "a b c d e": 9, "word " * 40: 1}
    assert {text: score(text, 4) for text in given} == given


def test_a_run_without_a_free_variant_has_nothing_to_compare_with(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="one named `free`"):
        grpo_overlap.run(OverlapConfig(base=tmp_path, output=tmp_path, variants={"a": (), "b": ()}))


def test_overlap_of_hand_made_logs(tmp_path: Path) -> None:
    judge = logs(
        tmp_path / "judge",
        train__step_time=[90.0, 10.0, 14.0, 12.0],
        judge__wait_seconds=[80.0, 2.0, 4.0, 3.0],
        judge__seconds=[9.0, 1.0, 2.0, 1.5],
    )
    found = measure(judge, batch_size=8)
    assert found == {"step": 12.0, "wait": 3.0, "judged": 12.0, "steps": 3}
    free = {"step": 6.0, "wait": 0.0, "judged": 1.0, "steps": 3}
    shown = grpo_overlap.render({"machine": MACHINE, "variants": {"free": free, "judge": found}})
    assert "| judge | 12.0 | 2.00 | 3.0 s | 12.0 s | 75% |" in shown.splitlines()


def test_a_learning_proof_of_a_scripted_judge(
    tmp_path: Path, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = tmp_path / "queries.jsonl"
    queries.write_text("".join(json.dumps({"query": q}) + "\n" for q in "ab"), encoding="utf-8")
    base = tmp_path / "base.yaml"
    base.write_text(
        json.dumps(
            {
                "input": str(queries),
                "output": "unused",
                "learner": {"model": policy, "max_prompt_tokens": 64, "max_response_tokens": 6},
                "reward": {"judge": {"kind": "fake", "script": {"words": 3}}, "view": "rating"},
                "steps": 2,
                "batch_size": 4,
                "device_batch_size": 4,
                "group": 4,
                "save_steps": 2,
            }
        ),
        encoding="utf-8",
    )
    config = LearningConfig(
        base=base,
        output=tmp_path / "out",
        test=str(queries),
        algorithms={"grpo": ()},
        seeds=(0,),
        samples=2,
    )
    found = learning_proof.run(config)["runs"]["grpo 0"]
    assert len(found["before"]) == len(found["words_after"]) == 4
    assert [step for step, _ in found["reward"]] == [1, 2]
    assert "| grpo 0 |" in (tmp_path / "out" / "learning.md").read_text(encoding="utf-8")
    # Done is not done again.
    monkeypatch.setattr(learning_proof, "_train", None)
    assert learning_proof.run(config)["runs"]["grpo 0"] == found
    # A rating that the program would not grant is found.
    journal = tmp_path / "out" / "grpo-0" / "journal.sqlite"
    with sqlite3.connect(journal) as db:
        [key, text] = db.execute("SELECT key, judgement FROM judgements LIMIT 1").fetchone()
        wrong = json.loads(text) | {"rating": {"value": 99.0, "distribution": [], "expected": None}}
        db.execute("UPDATE judgements SET judgement = ? WHERE key = ?", (json.dumps(wrong), key))
    with pytest.raises(EngineError, match="1 ratings of"):
        learning_proof._check_journal(journal, 3)


def test_logged_figures_of_several_files_come_by_step(tmp_path: Path) -> None:
    logs(tmp_path / "a", judge__raw=[1.0, 2.0])
    with SummaryWriter(str(tmp_path / "b")) as writer:
        writer.add_scalar("judge/raw", 3.0, 3)
    assert logged(tmp_path, "judge/raw") == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert logged(tmp_path, "judge/none") == []


def points(svg: str) -> list[Any]:
    root = ElementTree.fromstring(svg)
    return [e.attrib for e in root.iter() if e.tag.endswith("polyline")]


def test_curves_share_axes_and_colours_by_first_word() -> None:
    svg = curves(
        {"grpo 0": [(1, 2.0), (2, 4.0)], "grpo 1": [(1, 3.0)], "ppo <0>": [(2, 4.0)]}, "step", "y"
    )
    first, second, third = points(svg)
    assert first["stroke"] == second["stroke"] != third["stroke"]
    assert first["points"].split()[1] == third["points"]
    assert "<0>" not in svg
    with pytest.raises(ValueError, match="no series"):
        curves({}, "x", "y")
