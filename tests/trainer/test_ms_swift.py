"""ms-swift's own loading of plugins and computing of rewards, with a scripted judge."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import autoj_reward
from autoj_reward.errors import BudgetExceeded
from tests.processes import run_two_ranks
from tests.trainer.conftest import FRAMEWORKS

pytestmark = pytest.mark.filterwarnings("ignore")  # of their code
ROOT = Path(__file__).parents[2]
PLUGIN = Path(autoj_reward.__file__).parent / "trainer/ms_swift/plugin.py"
PACKAGES = "swift", "modelscope", "modelscope_hub", "dacite", "json_repair"


@pytest.fixture
def reward_texts(require_packages: Any) -> Any:
    """Return a function that rewards texts as a step of ms-swift's trainers does."""
    require_packages(FRAMEWORKS, *PACKAGES)
    algorithm = importlib.import_module("swift.rl_core.grpo_algorithm")
    sample = importlib.import_module("swift.rl_core.data").GRPOSample
    importlib.import_module("swift.utils.utils").import_external_file(str(PLUGIN))
    resolve = importlib.import_module("swift.rlhf_trainers.utils").resolve_reward_funcs
    functions, names = resolve(["autoj"])
    assert names == ["JudgeORM"]

    def reward_step(*texts: str, **columns: Any) -> list[list[float]]:
        samples = [
            sample(
                messages=[
                    {"role": "user", "content": "Why?"},
                    {"role": "assistant", "content": text},
                ],
                extra=columns,
            )
            for text in texts
        ]
        device = torch.device("cpu")
        return algorithm.score_completions(samples, functions, [None], False, device).tolist()

    return reward_step


def test_rows_good_and_failed_in_an_event_loop_each_step(
    reward_texts: Any, make_model: Any
) -> None:
    model = make_model(budget=1.0, fallback=4.5)
    assert reward_texts("good", "lost") == [[9.0], [4.5]]
    assert reward_texts("poor", "good", solution="5") == [[2.0], [9.0]]
    assert {candidate.prompt.text for candidate, _ in model.recent()} == {"Why?"}


def test_a_spent_budget_ends_the_step(reward_texts: Any, make_model: Any) -> None:
    make_model(budget=0.0)
    with pytest.raises(BudgetExceeded, match="training stops"):
        reward_texts("good", "lost")


def test_the_plugins_folder_hides_no_package(reward_texts: Any) -> None:
    """ms-swift puts the folder first on the path."""
    assert sys.path[0] == str(PLUGIN.parent)
    for name in ("trl", "verl"):
        spec = importlib.util.find_spec(name)
        assert spec is None or "autoj_reward" not in str(spec.origin)


RANK = """
import json, sys
import torch
import torch.distributed as distributed
from swift.utils.utils import import_external_file
from swift.rl_core.data import GRPOSample
from swift.rl_core.grpo_algorithm import score_completions
from swift.rlhf_trainers.utils import resolve_reward_funcs

rank, store, plugin, texts = int(sys.argv[1]), *sys.argv[2:4], json.loads(sys.argv[4])
distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
import_external_file(plugin)
functions, _ = resolve_reward_funcs(["autoj"])

def said(query, text):
    return [{"role": "user", "content": query}, {"role": "assistant", "content": text}]

found = []
for step in texts:
    samples = [GRPOSample(messages=said(*own)) for own in step[rank]]
    try:
        device = torch.device("cpu")
        found.append(score_completions(samples, functions, [None], False, device).tolist())
    except Exception as error:
        found.append(f"{type(error).__name__}: {error}")
print("REWARDS", json.dumps(found))
distributed.barrier()
"""


def test_a_group_that_two_ranks_hold_is_judged_on_rank_0(
    require_packages: Any, make_model: Any, tmp_path: Path
) -> None:
    require_packages(FRAMEWORKS, *PACKAGES)
    make_model(fmt="listwise", more={"relative": {"by": "listwise"}})
    steps = [
        [[["q", "good"], ["q", "poor"]], [["q", "good"]]],
        [[["q", "good"]], [["r", "good"]]],  # each is alone
    ]
    path = f"{ROOT}:{FRAMEWORKS}"
    outputs = run_two_ranks(RANK, tmp_path / "store", PLUGIN, json.dumps(steps), path=path)
    first, second = (json.loads(out.rpartition("REWARDS")[2]) for out in outputs)
    [[good], [poor]], [[other]] = first[0], second[0]
    assert poor < good == other
    assert first[1] == second[1] and first[1].startswith("ConfigError: reward.relative is set")
