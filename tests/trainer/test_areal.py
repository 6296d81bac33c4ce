"""AReaL's own workflow, wrapper and executor, with a scripted engine and judge."""

from __future__ import annotations

import asyncio
import importlib
import logging
import math
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from autoj_reward.errors import BudgetExceeded, ConfigError
from autoj_reward.trainer import areal as ours
from autoj_reward.trainer.environment import reward_model
from tests.trainer.conftest import FRAMEWORKS

pytestmark = pytest.mark.filterwarnings("ignore")  # of their code
ROW = {"messages": [{"role": "user", "content": "Why?"}], "answer": "5"}


@pytest.fixture(autouse=True)
def wrapper(theirs: Any) -> Iterator[Any]:
    """AReaL's wrapper of reward functions. Its processes end with the test, whose config they
    have."""
    theirs(FRAMEWORKS, "areal")
    found = importlib.import_module("areal.api").AsyncRewardWrapper
    yield found
    found._atexit_shutdown_all()


def engine(tokenizer: Any, said: str) -> Any:
    """In the place of AReaL's inference engine: says so."""
    from areal.api import ModelResponse

    tokens = tokenizer(said + "<|im_end|>", add_special_tokens=False).input_ids

    async def agenerate(request: Any) -> Any:
        count = len(tokens)
        return ModelResponse(request.input_ids, tokens, [0.0] * count, [0] * count)

    return SimpleNamespace(agenerate=agenerate, get_version=lambda: 0)


def workflow(tokenizer: Any, function: Any = None) -> Any:
    """Ours as AReaL finds it by name, or its own single turn with a function."""
    from areal.api.cli_args import GenerationHyperparameters
    from areal.utils.dynamic_import import import_from_string
    from areal.workflow.rlvr import RLVRWorkflow

    config = GenerationHyperparameters()
    if function is not None:
        return RLVRWorkflow(function, gconfig=config, tokenizer=tokenizer)
    ours = import_from_string("autoj_reward.trainer.areal.JudgeWorkflow")
    return ours(gconfig=config, tokenizer=tokenizer)


def rewarded(flow: Any, tokenizer: Any, said: str) -> float:
    found = asyncio.run(flow.arun_episode(engine(tokenizer, said), dict(ROW)))
    return float(found["rewards"].item())


def executor(tokenizer: Any, said: str) -> Any:
    """AReaL's executor of workflows, as its engines start it."""
    from areal.api.cli_args import InferenceEngineConfig
    from areal.infra.workflow_executor import WorkflowExecutor

    config = InferenceEngineConfig(consumer_batch_size=1, max_head_offpolicyness=100)
    made = WorkflowExecutor(config=config, inference_engine=engine(tokenizer, said))
    made.initialize(logger=logging.getLogger("executor"), train_data_parallel_size=1)
    return made


def test_the_workflow_rewards_good_and_failed_rows(named: Any, smollm2: Any) -> None:
    model = named(budget=1.0, fallback=4.5)
    flow = workflow(smollm2)
    assert [rewarded(flow, smollm2, s) for s in ("good", "lost", "slow")] == [9.0, 4.5, 4.5]
    judged = [(candidate.query, candidate.response) for candidate, _ in model._recent]
    assert judged[0] == ("Why?", "good")


def test_a_function_in_areals_pool(named: Any, smollm2: Any) -> None:
    named(budget=1.0, fallback=4.5)
    # Opened here: a process that is forked off has none of this one's threads.
    assert asyncio.run(ours.reward("Why?", "good")) == 9.0
    flow = workflow(smollm2, "autoj_reward.trainer.areal.reward_fn")
    assert [rewarded(flow, smollm2, s) for s in ("good", "lost", "slow")] == [9.0, 4.5, 4.5]


def test_a_function_says_what_ends_a_run_after_four_tries(named: Any, smollm2: Any) -> None:
    named(budget=0.0)
    with pytest.raises(BudgetExceeded, match="training stops"):
        rewarded(workflow(smollm2, ours.reward_fn), smollm2, "lost")


def test_a_deadline_that_areal_would_make_0_is_refused(named: Any) -> None:
    named()
    config = reward_model().config
    serve = config.judge.serve.model_copy(update={"deadline_s": 15.0})
    judge = config.judge.model_copy(update={"serve": serve})
    reward_model().config = config.model_copy(update={"judge": judge})
    with pytest.raises(ConfigError, match="deadline_s is 15, and AReaL takes 0"):
        ours.reward_fn("Why?", "good")


def raising(*_: Any, **__: Any) -> float:
    raise RuntimeError("broken")


def nothing(*_: Any, **__: Any) -> None:
    pass


def no_number(*_: Any, **__: Any) -> float:
    return math.nan


def sleepy(*_: Any, **__: Any) -> float:
    time.sleep(1)
    return 9.0


def test_areals_wrapper_makes_0_of_a_timeout(wrapper: Any) -> None:
    assert asyncio.run(wrapper(sleepy, timeout_seconds=0.1, max_retries=0)()) == 0


def test_areal_trains_on_nan(smollm2: Any) -> None:
    assert math.isnan(rewarded(workflow(smollm2, no_number), smollm2, "x"))


@pytest.mark.parametrize("function", [raising, nothing])
def test_areal_rejects_a_trajectory_without_a_reward(
    function: Any, smollm2: Any, caplog: pytest.LogCaptureFixture
) -> None:
    runs = executor(smollm2, "x")
    runs.submit(dict(ROW), workflow(smollm2, function))
    assert runs.wait(1, timeout=60) == [None]
    runs.destroy()
    assert "Workflow execution failed" in caplog.text


@pytest.mark.parametrize("failures", [{"budget": 0.0}, {"budget": 1.0, "fallback": "group"}])
def test_what_ends_a_run(
    failures: dict[str, Any], named: Any, smollm2: Any, caplog: pytest.LogCaptureFixture
) -> None:
    named(**failures)
    runs = executor(smollm2, "lost")
    runs.submit(dict(ROW), workflow(smollm2))
    with pytest.raises(RuntimeError, match="AsyncTaskRunner is exiting"):
        runs.wait(1, timeout=60)
    runs.destroy()
    assert "no reward, which ends the run" in caplog.text
