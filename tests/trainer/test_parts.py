"""Rewards of several parts: their weights, abstaining parts, and the errors of a config."""

from __future__ import annotations

import asyncio
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autoj_reward.config import RewardConfig, check
from autoj_reward.errors import BudgetExceeded, ConfigError
from autoj_reward.trainer.openrlhf import get_reward
from autoj_reward.trainer.parts import MAX_THREADS, Parts, RewardFunction, reward_judges
from autoj_reward.trainer.reward import RewardModel
from autoj_reward.trainer.stats import batch_metrics
from autoj_reward.trainer.trl import GRPOReward, OnlineDPOReward
from autoj_reward.trainer.verl import score
from autoj_reward.types import Candidate, Outcome

RATINGS = {"good": 10, "fair": 5.5, "poor": 1}
NUMBER: Any = 7
HERE = __name__
SLOW = [Candidate("Why?", "slow")]


def brief(candidate: Candidate) -> float | None:
    """Return 1 for most responses: None for `fair`, an exception on `bug`, odd values for a few."""
    values: dict[str, Any] = {
        "fair": None,
        "words": "ten",
        "nothing": math.nan,
        "numpy": np.float32(0.5),
        "truth": np.bool_(True),
    }
    if candidate.response.text == "bug":
        raise KeyError("no such field")
    value: float | None = values.get(candidate.response.text, 1.0)
    return value


async def prompt(candidate: Candidate) -> float:
    await asyncio.sleep(0)
    return float(len(candidate.response.text))


async def endless(candidate: Candidate) -> float:
    if candidate.response.text == "slow":
        await asyncio.Event().wait()
    return 1.0


class OddError(BaseException):
    """An exception that is no Exception, as those that end a process."""


RAISED: dict[str, type[BaseException]] = {
    "exit": SystemExit,
    "interrupt": KeyboardInterrupt,
    "stop": StopIteration,
    "cancel": asyncio.CancelledError,
    "odd": OddError,
}


def ending(candidate: Candidate) -> float:
    if candidate.response.text in RAISED:
        raise RAISED[candidate.response.text](1)
    return 1.0


async def ending_async(candidate: Candidate) -> float:
    await asyncio.sleep(0)
    return ending(candidate)


async def ending_in_a_task(candidate: Candidate) -> float:
    return await asyncio.create_task(ending_async(candidate))


GO_ON = threading.Event()


def hung(candidate: Candidate) -> float:
    if candidate.response.text.startswith("hang"):
        GO_ON.wait()
    return 1.0


def takes_a_while(candidate: Candidate) -> float:
    time.sleep(0.2)
    return 1.0


def make_config(
    parts: Mapping[str, Any],
    fail: Mapping[str, str] = {},
    deadline_s: float = 60.0,
    **more: Any,
) -> RewardConfig:
    script = {"ratings": RATINGS, "fail": dict(fail)}
    judge = {"kind": "fake", "script": script, "serve": {"deadline_s": deadline_s}}
    data = {"judge": judge, "view": "rating", "parts": dict(parts)} | more
    return check(RewardConfig, data, "test")


def make_part(name: str, **more: Any) -> dict[str, Any]:
    return {"function": f"{HERE}:{name}", "failures": {"budget": 1.0}} | more


SCALAR = {"kind": "fake", "format": "scalar", "script": {"ratings": {"good": -1.0, "fair": 2.0}}}
RULE = make_part("brief", weight=0.5)


def compute_rewards(config: RewardConfig, *responses: str) -> list[Any]:
    with RewardModel(config) as model:
        return model.rewards_now([Candidate("Why?", response) for response in responses])


# What counts how


