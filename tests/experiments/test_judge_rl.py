"""The study of judges that learn from their own verdicts: its rows, its scores and its report."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from autoj_reward.types import Judgement, Outcome, Verdict
from experiments import judge_rl
from tests.support.configs import FOLDER


def test_a_program_labels_the_pairs() -> None:
    """The label follows from the query and the numbers of words, and not from the place."""
    config = judge_rl.RowsConfig()
    pairs = list(judge_rl.make_pairs(300, config, random.Random(0)))
    for pair in pairs:
        kind, limit = pair["query"].split()[-3:-1]
        counts = [len(pair[name].split()) for name in ("response_1", "response_2")]
        keeps = [count <= int(limit) if kind == "most" else count >= int(limit) for count in counts]
        assert keeps == [pair["label"] == 0, pair["label"] == 1]
    assert 100 < sum(pair["label"] for pair in pairs) < 200
    longer = [len(pair["response_1"]) > len(pair["response_2"]) for pair in pairs]
    right = sum(
        (pair["label"] == 0) == is_longer for pair, is_longer in zip(pairs, longer, strict=True)
    )
    assert 100 < right < 200, "neither the longer nor the shorter response is right more often"


def test_scores_of_pairs() -> None:
    pairs = [
        {"query": f"q{n}", "response_1": "a", "response_2": "b", "label": label}
        for n, label in enumerate((0, 1, 0))
    ]
    written = [("first", "second"), ("first", "first"), ("second", None)]
    answers = {}
    for pair, verdicts in zip(pairs, written, strict=True):
        for item, verdict in zip(judge_rl.make_orders(pair), verdicts, strict=True):
            answers[item] = (
                Judgement.of_verdict(Verdict(verdict))
                if verdict
                else Judgement(Outcome.UNPARSABLE, reason="none")
            )
    scores = judge_rl.score_pairs(pairs, answers)
    assert scores["accuracy"] == pytest.approx(3 / 6)
    assert scores["consistency"] == pytest.approx(1 / 3)
    assert scores["parse_rate"] == pytest.approx(5 / 6) and scores["first"] == pytest.approx(3 / 5)


def test_a_study_goes_on_from_what_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each judge is trained and measured once, and the report shows all that are done."""
    trained: list[str] = []

    def train(name: str, algorithm: str, base: Path) -> None:
        trained.append(f"{algorithm}: {name}")
        if algorithm != "judge":
            return
        settings = yaml.safe_load(base.read_text(encoding="utf-8"))
        folder = Path(settings["output"])
        (folder / "validation").mkdir(parents=True)
        history = [
            {"step": step, "eval_accuracy": 0.5 + step / 20, "eval_consistency": step / 10}
            for step in (0, 10)
        ]
        record = {"steps": 10, "history": history, "seconds_since_last_start": 60}
        (folder / "training.json").write_text(json.dumps(record), encoding="utf-8")

    def measure(config: Any, name: str, folder: Path | None) -> dict[str, Any]:
        served = {"accuracy": 0.75, "consistency": 0.5, "parse_rate": 1.0, "first": 0.5}
        return {"served": served, "same_as_logged": 1.0 if folder else None}

    monkeypatch.setattr(judge_rl, "run_training", train)
    monkeypatch.setattr(judge_rl, "measure", measure)
    path = str(FOLDER / "experiments/judge_rl.yaml")
    command = ["--config", path, "--set", f"output={tmp_path}", "--set", "seeds=[0,1]"]
    assert judge_rl.main([*command, "--parts", "start,grpo-0,dpo-1"]) == 0
    assert trained == ["judge: grpo-0", "judge sample: dpo-1, sampling", "judge: dpo-1"]
    assert "| grpo-0 | 10 | 1 | 0.750 |" in capsys.readouterr().out
    assert judge_rl.main(command) == 0
    assert trained[3:] == ["judge: grpo-1", "judge sample: dpo-0, sampling", "judge: dpo-0"]
    plot = (tmp_path / "judge_rl-steps.svg").read_text(encoding="utf-8")
    assert "grpo" in plot and "dpo" in plot
