from __future__ import annotations

import json
from pathlib import Path

import pytest

from autoj_reward.types import Candidate
from experiments import audited
from experiments.audited import AuditedConfig, compute_moving_means, find_first_alarms, replay
from experiments.study import Study

FALLING = [
    [
        Candidate(f"q{group}", "word " * (18 - step + place))
        for group in range(2)
        for place in range(8)
    ]
    for step in range(18)
]
"""Steps of a policy whose responses become shorter: of 18 to 25 words at first, of 1 to 8 at
last."""


def test_the_alarm_comes_where_the_judges_begin_to_disagree() -> None:
    """16 words are good, and the main judge wants 4. They disagree within groups throughout, and
    while all are over 16 words the judge tells none apart."""
    alarms = find_first_alarms(replay(FALLING, {"words": 4}, {"words": 16}))
    assert 6 < alarms["opposition"] < alarms["gap_trend"]
    assert find_first_alarms(replay(FALLING, {"words": 16}, {"words": 16})) == {}


def test_moving_means() -> None:
    assert compute_moving_means([3, 5, 1, 0, 2]) == [3, 4, 3, 2, 1]


@pytest.mark.training
def test_a_run_is_trained_once_and_measured(tmp_path: Path, policy: str) -> None:
    queries = tmp_path / "queries.jsonl"
    queries.write_text("".join(json.dumps({"query": q}) + "\n" for q in "ab"), encoding="utf-8")
    training = {
        "input": str(queries),
        "output": "unused",
        "learner": {"model": policy, "max_prompt_tokens": 64, "max_response_tokens": 6},
        "reward": {"judge": {"kind": "fake", "script": {"words": 3}}, "view": "rating"},
        "batch_size": 4,
        "device_batch_size": 4,
        "group": 2,
        "save_steps": 2,
    }
    base = tmp_path / "base.yaml"
    base.write_text(json.dumps(training), encoding="utf-8")
    config = AuditedConfig(
        base=base,
        output=tmp_path / "out",
        sets=("steps=2",),
        words=5,
        judges={"faulty": 1},
        seeds=(0,),
        draws=1,
        simulations=2,
        groups=50,
        agreements=(-0.9, 0.9),
    )
    text = audited.study(Study(config))
    steps = json.loads((tmp_path / "out/audited.json").read_text())["steps"]
    run = steps["faulty 0"]
    assert len(run["true"]) == len(run["judge"]) == len(run["audit"]) == 2
    assert run["alarms"] == {} and set(run["false_alarms"]) == {"agrees", "chance"}
    assert [simulation["share"] for simulation in steps["simulated"]] == [1, 0]
    assert "| faulty 0 |" in text and (tmp_path / "out/audited-true.svg").is_file()
