"""Trainer and judge on GPUs by Ray: who runs where."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
SCRIPT = """
import json, os, sys, torch
from autoj_reward.config import RewardConfig
from autoj_reward.types import Candidate
from rollouts.train.main import beside_judge

config = RewardConfig.model_validate(json.loads(sys.argv[1]))
with beside_judge(config, None) as model:
    mine = torch.ones(1, device="cuda")
    rewards = model.rewards_now([Candidate("Name a river.", "The Rhine.")])
    print("told", json.dumps({
        "own": os.environ["CUDA_VISIBLE_DEVICES"],
        "seen": torch.cuda.device_count(),
        "uuid": str(torch.cuda.get_device_properties(0).uuid),
        "answered": len(rewards),
    }))
"""


@pytest.mark.parametrize("gpus", [1, 2])
def test_the_trainer_has_a_gpu_and_the_judge_its_own(judge_folder: Path, gpus: int) -> None:
    pytest.importorskip("ray")
    if torch.cuda.device_count() < gpus:
        pytest.skip(f"needs {gpus} GPUs")
    judge = {"model": str(judge_folder), "critique": False, "max_tokens": 8, "max_model_len": 1024,
             "kv_cache_gib": 1, "serve": {"replicas": 1}}  # fmt: skip
    if gpus == 1:
        judge["serve"] = {"replicas": 1, "num_gpus": 0.4}
    visible_gpus = ",".join(map(str, range(gpus)))
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps({"judge": judge, "view": "direct"})],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": visible_gpus, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr[-3000:]
    [line] = [line for line in process.stdout.splitlines() if line.startswith("told ")]
    report = json.loads(line.removeprefix("told "))
    assert report["own"] == "0" and report["seen"] == 1 and report["answered"] == 1
