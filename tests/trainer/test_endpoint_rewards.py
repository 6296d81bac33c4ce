"""Trainers with default settings whose judge is an endpoint, also during an outage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from autoj_reward.config import JudgeConfig, RewardConfig
from autoj_reward.trainer import openrlhf
from autoj_reward.trainer.reward import RewardModel
from autoj_reward.trainer.rows import REWARD_MODELS, VARIABLE, reward_model
from autoj_reward.trainer.trl import GRPOReward
from autoj_reward.types import Candidate
from tests.engine.outage import Interrupted, graded, interrupted
from tests.trainer.test_openrlhf import PROMPT

DIALECTS: dict[str, dict[str, Any]] = {
    "goes on": {"goes_on": True},
    "alternatives": {},
    "refuses log-probabilities": {"most": None},
    "null": {"silent": True},
}
QUERIES = ["Why is the sky blue?", "Name a river.", "Say hello.", "Count to three."]
Opened = tuple[Interrupted, list[str]]


@pytest.fixture
def open_endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Opened]]:
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(interrupted(monkeypatch, **options))


def compute_expected(body: dict[str, Any], kind: str) -> float:
    """Return the reward for `view: auto`: the expected rating if the endpoint gives it, else the
    rating."""
    table = {float(digit): p for digit, p in graded(body).items()}
    if kind in ("goes on", "alternatives"):
        return sum(rating * p for rating, p in table.items()) / sum(table.values())
    return max(table, key=lambda rating: table[rating])


def collect_rewards(endpoint: Interrupted, kind: str) -> dict[str, float]:
    """Return the expected reward of each prompt that the judge was sent."""
    return {
        body["messages"][0]["content"]: compute_expected(body, kind)
        for _, body, _ in endpoint.requests
    }


def train(endpoint: Interrupted, policy: str, folder: Path, steps: int) -> tuple[Any, list[Any]]:
    """Run TRL's GRPOTrainer. Return the trainer and all rewards that it got."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    config = JudgeConfig(kind="openai", model="served", base_url=endpoint.url, format="autoj-en")
    with RewardModel(RewardConfig(judge=config)) as model:
        reward, rewards = GRPOReward(model), list[Any]()

        async def judge(**columns: Any) -> list[float | None]:
            batch_rewards = await reward.judge(**columns)
            rewards.extend(batch_rewards)
            return batch_rewards

        trainer = GRPOTrainer(
            model=policy,
            reward_funcs=judge,
            args=GRPOConfig(
                output_dir=str(folder),
                per_device_train_batch_size=4,
                num_generations=4,
                max_completion_length=8,
                max_steps=steps,
                logging_steps=1,
                report_to=[],
                use_cpu=True,
                save_strategy="no",
            ),
            train_dataset=Dataset.from_dict({"prompt": QUERIES}),
        )
        trainer.train()
    return trainer, rewards


def read_log(trainer: Any, name: str) -> list[float]:
    return [entry[name] for entry in trainer.state.log_history if name in entry]


@pytest.mark.training
@pytest.mark.parametrize("kind", DIALECTS)
def test_grpo_gets_real_rewards(
    kind: str, open_endpoint: Callable[..., Opened], small: str, tmp_path: Path
) -> None:
    endpoint, _ = open_endpoint(**DIALECTS[kind])
    trainer, rewards = train(endpoint, small, tmp_path, steps=2)
    assert len(rewards) == 8 and None not in rewards and len(set(rewards)) > 1
    expected_rewards = collect_rewards(endpoint, kind).values()
    assert all(
        any(reward == pytest.approx(expected) for expected in expected_rewards)
        for reward in rewards
    )
    assert read_log(trainer, "judge/ok") == [1.0, 1.0]
    assert max(read_log(trainer, "reward_std")) > 0


@pytest.mark.training
@pytest.mark.parametrize("kind", DIALECTS)
def test_an_outage_in_the_middle_of_a_grpo_run_costs_no_reward(
    kind: str, open_endpoint: Callable[..., Opened], small: str, tmp_path: Path
) -> None:
    endpoint, refused = open_endpoint(last=6, **DIALECTS[kind])
    trainer, rewards = train(endpoint, small, tmp_path, steps=4)
    assert len(refused) >= 8
    assert len(rewards) == 16 and None not in rewards and len(set(rewards)) > 1
    expected_rewards = collect_rewards(endpoint, kind).values()
    assert all(
        any(reward == pytest.approx(expected) for expected in expected_rewards)
        for reward in rewards
    )
    assert read_log(trainer, "judge/ok") == [1.0] * 4


@pytest.fixture
def set_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Return a function that names a reward config with an endpoint in the environment."""

    def write_config(url: str) -> None:
        path = tmp_path / "reward.yaml"
        judge = {"kind": "openai", "model": "served", "base_url": url, "format": "autoj-en"}
        path.write_text(yaml.safe_dump({"judge": judge}), encoding="utf-8")
        monkeypatch.setenv(VARIABLE, str(path))
        REWARD_MODELS.clear()

    yield write_config
    reward_model().close()
    REWARD_MODELS.clear()


@pytest.mark.parametrize("kind", DIALECTS)
@pytest.mark.parametrize("last", [None, 6], ids=["up", "down for a while"])
def test_openrlhf_gets_real_rewards(
    kind: str,
    last: int | None,
    open_endpoint: Callable[..., Opened],
    set_config: Callable[[str], None],
) -> None:
    endpoint, refused = open_endpoint(last=last, **DIALECTS[kind])
    set_config(endpoint.url)
    completions = [f"Here are {n} rivers." for n in range(16)]
    queries = [PROMPT + completion + "<|im_end|>" for completion in completions]
    output = openrlhf.reward_func(queries, [PROMPT] * 16, ["any"] * 16)
    assert (len(refused) >= 8) == (last is not None)
    rewards_by_prompt = collect_rewards(endpoint, kind)
    expected = [
        next(reward for prompt, reward in rewards_by_prompt.items() if completion in prompt)
        for completion in completions
    ]
    assert output["rewards"].tolist() == pytest.approx(expected)
    assert len(set(expected)) > 2
    assert output["extra_logs"]["judge_ok"].tolist() == [1.0] * 16


async def test_a_reward_that_no_endpoint_gives_before_its_deadline_is_none(
    open_endpoint: Callable[..., Opened],
) -> None:
    endpoint, _ = open_endpoint(last=1, missed=None)
    serve = {"deadline_s": 0.5, "max_ongoing": 1}  # the second is asked when the first is lost
    config = {"kind": "openai", "model": "served", "base_url": endpoint.url}
    candidates = [Candidate("Why?", "Because."), Candidate("Why?", "So.")]
    with RewardModel(RewardConfig.model_validate({"judge": config | {"serve": serve}})) as model:
        lost = await model.rewards(candidates)
        assert [reward.value for reward in lost] == [None, None]
    endpoint.start()
    with RewardModel(RewardConfig.model_validate({"judge": config})) as model:
        rewards = await model.rewards(candidates)
    assert None not in [reward.value for reward in rewards]