SHARES: dict[str, tuple[dict[str, Any], dict[str, float | None], float | None]] = {
    "a judge by its scale": ({"b": {"judge": {}}}, {"judge": 10, "b": 5.5}, 0.75),
    "weights are relative to the judge's": (
        {"b": {"judge": {}, "weight": 3}},
        {"judge": 10, "b": 1},
        0.25,
    ),
    "a scalar by the odds against 0": (
        {"b": {"judge": {"format": "scalar"}}},
        {"judge": 5.5, "b": 0.0},
        0.5,
    ),
    "a scalar by its range": (
        {"b": {"judge": {"format": "scalar"}, "range": [-2, 6]}},
        {"judge": 1, "b": 4.0},
        0.375,
    ),
    "a function as it is": ({"b": make_part("brief")}, {"judge": 1, "b": 0.5}, 0.25),
    "a range is a unit, no bound": (
        {"b": make_part("brief", range=[0, 10])},
        {"judge": 1, "b": 20.0},
        1.0,
    ),
    "a falling range": (
        {"b": make_part("brief", range=[100, 0])},
        {"judge": 1, "b": 25.0},
        0.375,
    ),
    "who abstains is left out": ({"b": {"judge": {}}}, {"judge": 10, "b": None}, 1.0),
    "of three, by the weights of the others": (
        {"b": {"judge": {}, "weight": 2}, "c": {"judge": {}, "weight": 3}},
        {"judge": 10, "b": None, "c": 1},
        0.25,
    ),
    "all abstain": ({"b": {"judge": {}}}, {"judge": None, "b": None}, None),
}


def resolve_parts(config: RewardConfig) -> Parts:
    return Parts(config, reward_judges(config))


@pytest.mark.parametrize("case", SHARES)
def test_one_number_of_several_parts(case: str) -> None:
    parts, values, expected = SHARES[case]
    assert resolve_parts(make_config(parts)).reward(values) == pytest.approx(expected)


def test_the_least_of_several_parts() -> None:
    parts = resolve_parts(make_config({"b": {"judge": {}}, "c": {"judge": {}}}, reduce="min"))
    assert parts.reward({"judge": 10, "b": 5.5, "c": None}) == 0.5
    assert parts.reward({"judge": None, "b": None, "c": None}) is None


def test_the_median_of_several_parts() -> None:
    parts = resolve_parts(make_config({"b": {"judge": {}}, "c": {"judge": {}}}, reduce="median"))
    assert parts.reward({"judge": 10, "b": 5.5, "c": 1}) == 0.5
    assert parts.reward({"judge": 10, "b": None, "c": 1}) == 0.5
    assert parts.reward({"judge": None, "b": None, "c": None}) is None


