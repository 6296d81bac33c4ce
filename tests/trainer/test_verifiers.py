"""verifiers' own rollouts after generation, with a scripted judge."""

from __future__ import annotations

import asyncio
import importlib
import importlib.machinery
import math
import sys
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.reference_format import write_reference_format
from tests.trainer.conftest import BY_ITEMS, FRAMEWORKS, ITEMS, SHOWN

pytestmark = pytest.mark.filterwarnings("ignore")  # of their code
REWARD = "autoj_reward.trainer.verifiers:reward"


@pytest.fixture
def vf(theirs: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return `verifiers.v1` of the package under test."""
    theirs(FRAMEWORKS, "verifiers")
    return importlib.import_module("verifiers.v1")


def rollout(
    vf: Any, said: str, prompt: Any = "Why?", scoring: float | None = None, **task: Any
) -> Any:
    """Return a rollout of verifiers in which the policy has answered `said`, ready to be closed."""
    from verifiers.v1.configs.agent import AgentConfig
    from verifiers.v1.graph import MessageNode
    from verifiers.v1.rollout import Rollout, RolloutTimeouts
    from verifiers.v1.runtimes import SubprocessConfig
    from verifiers.v1.session import RolloutLimits
    from verifiers.v1.types import AssistantMessage

    async def nothing(*_: Any) -> None:
        pass

    config = vf.TaskConfig.model_validate(task or {"rewards": {"judge": {"fn": REWARD}}})
    made = Rollout(
        task=vf.Task(vf.TaskData(prompt=prompt), config),
        agent_config=AgentConfig(),
        harness=SimpleNamespace(SUPPORTS_TOOL_INTERCEPTION=False, score=nothing, cleanup=nothing),
        ctx=None,
        runtime_config=SubprocessConfig(),
        timeouts=RolloutTimeouts(scoring=scoring),
        limits=RolloutLimits(),
    )
    made.runtime, made._opened = SimpleNamespace(stop=nothing), True
    made.trace.nodes.append(MessageNode(message=AssistantMessage(content=said), sampled=True))
    return made


PROMPTS: dict[str, tuple[Any, str]] = {
    "text": ("Why?", "Why?"),
    "one message": ([{"role": "user", "content": "Why?"}], "Why?"),
    "turns": (
        [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Why?"}],
        "System: Be kind.\n\nUser: Why?",
    ),
}


@pytest.mark.parametrize("case", PROMPTS)
async def test_a_rollout_is_rewarded_and_the_call_is_on_record(
    vf: Any, named: Any, case: str
) -> None:
    named()
    prompt, query = PROMPTS[case]
    trace = await rollout(vf, "good", prompt).close()
    assert (trace.ok, trace.reward) == (True, 9.0)
    assert trace.metrics["judge_ok"] == 1.0
    [call] = trace.info["judge_calls"]
    assert call["request"] == {"query": query, "response": "good"}
    assert "[[9]]" in call["response"]["message"]["content"]
    assert [usage.completion_tokens for usage in trace.extra_usage] == [8]


@pytest.mark.parametrize("shows", SHOWN)
async def test_the_turns_of_a_trace(vf: Any, named: Any, shows: str) -> None:
    from verifiers.v1.graph import MessageNode
    from verifiers.v1.types import AssistantMessage, ToolCall, ToolMessage, UserMessage

    named(shows=shows)
    made = rollout(vf, "good")
    call = [ToolCall(id="c", name="look", arguments="{}")]
    made.trace.nodes[:] = [
        MessageNode(
            message=message, parent=n - 1 if n else None, sampled=message.role == "assistant"
        )
        for n, message in enumerate(
            (
                UserMessage(content="Why?"),
                AssistantMessage(content=None, tool_calls=call),
                ToolMessage(tool_call_id="c", content="blue"),
                AssistantMessage(content="good"),
            )
        )
    ]
    trace = await made.close()
    assert (trace.ok, trace.reward) == (True, SHOWN[shows])


async def test_a_tasks_own_fields_are_the_context(vf: Any, named: Any, tmp_path: Path) -> None:
    class Task(vf.TaskData):
        answer: str
        rubric: str | None = None

    model = named(fmt=str(write_reference_format(tmp_path / "marks")))
    made = rollout(vf, "good")
    config = made.task.config
    made.task = vf.Task(Task(prompt="Why?", answer="So.", rubric="exact"), config)
    trace = await made.close()
    assert (trace.ok, trace.reward) == (True, 9.0)
    [(asked, _)] = model.recent()
    assert dict(asked.context) == {"reference": "So.", "rubric": "exact"}


async def test_a_tasks_rubric_is_scored_by_items(vf: Any, named: Any) -> None:
    class Task(vf.TaskData):
        rubric: list[dict[str, Any]]

    named(**BY_ITEMS)
    made = rollout(vf, "good")
    made.task = vf.Task(Task(prompt="Why?", rubric=ITEMS), made.task.config)
    trace = await made.close()
    assert (trace.ok, trace.reward) == (True, 0.75)
    assert trace.metrics["judge_ok"] == 1.0
    [call] = trace.info["judge_calls"]
    assert "Criterion 1: Yes" in call["response"]["message"]["content"]


@pytest.fixture
def plugin(vf: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the id of a judge plugin: a module that exports the scorer."""
    ours = importlib.import_module("autoj_reward.trainer.verifiers")
    ours._make_judge_scorer.cache_clear()
    module = types.ModuleType("judge_plugin")
    module.__dict__.update(JudgeScorer=ours.JudgeScorer, __all__=["JudgeScorer"])
    module.__spec__ = importlib.machinery.ModuleSpec("judge_plugin", None)
    monkeypatch.setitem(sys.modules, "judge_plugin", module)
    return "judge_plugin"


async def test_a_plugged_judge_has_its_weight(vf: Any, named: Any, plugin: str) -> None:
    named(budget=1.0)
    judges = [{"id": plugin, "name": "quality", "weight": 0.5}]
    trace = await rollout(vf, "good", judges=judges).close()
    assert trace.reward == 4.5 and list(trace.rewards) == ["quality"]
    assert not (await rollout(vf, "lost", judges=judges).close()).ok


@pytest.fixture
def episode(vf: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that runs an episode of our environment, loaded by id as verifiers does.

    Its agent's attempts end with the given texts; one that is None fails.
    """
    from verifiers.v1.utils import loaders

    ours = importlib.import_module("autoj_reward.trainer.verifiers")
    ours._make_judge_group_env.cache_clear()

    class Asked(vf.Taskset[vf.Task, vf.TasksetConfig]):
        def load(self) -> list[Any]:
            return [vf.Task(vf.TaskData(prompt="Why?"))]

    plugins = {"judge_group": {"JudgeGroupEnv": ours.JudgeGroupEnv}, "asked": {"Asked": Asked}}
    for name, exported in plugins.items():
        module = types.ModuleType(name)
        module.__dict__.update(exported, __all__=list(exported))
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        monkeypatch.setitem(sys.modules, name, module)

    async def run(*said: str | None) -> Any:
        given = {"id": "judge_group", "taskset": {"id": "asked"}, "n": len(said)}
        env = loaders.load_environment(loaders.resolve_env_config(given))
        texts = iter(said)

        def agents(ctx: Any, completed: list[Any], *_: Any) -> Any:
            async def attempt(task: Any) -> None:
                text = next(texts)
                made = rollout(vf, text or "")
                made.task = task
                completed.append(await made.close())
                if text is None:
                    completed[-1].record_error(ValueError("the box is gone"))

            return SimpleNamespace(agent=SimpleNamespace(run=attempt))

        monkeypatch.setattr(env, "_episode_agents", agents)
        [task] = env.taskset
        return await env.run_episode(task, None)

    return run


RELATIVE = {"more": {"relative": {"by": "listwise"}}, "fmt": "listwise", "budget": 1.0}


async def test_the_attempts_of_an_episode_are_judged_together(episode: Any, named: Any) -> None:
    named(**RELATIVE)
    found = await episode("good", "poor", "good")
    assert found.ok, found.errors
    good, poor, again = (trace.reward for trace in found.traces)
    assert good == again and 0 <= poor < good <= 1
    assert [trace.metrics["best"] for trace in found.traces] == [1.0, 0.0, 1.0]
    assert all(trace.metrics["judge_ok"] == 1.0 for trace in found.traces)
    assert [len(trace.info["judge_calls"]) for trace in found.traces] == [1, 1, 1]


async def test_a_group_without_a_judgement_has_errors_and_no_rewards(
    episode: Any, named: Any
) -> None:
    named(**RELATIVE)
    lost = await episode("good", "lost")
    assert not lost.ok and [trace.rewards for trace in lost.traces] == [{}, {}]
    assert all("truncated" in trace.last_error.message for trace in lost.traces)
    alone = await episode("good", None)
    assert [trace.ok for trace in alone.traces] == [False, False]
    assert "no other trace" in alone.traces[0].last_error.message
    named(**RELATIVE | {"budget": 0.0})
    spent = await episode("good", "lost")
    assert not spent.ok and "BudgetExceeded" in spent.last_error.message


async def test_a_failed_attempt_is_left_out_of_its_group(episode: Any, named: Any) -> None:
    named(**RELATIVE)
    found = await episode("good", None, "poor")
    good, failed, poor = found.traces
    assert good.reward > poor.reward and not failed.rewards and "judge_ok" not in failed.metrics


ENDS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "a failed judgement": ("lost", {"budget": 1.0}, "NoReward: truncated: no rating slot"),
    "a judge that hangs": ("slow", {"budget": 1.0, "hangs_s": 0.1}, "NoReward: unavailable"),
    "a spent budget": ("lost", {"budget": 0.0}, "BudgetExceeded: 1 of the last 1"),
    "no prompt": (None, {}, "InputError: the task has no prompt"),
}


@pytest.mark.parametrize("case", ENDS)
async def test_what_is_no_reward_ends_the_rollout_in_words(vf: Any, named: Any, case: str) -> None:
    said, failures, words = ENDS[case]
    named(**failures)
    trace = await rollout(vf, said or "good", prompt=said and "Why?").close()
    assert not trace.ok and trace.rewards == {"judge": None}
    assert words in trace.last_error.message
    assert trace.stop_condition == "task_error"


async def answer_none(task: Any, trace: Any) -> Any:
    return None


async def answer_nan(task: Any, trace: Any) -> float:
    return float("nan")


async def answer_late(task: Any, trace: Any) -> float:
    await asyncio.Event().wait()
    return 1.0


THEIRS: dict[str, tuple[Any, bool, str | None]] = {
    "None ends the rollout": (answer_none, False, "task_error"),
    "NaN is a reward": (answer_nan, True, None),
    "a timeout is a reward of 0": (answer_late, True, "scoring_timeout"),
}


@pytest.mark.parametrize("case", THEIRS)
async def test_what_verifiers_does(vf: Any, case: str) -> None:
    function, ok, stopped = THEIRS[case]
    module = importlib.import_module(__name__)
    sys.modules.setdefault(__name__, module)
    plugged = {"judge": {"fn": f"{__name__}:{function.__name__}"}}
    limit = 0.05 if function is answer_late else None
    trace = await rollout(vf, "good", scoring=limit, rewards=plugged).close()
    assert (trace.ok, trace.stop_condition) == (ok, stopped)
    if ok:
        assert math.isnan(trace.reward) or trace.reward == 0
