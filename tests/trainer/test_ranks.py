"""Several processes of one training: what they agree on, and what one of them says for all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.edge.test_service import free_port

ROOT = Path(__file__).parents[2]
RANK = """
import sys
from torch import distributed

from autoj_reward.config import JudgeConfig, RewardConfig
from autoj_reward.trainer.reward import RewardModel
from autoj_reward.types import Candidate

rank, port = sys.argv[1:]
store = distributed.TCPStore("127.0.0.1", int(port), 2, rank == "0")
distributed.init_process_group("gloo", store=store, rank=int(rank), world_size=2)
# The endpoint of rank 1, if that asked by itself, would tell nothing.
judge = JudgeConfig(kind="fake", script={"logprobs": rank == "0"})
with RewardModel(RewardConfig(judge=judge)) as reward:
    try:
        [found] = reward.rewards_now([Candidate("q", "a")])
    except Exception as error:
        print(type(error).__name__, error)
    else:
        print(found.raw)
distributed.barrier()
distributed.destroy_process_group()
"""


def test_rank_0_decides_on_the_view_and_says_what_is_used() -> None:
    port = str(free_port())
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, rank, port],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    (first, said), (second, silent) = [process.communicate() for process in ranks]
    assert float(first) != round(float(first))  # an expected rating
    assert "view is expected" in second  # which rank 1 would have to give, too
    assert said.count("view expected, distributions: scripted; 1 of 1 judgements ok") == 1
    assert "distributions:" not in silent
