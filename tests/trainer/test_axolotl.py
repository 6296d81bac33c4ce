"""axolotl's own loading of reward functions by name, and the rewards of its hatchery trainer."""

from __future__ import annotations

import importlib
import inspect
from types import SimpleNamespace
from typing import Any

import pytest

from autoj_reward.errors import BudgetExceeded
from autoj_reward.reward import judge_reward, judge_reward_sync
from tests.trainer.conftest import FRAMEWORKS

pytestmark = pytest.mark.filterwarnings("ignore")  # of their code
PROMPT = "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"


def test_its_grpo_trainers_load_the_functions_by_name(require_packages: Any) -> None:
    require_packages(FRAMEWORKS, "axolotl", "addict")
    load = importlib.import_module("axolotl.core.trainers.grpo").GRPOStrategy.get_reward_func
    assert load("autoj_reward.reward.judge_reward") is judge_reward
    assert load("autoj_reward.reward.judge_reward_sync") is judge_reward_sync


def test_hatchery_adds_numbers_and_no_none(require_packages: Any, make_model: Any) -> None:
    require_packages(FRAMEWORKS, "axolotl", "addict")
    model = make_model(budget=1.0, fallback=4.5)
    hatchery = importlib.import_module("axolotl.integrations.hatchery.rl_trainer")
    trainer = SimpleNamespace(
        hatchery_args=SimpleNamespace(reward_funcs=["autoj_reward.reward.judge_reward_sync"]),
        _reward_functions=[],
    )
    trainer_class = hatchery.HatcheryRLTrainer
    trainer_class._ensure_reward_functions(trainer)
    completions = ["good<|im_end|>", "lost<|im_end|>"]
    assert trainer_class._compute_rewards(trainer, [PROMPT] * 2, completions) == [9.0, 4.5]
    assert {candidate.prompt.text for candidate, _ in model.recent()} == {"Why?"}
    make_model(budget=0.0)
    with pytest.raises(BudgetExceeded, match="training stops"):
        trainer_class._compute_rewards(trainer, [PROMPT], ["lost"])


def test_which_of_its_trainers_await_the_function(require_packages: Any) -> None:
    """The trainer of context parallelism calls functions without awaiting them."""
    require_packages(FRAMEWORKS, "axolotl", "addict")
    trainers = importlib.import_module("axolotl.core.trainers.grpo.trainer")
    assert "_calculate_rewards" not in vars(trainers.AxolotlGRPOTrainer)
    parallel = inspect.getsource(trainers.AxolotlGRPOContextParallelTrainer)
    assert "output_reward_func = reward_func(" in parallel and "iscoroutine" not in parallel
