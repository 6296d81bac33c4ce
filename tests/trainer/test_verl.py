"""verl's own reward managers, loaded as its workers load them, with a scripted judge."""

from __future__ import annotations

import asyncio
import importlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autoj_reward.errors import BudgetExceeded, InputError
from autoj_reward.trainer import verl as ours

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of their code
    pytest.mark.usefixtures("frameworks"),
]
MANAGERS = {
    "naive": "compute_score",
    "dapo": "compute_score",
    "remote": "compute_score_sync",
    "rate_limited": "compute_score_limited",
    "JudgeRewardManager": None,
}


class Worker:
    """Thread in place of the Ray actor of verl's remote manager."""

    def __init__(self, function: Any) -> None:
        async def call(**kwargs: Any) -> Any:
            return await asyncio.to_thread(function, **kwargs)

        self.compute_score = SimpleNamespace(remote=call)

    @staticmethod
    def options(**_: Any) -> Any:
        return SimpleNamespace(remote=Worker)


def manager(
    name: str, tokenizer: Any, monkeypatch: pytest.MonkeyPatch, function: str | None = None
) -> Any:
    OmegaConf = importlib.import_module("omegaconf").OmegaConf
    from verl.experimental.reward_loop.reward_manager import remote
    from verl.trainer.ppo.reward import load_reward_manager

    monkeypatch.setattr(remote, "RewardComputeWorker", Worker)
    node = SimpleNamespace(get_node_id=lambda: "0" * 56)
    monkeypatch.setattr(remote.ray, "get_runtime_context", lambda: node)
    custom = name == "JudgeRewardManager"
    where = {"source": "importlib", "module": {"path": ours.__file__}} if custom else {}
    chosen = {"source": "register", "name": name} | where
    path = None if custom else ours.__file__
    scored: dict[str, Any] = {"path": path, "name": function or MANAGERS[name], "reward_kwargs": {}}
    reward = {"reward_manager": chosen, "custom_reward_function": scored, "num_workers": 1}
    return load_reward_manager(OmegaConf.create({"reward": reward}), tokenizer)


def rollout(tokenizer: Any, *said: str, extra: dict[str, Any] | None = None) -> Any:
    """Return a DataProto with the sequences of one rollout."""
    import numpy as np
    from verl import DataProto

    rows = [[*tokenizer(text).input_ids, tokenizer.eos_token_id] for text in said]
    width = max(map(len, rows))
    responses = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    mask = torch.tensor([[1, 1] + [1] * len(r) + [0] * (width - len(r)) for r in rows])
    count = len(said)

    def column(value: Any) -> Any:
        cells = np.empty(count, dtype=object)
        cells[:] = [dict(value) if isinstance(value, dict) else value for _ in range(count)]
        return cells

    return DataProto.from_dict(
        {"prompts": torch.ones(count, 2, dtype=torch.long), "responses": responses}
        | {"attention_mask": mask},
        non_tensors={
            "data_source": column("any"),
            "reward_model": column({"ground_truth": ""}),
            "extra_info": column({"query": "Why?"} if extra is None else extra),
        },
    )


@pytest.mark.parametrize("name", MANAGERS)
def test_each_manager_rewards_the_last_sequence(
    name: str, named: Any, smollm2: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    named(5.0, budget=1.0, fallback=4.5)

    async def run() -> list[dict[str, Any]]:
        rewards = manager(name, smollm2, monkeypatch)
        said = (("good",), ("poor", "good"), ("lost",), ("slow",))
        return [await rewards.run_single(rollout(smollm2, *texts)) for texts in said]

    rows = asyncio.run(run())
    assert [row["reward_score"] for row in rows] == [9.0, 9.0, 4.5, 4.5]
    keys = [row["reward_extra_info"].keys() for row in rows]
    assert all(own == keys[0] for own in keys)


ENDS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "a spent budget": ({"query": "Why?"}, BudgetExceeded, "training stops"),
    "no query": ({"index": 1}, InputError, "extra_info has no 'query'"),
}


@pytest.mark.parametrize("case", ENDS)
@pytest.mark.parametrize("name", MANAGERS)
def test_what_ends_a_run(
    name: str,
    case: str,
    named: Any,
    smollm2: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    named(budget=0.0)
    extra, error, words = ENDS[case]

    async def run() -> dict[str, Any]:
        data = rollout(smollm2, "lost", extra=extra)
        found: dict[str, Any] = await manager(name, smollm2, monkeypatch).run_single(data)
        return found

    if name != "rate_limited":
        with pytest.raises(error, match=words):
            asyncio.run(run())
        return
    assert asyncio.run(run())["reward_score"] is None
    assert words in caplog.text
    from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase

    with pytest.raises((TypeError, RuntimeError)):  # the rewards of the batch
        RewardManagerBase.assemble_rm_scores(rollout(smollm2, "lost"), [None])


def test_rate_limited_makes_a_reward_of_an_exception(
    named: Any, smollm2: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    named(budget=0.0)

    async def run() -> Any:
        rewards = manager("rate_limited", smollm2, monkeypatch, "compute_score")
        return await rewards.run_single(rollout(smollm2, "lost"))

    assert asyncio.run(run())["reward_score"] == 0.0


def test_remote_takes_no_coroutine(
    named: Any, smollm2: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    named()

    async def run() -> None:
        manager("remote", smollm2, monkeypatch, "compute_score")

    with pytest.raises(AssertionError, match="Async reward score is not supported"):
        asyncio.run(run())


def test_verl_trains_on_nan() -> None:
    from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase

    batch = {"prompts": torch.ones(1, 2), "responses": torch.ones(1, 2)}
    data = SimpleNamespace(batch=batch | {"attention_mask": torch.ones(1, 4, dtype=torch.long)})
    assert RewardManagerBase.assemble_rm_scores(data, [float("nan")]).isnan().any()
