"""The scorer in inspect_ai itself: a log of answered samples is scored by its own command."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.conftest import FRAMEWORKS

ROOT = Path(__file__).parents[2]
MAKE_LOG = """
import sys
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageSystem, ChatMessageUser, ModelOutput
from inspect_ai.solver import solver

@solver
def answered():
    async def solve(state, generate):
        state.output = ModelOutput.from_content("none", state.metadata["said"])
        state.messages.append(state.output.message)
        return state
    return solve

chat = [ChatMessageSystem(content="Be brief."), ChatMessageUser(content="Why?")]
samples = [
    Sample(input="Why?", target="144", metadata={"said": "good"}),
    Sample(input=chat, target=["poor", "worse"], metadata={"said": "poor"}),
    Sample(input="Why?", target="144", metadata={"said": "lost"}),
    Sample(input="Why?", metadata={"said": "good"}),
    Sample(input="Why?", metadata={"said": "good", "reference": ["144"]}),
]
task = Task(dataset=samples, solver=answered())
[log] = eval(task, model="mockllm/model", log_dir=sys.argv[1], log_format="json", display="none")
assert log.status == "success", log.error
"""
CONFIG = """
judge:
  kind: fake
  format: equivalence
  script:
    ratings: {good: "Verdict: correct", poor: "Verdict: incorrect"}
    fail: {lost: truncated}
failures: {budget: 0.0}
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with inspect_ai, outside of the checkout, where autoj_reward/judge is a folder."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    variables = {"PYTHONPATH": f"{path}{os.pathsep}{FRAMEWORKS}", "AUTOJ_REWARD": "reward.yaml"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=os.environ | variables,
        capture_output=True,
        text=True,
    )


@pytest.mark.timeout(900)  # it imports much, twice
def test_a_log_is_scored_by_its_own_command(require_packages: Any, tmp_path: Path) -> None:
    require_packages(FRAMEWORKS, "inspect_ai")
    (tmp_path / "make_log.py").write_text(MAKE_LOG, encoding="utf-8")
    (tmp_path / "reward.yaml").write_text(CONFIG, encoding="utf-8")
    log_run = run(tmp_path, "make_log.py", "logs")
    assert log_run.returncode == 0, log_run.stderr
    [log] = (tmp_path / "logs").glob("*.json")
    options = ["--scorer", "autoj_reward/judge", "--action", "append", "--output-file", "out.json"]
    score_run = run(tmp_path, "-m", "inspect_ai", "score", str(log), *options)
    assert score_run.returncode == 0, score_run.stderr + score_run.stdout
    scored_log = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))

    [score] = scored_log["results"]["scores"]
    assert (score["scored_samples"], score["unscored_samples"]) == (2, 3)
    good, poor, lost, bare, listed = (sample["scores"]["judge"] for sample in scored_log["samples"])
    assert score["metrics"]["mean"]["value"] == pytest.approx((good["value"] + poor["value"]) / 2)
    assert good["value"] > 0.9 and poor["value"] < 0.1
    assert good["answer"] == "good" and good["explanation"] == "Verdict: correct"
    [reading] = good["metadata"]["readings"]
    assert reading["slot"] == "rating" and dict(reading["distribution"])["1"] == 0.9
    failures = ((lost, "truncated"), (bare, "input_rejected"), (listed, "input_rejected"))
    for failure, outcome in failures:
        assert math.isnan(failure["value"]) and failure["reason"] == "grader_failed"
        assert (
            failure["explanation"].startswith(outcome) and failure["metadata"]["outcome"] == outcome
        )
    assert "'reference'" in bare["explanation"]
    assert "reference holds ['144'], which is no text" in listed["explanation"]
