from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from torch.utils.tensorboard import SummaryWriter

from autoj_reward.errors import EngineError
from autoj_reward.journal.records import digest, judgement_cell
from experiments import learning
from experiments.learning import LearningConfig, logged, program_score
from experiments.study import Study, run_training
from tests.judgements import rated


def test_what_the_program_grants() -> None:
    given = {"": 6, "a b": 8, "a b c d": 10, "a b c d e": 9, "word " * 40: 1}
    assert {text: program_score(text, 4) for text in given} == given


@pytest.mark.training
def test_the_learning_of_a_scripted_judge(
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

    def learned() -> dict[str, Any]:
        learning.study(Study(config))
        runs = json.loads((tmp_path / "out/learning.json").read_text())["steps"]
        return dict(runs["grpo 0"])

    found = learned()
    assert len(found["before"]) == len(found["words_after"]) == 4
    assert [step for step, _ in found["reward"]] == [1, 2]
    assert "| grpo 0 |" in (tmp_path / "out" / "learning.md").read_text(encoding="utf-8")
    # Done is not done again.
    monkeypatch.setattr(learning, "run_training", None)
    assert learned() == found
    # A rating that the program would not grant is found.
    journal = tmp_path / "out" / "grpo-0" / "journal.sqlite"
    with sqlite3.connect(journal) as db:
        columns = "key, judge, outcome, input, judgement, at"
        row = db.execute(f"SELECT {columns} FROM judgements LIMIT 1").fetchone()
        key, judge, outcome, given, _, at = row
        wrong = judgement_cell(judge, rated(99, judge=judge))
        db.execute(
            "UPDATE judgements SET judgement = ?, checksum = ? WHERE key = ?",
            (wrong, digest(key, judge, outcome, given, wrong, at), key),
        )
    with pytest.raises(EngineError, match="1 ratings of"):
        learning._check_journal(journal, 3)


@pytest.mark.training
def test_a_training_that_fails_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    base = tmp_path / "base.yaml"
    base.write_text(
        json.dumps({"input": str(tmp_path / "none.jsonl"), "output": str(tmp_path / "x")})
    )
    with pytest.raises(EngineError, match="the training of 'grpo-0' failed"):
        run_training("grpo-0", "grpo", base, ["seed=0"])
    assert "none.jsonl" in capfd.readouterr().err


def test_logged_metrics_of_several_files_come_by_step(tmp_path: Path) -> None:
    for folder, start, values in (("a", 1, [1.0, 2.0]), ("b", 3, [3.0])):
        with SummaryWriter(str(tmp_path / folder)) as writer:
            for step, value in enumerate(values, start):
                writer.add_scalar("judge/raw", value, step)
    assert logged(tmp_path, "judge/raw") == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert logged(tmp_path, "judge/none") == []
