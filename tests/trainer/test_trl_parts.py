"""A reward's parts as one TRL reward function each, which share the judgements of a batch."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from autoj_reward.config import RewardConfig, check
from autoj_reward.errors import BudgetExceeded, ConfigError
from autoj_reward.trainer.reward import RewardModel
from autoj_reward.types import Candidate

QUERIES = ["Why is the sky blue?", "Name a river.", "Say hello.", "Count to three."]


def short(candidate: Candidate) -> float | None:
    """Return the length of a response; None for a response of an odd length."""
    length = len(candidate.response.text)
    return None if length % 2 else float(length)


SHORT = {"function": f"{__name__}:short", "range": [20, 0]}


def make_config(**more: Any) -> RewardConfig:
    script = {"ratings": {"good": 10, "poor": 1}, "fail": {"lost": "truncated"}}
    judge = {"kind": "fake", "script": script}
    data = {"judge": judge, "view": "rating", "parts": {"brief": SHORT}} | more
    return check(RewardConfig, data, "test")


BATCH = {"prompts": ["Why?"] * 4, "completions": ["good", "poor", "lost", "odd"]}
FAILURES = {"budget": 0.9}
JUDGED, BRIEF = [1.0, 0.0, None], [0.8, 0.8, 0.8, None]


def test_the_functions_are_named_after_the_parts_in_their_order() -> None:
    parts = {"brief": SHORT, "another": SHORT}
    functions = RewardModel(make_config(parts=parts)).trl(parts=True)
    assert [function.__name__ for function in functions] == ["judge", "brief", "another"]


@pytest.mark.parametrize("how", ["together", "in turn", "in an event loop each"])
def test_one_judgement_serves_all_functions(how: str) -> None:
    logged: list[str] = []

    def log(name: str, _: Any) -> None:
        logged.append(name)

    async def call_together() -> list[Any]:
        return await asyncio.gather(*(call_one(f) for f in functions))

    async def call_in_turn() -> list[Any]:
        return [await call_one(f) for f in functions]

    async def call_one(function: Any) -> Any:
        return await function(**BATCH, log_metric=log, log_extra=log)

    with RewardModel(make_config(failures=FAILURES)) as model:
        functions = model.trl(parts=True)
        for _ in range(2):  # equal texts of a later step are judged again
            logged.clear()
            if how == "together":
                judged, brief = asyncio.run(call_together())
            elif how == "in turn":
                judged, brief = asyncio.run(call_in_turn())
            else:
                judged, brief = (asyncio.run(call_one(f)) for f in functions)
            assert (judged[:3], brief) == (JUDGED, BRIEF)
            assert len(model.recent()) == 4
            assert logged.count("judge/ok") == 1 and logged.count("judge_raw") == 1


def test_batches_that_overlap_are_kept_apart() -> None:
    async def ask() -> list[Any]:
        first, second = ({"prompts": ["Why?"], "completions": [s]} for s in ("good", "poor"))
        calls = [(judge, first), (judge, second), (brief, second), (brief, first)]
        return await asyncio.gather(*(function(**batch) for function, batch in calls))

    with RewardModel(make_config()) as model:
        judge, brief = model.trl(parts=True)
        assert asyncio.run(ask()) == [[1.0], [0.0], [0.8], [0.8]]
        assert len(model.recent()) == 2


def test_a_spent_budget_reaches_every_function_and_counts_a_judgement_once() -> None:
    async def ask() -> list[Any]:
        return await asyncio.gather(*(f(**BATCH) for f in functions), return_exceptions=True)

    with RewardModel(make_config(failures={"budget": 0.0})) as model:
        functions = model.trl(parts=True)
        for error in asyncio.run(ask()):
            assert isinstance(error, BudgetExceeded)
            assert str(error).startswith("1 of the last 4 judgements failed")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no parts": ({"parts": {}}, "the reward is a judge alone"),
    "a weight": ({"parts": {"brief": SHORT | {"weight": 2}}}, r"reward\.parts\.brief\.weight"),
    "the minimum": ({"reduce": "min"}, r"reward\.reduce applies to the combined"),
    "shaping": ({"shaping": {"length_penalty": 1}}, r"reward\.shaping.*the trainer combines"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_only_a_combined_reward_has_is_refused(case: str) -> None:
    more, words = REFUSED[case]
    with pytest.raises(ConfigError, match=words):
        RewardModel(make_config(**more)).trl(parts=True)


@pytest.mark.training
def test_grpo_normalises_each_part_within_its_group(tmp_path: Path, small: str) -> None:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    script = {"fail_share": {"unparsable": 0.1}}
    with RewardModel(
        make_config(judge={"kind": "fake", "script": script}, failures=FAILURES)
    ) as model:
        trainer = GRPOTrainer(
            model=small,
            reward_funcs=model.trl(parts=True),
            args=GRPOConfig(
                output_dir=str(tmp_path),
                multi_objective_aggregation="normalize_then_sum",
                reward_weights=[1.0, 0.5],
                per_device_train_batch_size=32,
                num_generations=8,
                max_completion_length=8,
                max_steps=2,
                logging_steps=1,
                report_to=[],
                use_cpu=True,
                save_strategy="no",
            ),
            train_dataset=Dataset.from_dict({"prompt": QUERIES * 2}),
        )
        trainer.train()
        recent = model.recent()
    assert len(recent) == 64  # 32 responses a step, each judged once
    rewards = {
        name: torch.tensor(list(values)) for name, values in trainer._logs["rewards"].items()
    }
    assert list(rewards) == ["judge", "brief"]
    expected_parts = [
        [
            float("nan") if value is None else model.parts.by_name[name].share(value)
            for _, reward in recent[-32:]
            for value in [reward.parts[name]]
        ]
        for name in rewards
    ]
    part_rewards = torch.stack(list(rewards.values()))[:, -32:]
    torch.testing.assert_close(part_rewards, torch.tensor(expected_parts), equal_nan=True)
    assert part_rewards.isnan().any(dim=1).all()  # of both parts some abstain
    groups = part_rewards.view(2, -1, 8)
    ok = ~groups.isnan()
    mean = groups.nanmean(dim=2, keepdim=True)
    spread = (((groups - mean) ** 2).nansum(dim=2) / (ok.sum(dim=2) - 1)).sqrt()[..., None]
    normal = ((groups - mean) / (spread + 1e-4)).nan_to_num(0) * torch.tensor([[[1.0]], [[0.5]]])
    total, scored = normal.sum(dim=0).view(-1), ok.any(dim=0).view(-1)
    scored_totals = total[scored]
    advantages = torch.tensor(list(trainer._logs["advantages"]))[-32:]
    expected = torch.where(
        scored, (total - scored_totals.mean()) / (scored_totals.std() + 1e-4), torch.tensor(0.0)
    )
    torch.testing.assert_close(advantages, expected, rtol=1e-3, atol=1e-3)
    history = [entry for entry in trainer.state.log_history if "rewards/brief/mean" in entry]
    assert len(history) == 2 and all(0 < entry["judge/ok"] < 1 for entry in history)
    assert len(trainer._logs["extra"]["judge_raw"]) == len(trainer._logs["completion"])
