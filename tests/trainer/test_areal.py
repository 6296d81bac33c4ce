"""AReaL's own wrapper of reward functions, with its process pool and a scripted judge."""

from __future__ import annotations

import asyncio
import importlib
import logging
import math
import sys
import time
import types
from collections.abc import Iterator
from typing import Any

import pytest

from autoj_reward.errors import BudgetExceeded, ConfigError
from autoj_reward.trainer import areal as ours
from tests.trainer.conftest import FRAMEWORKS

pytestmark = pytest.mark.filterwarnings("ignore")  # of their code
ROW = {"messages": [{"role": "user", "content": "Why?"}], "answer": "5"}


@pytest.fixture
def wrapper(require_packages: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yield AReaL's wrapper, without the engines that the __init__ of its packages import.

    Its processes end with the test, because they have the test's config.
    """
    require_packages(FRAMEWORKS, "areal", "colorlog")
    for name in ("areal", "areal.utils"):
        package = types.ModuleType(name)
        package.__path__ = [str(FRAMEWORKS / name.replace(".", "/"))]
        monkeypatch.setitem(sys.modules, name, package)
    for name in ("root", "manager"):  # others, once its logging is imported
        monkeypatch.setattr(logging.Logger, name, getattr(logging.Logger, name))
    wrapper_class = importlib.import_module("areal.api.reward_api").AsyncRewardWrapper
    yield wrapper_class
    wrapper_class._atexit_shutdown_all()


def call_wrapper(wrapped: Any, completion: str) -> Any:
    """Call the wrapper as AReaL's RLVRWorkflow does: with texts, tokens and the row's columns."""
    prompt = "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"
    return asyncio.run(wrapped(prompt, completion + "<|im_end|>", [1], [2], **ROW))


def test_rows_good_and_failed(wrapper: Any, make_model: Any) -> None:
    make_model(hangs_s=5.0, budget=1.0, fallback=4.5)
    # Opened here: a process that is forked off has none of this one's threads.
    assert asyncio.run(ours.reward("Why?", "good")) == 9.0
    assert [call_wrapper(wrapper(ours.reward_fn), s) for s in ("good", "lost", "slow")] == [
        9.0,
        4.5,
        4.5,
    ]


def test_a_spent_budget_raises_after_four_tries(wrapper: Any, make_model: Any) -> None:
    make_model(hangs_s=10.0, budget=0.0)
    with pytest.raises(BudgetExceeded, match="training stops"):
        call_wrapper(wrapper(ours.reward_fn), "lost")


async def test_the_query_is_the_rows_messages_else_what_the_user_says(make_model: Any) -> None:
    model = make_model()
    await ours.reward("<|im_start|>user\nHow?<|im_end|>\n<|im_start|>assistant\n", "good")
    await ours.reward("any", "good", **ROW)
    assert [candidate.prompt.text for candidate, _ in model.recent()] == ["How?", "Why?"]


def test_a_deadline_that_areal_would_make_0_is_refused(make_model: Any) -> None:
    make_model(hangs_s=15.0)
    for call in (ours.checked_reward_fn, lambda: ours.reward_fn("Why?", "good")):
        with pytest.raises(ConfigError, match="deadline_s is 15, and AReaL takes 0"):
            call()


def test_a_reward_by_group_is_refused_before_the_training_starts(make_model: Any) -> None:
    message = r"failures\.fallback is group.*AReaL asks for one response a call: choose another"
    make_model(hangs_s=5.0, fallback="group")
    for call in (
        ours.checked_reward_fn,
        lambda: ours.reward_fn("Why?", "good"),
        lambda: asyncio.run(ours.reward("Why?", "good")),
    ):
        with pytest.raises(ConfigError, match=message):
            call()


def test_the_checked_function_is_found_by_areal(wrapper: Any, make_model: Any) -> None:
    make_model(hangs_s=5.0)
    load = importlib.import_module("areal.utils.dynamic_import").import_from_string
    assert load(ours.checked_reward_fn()) is ours.reward_fn


def raise_error(*_: Any, **__: Any) -> float:
    raise RuntimeError("broken")


def return_none(*_: Any, **__: Any) -> None:
    pass


def return_nan(*_: Any, **__: Any) -> float:
    return math.nan


def sleep_and_return(*_: Any, **__: Any) -> float:
    time.sleep(1)
    return 9.0


def test_what_the_wrapper_makes_of_a_function(wrapper: Any) -> None:
    with pytest.raises(RuntimeError, match="broken"):
        call_wrapper(wrapper(raise_error), "x")
    assert call_wrapper(wrapper(return_none), "x") is None
    assert math.isnan(call_wrapper(wrapper(return_nan), "x"))
    assert call_wrapper(wrapper(sleep_and_return, timeout_seconds=0.1, max_retries=0), "x") == 0
