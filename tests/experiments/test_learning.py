from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from torch.utils.tensorboard import SummaryWriter

from autoj_reward.errors import EngineError
from autoj_reward.journal import Journal
from autoj_reward.journal.records import digest, judgement_cell
from autoj_reward.rubric_items import read_items
from experiments import learning
from experiments.failing import Failing, fails, score_by_program
from experiments.learning import LearningConfig, read_metric, score_by_rubric
from experiments.study import Study, run_training
from tests.judgements import rated


def test_what_the_program_grants() -> None:
    scores = {"": 6, "a b": 8, "a b c d": 10, "a b c d e": 9, "word " * 40: 1}
    assert {text: score_by_program(text, 4) for text in scores} == scores


def test_a_judge_fails_by_plan() -> None:
    how = Failing(good=7, share_good=0.5, share_other=0.1)
    texts = [f"text {n}" for n in range(1000)]
    assert 450 < sum(fails(how, text, 7) for text in texts) < 550
    assert 70 < sum(fails(how, text, 6) for text in texts) < 130


def small_study(tmp_path: Path, policy: str, **overrides: Any) -> LearningConfig:
    """Return a study of two steps of GRPO, with a scripted judge that wants three words."""
    queries = tmp_path / "queries.jsonl"
    queries.write_text("".join(json.dumps({"query": q}) + "\n" for q in "ab"), encoding="utf-8")
    training = {
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
    base = tmp_path / "base.yaml"
    base.write_text(json.dumps(training), encoding="utf-8")
    defaults = {"test": str(queries), "algorithms": {"grpo": ()}, "seeds": (0,), "samples": 2}
    return LearningConfig(base=base, output=tmp_path / "out", **(defaults | overrides))


@pytest.mark.training
def test_failures_that_are_left_out_and_that_count_as_0(tmp_path: Path, policy: str) -> None:
    failing = Failing(good=1, share_good=0.5)
    sets = ("reward.failures.budget=1",)
    config = small_study(tmp_path, policy, algorithms={"grpo": sets}, failing=failing)
    learning.study(Study(config))
    runs = json.loads((tmp_path / "out/learning.json").read_text())["steps"]
    assert list(runs) == ["grpo 0 left-out", "grpo 0 counted-as-0"]
    for name, run in runs.items():
        assert [len(step["scores"]) for step in run["true"]] == [4, 4]
        failed = [sum(step["failed"]) for step in run["true"]]
        assert any(failed)
        # TRL's own figure of the first step: with zeros for failures, or of the valid ones alone.
        step, logs = run["true"][0], tmp_path / "out" / name.replace(" ", "-") / "logs"
        valid = [s for s, f in zip(step["scores"], step["failed"], strict=True) if not f]
        n = 4 if name.endswith("0") else len(valid)
        assert dict(read_metric(logs, "train/reward"))[1] == pytest.approx(sum(valid) / n)
    assert "counted-as-0" in (tmp_path / "out" / "learning-score.svg").read_text()


@pytest.mark.training
def test_the_learning_of_a_scripted_judge(
    tmp_path: Path, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_study(tmp_path, policy)

    def run_study() -> dict[str, Any]:
        learning.study(Study(config))
        runs = json.loads((tmp_path / "out/learning.json").read_text())["steps"]
        return dict(runs["grpo 0"])

    results = run_study()
    assert len(results["before"]) == len(results["words_after"]) == 4
    assert [step for step, _ in results["reward"]] == [1, 2]
    assert "| grpo 0 |" in (tmp_path / "out" / "learning.md").read_text(encoding="utf-8")
    # Done is not done again.
    monkeypatch.setattr(learning, "run_training", None)
    assert run_study() == results
    # A rating that the program would not grant is found.
    journal = tmp_path / "out" / "grpo-0" / "journal.sqlite"
    with closing(sqlite3.connect(journal, isolation_level=None)) as db:
        columns = "key, judge, outcome, input, judgement, at"
        row = db.execute(f"SELECT {columns} FROM judgements LIMIT 1").fetchone()
        key, judge, outcome, judge_input, _, at = row
        wrong = judgement_cell(judge, rated(99, judge=judge))
        db.execute(
            "UPDATE judgements SET judgement = ?, checksum = ? WHERE key = ?",
            (wrong, digest(key, judge, outcome, judge_input, wrong, at), key),
        )
    with pytest.raises(EngineError, match="1 ratings of"):
        learning._check_journal(journal, 3)


def test_what_the_program_grants_for_a_rubric() -> None:
    items = read_items(
        [
            {"criterion": 'Has the text "tea"', "points": 2},
            {"criterion": 'Has the text " in "', "points": 1},
            {"criterion": 'Has the text "milk"', "points": -1},
            {"criterion": 'Has the text "cup"', "points": 0},
        ]
    )
    scores = {"Tea in a cup": 1, "teain": 2 / 3, "milk": -1 / 3, "A cup": 0, "": 0}
    assert {text: score_by_rubric(items, text) for text in scores} == scores


@pytest.mark.training
def test_the_learning_of_a_rubric(tmp_path: Path, policy: str) -> None:
    items = ({"criterion": 'Has "a"'}, {"criterion": 'Has "e"', "points": 0})
    (tmp_path / "items.yaml").write_text(json.dumps({"items": items}))
    judge = {"kind": "fake", "format": "rubric-item", "critique": False}
    rubric = {"by": "items", "items": str(tmp_path / "items.yaml")}
    sets = ("steps=1", "save_steps=1", f"reward={json.dumps({'judge': judge, 'rubric': rubric})}")
    config = small_study(tmp_path, policy, algorithms={"grpo of a": sets})
    learning.study(Study(config))
    [(name, run)] = json.loads((tmp_path / "out/learning.json").read_text())["steps"].items()
    assert name == "grpo of a 0"
    rewarded, ignored = run["items"]
    # Only the first item has points, so that its share is the mean score of the responses.
    assert rewarded["before"] == sum(run["before"]) / 4 and rewarded["points"] == 1
    assert rewarded["after"] == sum(run["after"]) / 4 and ignored["points"] == 0
    assert '| grpo of a | Has "e" | +0 |' in (tmp_path / "out/learning.md").read_text()
    with closing(Journal(tmp_path / "out/grpo-of-a-0/journal.sqlite")) as journal:
        judgements = [(record["input"], record["readings"]) for record in journal.export()]
    assert len(judgements) > 2
    assert all(
        learning._grant_scores(judge_input, None) == [reading["value"] for reading in readings]
        for judge_input, readings in judgements
    )


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
    assert read_metric(tmp_path, "judge/raw") == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert read_metric(tmp_path, "judge/none") == []
