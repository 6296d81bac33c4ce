"""The reward functions that trainers load by name, in event loops, threads and processes."""

from __future__ import annotations

import asyncio
import inspect
import multiprocessing
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from autoj_reward.errors import BudgetExceeded, ConfigError
from autoj_reward.models.unused import load_run
from autoj_reward.reward import judge_reward, judge_reward_sync
from autoj_reward.trainer import rows

TEMPLATED = "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"


def test_a_failure_is_none_where_trainers_leave_it_out_and_else_the_fallback(
    make_model: Any,
) -> None:
    make_model(budget=1.0, fallback=4.5)
    batch: dict[str, Any] = {
        "prompts": ["Why?"] * 2,
        "completions": ["good", "lost"],
        "any_column": [1, 2],
    }
    assert asyncio.run(judge_reward(**batch)) == [9.0, None]
    assert asyncio.run(judge_reward(**batch)) == [9.0, None]  # on another event loop
    assert judge_reward_sync(**batch) == [9.0, 4.5]
    assert judge_reward_sync(["Why?"], ["poor"]) == [2.0]  # hatchery gives no names


def test_decoded_texts_are_read_without_their_template(make_model: Any) -> None:
    model = make_model()
    completion = [{"role": "assistant", "content": "good"}]
    messages = [{"role": "user", "content": "Why?"}]
    rewards = judge_reward_sync(
        [TEMPLATED, messages, "Why? "], ["good<|im_end|>", completion, "good"]
    )
    assert rewards == [9.0] * 3
    assert {(c.prompt.text, c.response.text) for c, _ in model.recent()} == {("Why?", "good")}


def test_a_spent_budget_raises(make_model: Any) -> None:
    make_model(budget=0.0)
    for ask in (judge_reward_sync, lambda *texts: asyncio.run(judge_reward(*texts))):
        with pytest.raises(BudgetExceeded, match="training stops"):
            ask(["Why?"], ["lost"])


def test_a_lone_response_cannot_be_compared(make_model: Any) -> None:
    make_model(fmt="listwise", more={"relative": {"by": "listwise"}})
    with pytest.raises(ConfigError, match=r"reward\.relative is set"):
        judge_reward_sync(["Why?"], ["good"])
    better, worse = judge_reward_sync(["Why?"] * 2, ["good", "poor"])
    assert better > worse


def test_trl_calls_the_first_as_an_async_function_and_both_can_be_pickled() -> None:
    assert inspect.iscoroutinefunction(judge_reward)
    assert not inspect.iscoroutinefunction(judge_reward_sync)
    for function in (judge_reward, judge_reward_sync):
        assert pickle.loads(pickle.dumps(function)) is function


def test_threads_that_call_first_share_one_judge(
    make_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model()
    rows.REWARD_MODELS.clear()
    together = threading.Barrier(8, timeout=600)

    def load_together(*args: Any) -> Any:
        together.wait()  # so that none has a model before all have looked for one
        return load_run(*args)

    monkeypatch.setattr(rows, "load_run", load_together)
    with ThreadPoolExecutor(8) as threads:
        calls = [threads.submit(judge_reward_sync, ["Why?"], ["good"]) for _ in range(8)]
        assert [call.result() for call in calls] == [[9.0]] * 8
    assert len(rows.reward_model().recent()) == 8


def ask_in_child(function: Any, answers: Any) -> None:
    result = function(["Why?"] * 2, ["good", "lost"])
    answers.put(asyncio.run(result) if inspect.iscoroutine(result) else result)


@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_new_process_opens_its_own_judge(start: str, make_model: Any) -> None:
    make_model(budget=1.0, fallback=4.5)
    assert judge_reward_sync(["Why?"], ["good"]) == [9.0]  # open here, with a thread
    context: Any = multiprocessing.get_context(start)
    answers = context.Queue()
    for function, expected in ((judge_reward, [9.0, None]), (judge_reward_sync, [9.0, 4.5])):
        child = context.Process(target=ask_in_child, args=(function, answers))
        child.start()
        assert answers.get(timeout=600) == expected
        child.join()
        assert child.exitcode == 0