def test_the_judge_alone_keeps_its_unit() -> None:
    parts = resolve_parts(make_config({}))
    assert (parts.reward({"judge": 9}), parts.middle, parts.share(10)) == (9, 5.5, 1.0)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "nothing named": ({"parts": {"b": {"weight": 2}}}, "name a judge, a service or a function"),
    "a view of nothing": ({"parts": {"b": {"view": "rating"}}}, "name a judge, a service or"),
    "two in one": (
        {"parts": {"b": {"judge": {}, "function": "rules:short"}}},
        "judge beside a function",
    ),
    "no function's name": ({"parts": {"b": {"function": "rules.py"}}}, "is not module:function"),
    "no weight": ({"parts": {"b": {"judge": {}, "weight": 0}}}, "parts.b.weight"),
    "no range": ({"parts": {"b": {"judge": {}, "range": [1, 1]}}}, "two different values"),
    "no name": ({"parts": {"B b": {"judge": {}}}}, "no part can be called 'B b'"),
    "the judge's name": ({"parts": {"judge": {"judge": {}}}}, "no part can be called 'judge'"),
    "an unknown key": (
        {"parts": {"b": {"wieght": 2}}},
        "known here: calibration, failures, function, judge",
    ),
    "a weighed minimum": (
        {"parts": {"b": {"judge": {}, "weight": 2}}, "reduce": "min"},
        "reduce min knows no weights",
    ),
    "a weighed median": (
        {"parts": {"b": {"judge": {}, "weight": 2}}, "reduce": "median"},
        "reduce median knows no weights",
    ),
    "the minimum of one": ({"reduce": "min"}, "nothing beside the judge"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_config_is_named(case: str) -> None:
    data, message = WRONG[case]
    with pytest.raises(ConfigError, match=message):
        check(RewardConfig, data, "test")


LOST = {
    "no module": ("no_such_module:f", "ModuleNotFoundError.*PYTHONPATH"),
    "no function in it": (f"{HERE}:missing", "AttributeError"),
    "no function": (f"{HERE}:NUMBER", "is 7, no function"),
}


@pytest.mark.parametrize("case", LOST)
def test_a_function_is_looked_up_at_construction(case: str) -> None:
    path, message = LOST[case]
    with pytest.raises(ConfigError, match=rf"parts\.rule\.function: {path}.*{message}"):
        RewardModel(make_config({"rule": {"function": path}}))


# Asked


def test_a_judge_a_scalar_model_and_a_function() -> None:
    parts = {"scalar": {"judge": SCALAR, "range": [-2, 2]}, "rule": RULE}
    good, fair = compute_rewards(make_config(parts), "good", "fair")
    assert good.parts == {"judge": 10, "scalar": -1.0, "rule": 1.0}
    assert good.raw == good.value == pytest.approx((1 + 0.25 + 0.5) / 2.5)
    # The rule does not apply here: the other two make up for it.
    assert fair.parts == {"judge": 5.5, "scalar": 2.0, "rule": None}
    assert fair.raw == pytest.approx((0.5 + 1) / 2)


def test_a_judge_that_fails_leaves_its_part_to_the_others() -> None:
    config = make_config({"rule": RULE}, {"lost": "truncated"}, failures={"budget": 1.0})
    good, lost = compute_rewards(config, "good", "lost")
    assert (good.value, lost.value) == (1.0, 1.0)
    assert lost.judgement.outcome is Outcome.TRUNCATED and lost.parts["judge"] is None


def test_where_all_abstain_the_reward_does() -> None:
    config = make_config(
        {"rule": RULE}, {"bug": "truncated"}, failures={"budget": 1.0, "fallback": "neutral"}
    )
    with RewardModel(config) as model:
        candidates = [Candidate("Why?", "bug")]
        rewards = model.rewards_now(candidates)
        assert (rewards[0].raw, rewards[0].value) == (None, None)
        assert model.numbers(rewards, candidates) == [0.5] and model.fallbacks == 1
        assert asyncio.run(GRPOReward(model).judge(["Why?"], ["bug"])) == [None]


@pytest.mark.parametrize("said", ["bug", "words", "nothing"])
def test_a_function_that_fails_abstains(said: str, caplog: pytest.LogCaptureFixture) -> None:
    [reward] = compute_rewards(make_config({"rule": RULE}), said)
    assert reward.parts["rule"] is None and reward.raw == pytest.approx(
        reward.parts["judge"] / 9, 1
    )
    assert "reward part rule abstains" in caplog.text


def test_numbers_of_other_kinds_and_async_functions() -> None:
    config = make_config({"rule": RULE, "long": make_part("prompt", range=[0, 10])})
    rewards = compute_rewards(config, "numpy", "truth")
    assert [reward.parts["rule"] for reward in rewards] == [0.5, 1.0]
    assert [reward.parts["long"] for reward in rewards] == [5.0, 5.0]


@pytest.mark.parametrize("name", ["ending", "ending_async", "ending_in_a_task"])
def test_what_would_end_a_process_abstains(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with RewardModel(make_config({"rule": make_part(name)})) as model:
        for response in (*RAISED, "good"):
            [reward] = model.rewards_now([Candidate("Why?", response)])
            assert reward.parts["rule"] == (1.0 if response == "good" else None)
    assert "reward part rule abstains" in caplog.text and "SystemExit" in caplog.text


def test_a_caller_that_is_cancelled_cancels_its_functions() -> None:
    async def run() -> None:
        task = asyncio.create_task(RewardFunction("rule", f"{HERE}:endless", 1e6).rate(SLOW))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())


def test_a_function_that_hangs_is_given_up_at_the_deadline() -> None:
    slow, good = compute_rewards(
        make_config({"rule": make_part("endless")}, deadline_s=5.0), "slow", "good"
    )
    assert (slow.parts["rule"], good.parts["rule"]) == (None, 1.0)


def test_the_wait_for_a_thread_is_not_in_the_deadline() -> None:
    rewards = compute_rewards(
        make_config({"rule": make_part("takes_a_while")}, deadline_s=5.0), *map(str, range(256))
    )
    assert [reward.parts["rule"] for reward in rewards] == [1.0] * 256


def test_hung_calls_give_their_threads_up() -> None:
    """More calls hang than may run at a time; the others are still answered."""
    hanging = [f"hang {n}" for n in range(2 * MAX_THREADS)]
    rewards = compute_rewards(
        make_config({"rule": make_part("hung")}, deadline_s=5.0), *hanging, *map(str, range(8))
    )
    assert [reward.parts["rule"] for reward in rewards] == [None] * len(hanging) + [1.0] * 8
    GO_ON.set()


HANGS = """
import threading
from autoj_reward.config import RewardConfig
from autoj_reward.trainer.reward import RewardModel
from autoj_reward.types import Candidate

def rule(candidate):
    threading.Event().wait()

def main():
    judge = {"kind": "fake", "serve": {"deadline_s": 0.2}}
    part = {"function": "hangs:rule", "failures": {"budget": 1.0}}
    with RewardModel(RewardConfig(judge=judge, parts={"rule": part})) as model:
        print(model.rewards_now([Candidate("q", "r")])[0].parts["rule"])
"""


def test_a_hung_function_lets_the_process_end(tmp_path: Path) -> None:
    (tmp_path / "hangs.py").write_text(HANGS, encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    result = subprocess.run(
        [sys.executable, "-c", "import hangs; hangs.main()"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert (result.returncode, result.stdout) == (0, "None\n"), result.stderr


def test_every_part_has_its_own_budget() -> None:
    tight = {"rule": RULE | {"failures": {"budget": 0.05}}}
    with (
        RewardModel(make_config(tight)) as model,
        pytest.raises(BudgetExceeded, match=r"Mend the part rule .*parts\.rule\.failures\.budget"),
    ):
        model.rewards_now([Candidate("Why?", "bug")] * 8)
    # What does not apply is no failure.
    assert [
        reward.parts["rule"] for reward in compute_rewards(make_config(tight), *["fair"] * 8)
    ] == [None] * 8


def test_a_panel_takes_the_strictest() -> None:
    other = {"kind": "fake", "script": {"ratings": {"good": 4, "fair": 9}}}
    panel = make_config({"second": {"judge": other, "view": "rating"}}, reduce="min")
    good, fair = compute_rewards(panel, "good", "fair")
    assert (good.raw, fair.raw) == (pytest.approx(3 / 9), 0.5)


# What trainers are told


CHATML = "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"


def test_trl_logs_every_part_by_name() -> None:
    metrics: dict[str, float] = {}
    extras: dict[str, list[Any]] = {}
    with RewardModel(make_config({"rule": RULE})) as model:
        rewards = asyncio.run(
            GRPOReward(model).judge(
                ["Why?"] * 2,
                ["good", "fair"],
                log_metric=metrics.__setitem__,
                log_extra=extras.__setitem__,
            )
        )
    assert rewards == [1.0, 0.5]
    assert extras["part_rule"] == [1.0, None] and extras["part_judge"] == [10.0, 5.5]
    assert metrics["parts/judge"] == 7.75 and metrics["parts/judge_abstains"] == 0
    assert metrics["parts/rule"] == 1.0 and metrics["parts/rule_abstains"] == 0.5
    assert metrics["judge/raw"] == 0.75


def test_openrlhf_and_verl_get_every_part_by_name() -> None:
    async def ask(model: RewardModel) -> tuple[dict[str, Any], dict[str, float]]:
        rows = [CHATML + response for response in ("good", "fair")]
        batch = await get_reward(model, rows, [CHATML] * 2)
        return batch, await score(model, "fair", {"query": "Why?"}, "query")

    with RewardModel(make_config({"rule": make_part("brief", range=[0, 4])})) as model:
        batch, row = asyncio.run(ask(model))
    assert batch["rewards"] == batch["scores"] == [0.625, 0.5]
    assert batch["extra_logs"]["part_judge"] == [10.0, 5.5]
    assert batch["extra_logs"]["part_rule"] == [1.0, 2.0]
    assert batch["extra_logs"]["part_rule_abstains"] == [0.0, 1.0]
    assert row["score"] == 0.5 and row["part_rule_abstains"] == 1.0
    assert set(row) - {"score"} == set(batch["extra_logs"])


def test_the_judge_alone_logs_what_it_did() -> None:
    with RewardModel(make_config({})) as model:
        candidates = [Candidate("Why?", "good")]
        rewards = model.rewards_now(candidates)
    assert rewards[0].parts == {}
    assert not [
        name for name in batch_metrics(rewards, candidates, model.config) if "parts" in name
    ]


def test_comparisons_know_no_parts() -> None:
    with (
        RewardModel(make_config({"rule": RULE})) as model,
        pytest.raises(ConfigError, match="only the judge compares"),
    ):
        OnlineDPOReward(model).compare(["a", "a"], ["x", "y"], ties_left_out=True)
