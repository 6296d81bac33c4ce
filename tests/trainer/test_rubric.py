"""verifiers' own Rubric scoring rollouts, with a scripted judge."""

from __future__ import annotations

import importlib
import math
from typing import Any

import pytest

from autoj_reward.errors import BudgetExceeded, ConfigError, InputError
from autoj_reward.trainer.rubric import rubric_reward, rubric_rewards
from tests.trainer.conftest import FRAMEWORKS

pytestmark = pytest.mark.filterwarnings("ignore")  # of their code
BEFORE = FRAMEWORKS.with_name(FRAMEWORKS.name + "-before")


@pytest.fixture
def vf(theirs: Any) -> Any:
    """The last verifiers whose own interface is the Rubric."""
    theirs(BEFORE, "verifiers")
    theirs(FRAMEWORKS, "tenacity")
    return importlib.import_module("verifiers")


def state(vf: Any, said: Any, prompt: Any = None) -> Any:
    """The state of a finished rollout."""
    from verifiers.types import AssistantMessage, UserMessage

    asked = [UserMessage(content="Why?")] if prompt is None else prompt
    told = said if not isinstance(said, str) else [AssistantMessage(content=said)]
    row = {"example_id": 0, "prompt": asked, "completion": told}
    return vf.State(row, trajectory=[], error=None, timing={})


async def test_rollouts_alone_and_in_a_group(vf: Any, named: Any) -> None:
    named(5.0, budget=1.0, fallback=4.5)
    rubric = vf.Rubric([rubric_reward], [0.5])
    states = [state(vf, said) for said in ("good", "poor", "lost", "slow")]
    for one in states:
        await rubric.score_rollout(one)
    assert [one["reward"] for one in states] == [4.5, 1.0, 2.25, 2.25]
    assert states[0]["metrics"] == {"rubric_reward": 9.0}
    await rubric.score_group(states)
    assert [one["reward"] for one in states] == [4.5, 1.0, 2.25, 2.25]
    assert [one["error"] for one in states] == [None] * 4


async def test_a_group_function_has_the_group_at_once(vf: Any, named: Any) -> None:
    named(budget=1.0, fallback="group")
    states = [state(vf, said) for said in ("good", "lost", "poor")]
    await vf.Rubric([rubric_rewards]).score_group(states)
    assert [one["reward"] for one in states] == [9.0, 5.5, 2.0]
    assert [one["advantage"] for one in states] == [3.5, 0.0, -3.5]


async def test_the_last_reply_of_plain_texts_and_of_turns(vf: Any, named: Any) -> None:
    named()
    turns = [
        {"role": "assistant", "content": "poor"},
        {"role": "user", "content": "Sure?"},
        {"role": "assistant", "content": [{"type": "text", "text": "good"}]},
    ]
    for one in (state(vf, turns), state(vf, "good", "Why?")):
        await vf.Rubric([rubric_reward]).score_rollout(one)
        assert one["reward"] == 9.0


ENDS: dict[str, tuple[Any, dict[str, Any], type[Exception], str]] = {
    "a spent budget": ("lost", {"budget": 0.0}, BudgetExceeded, "training stops"),
    "a lone rollout": ("lost", {"budget": 1.0, "fallback": "group"}, ConfigError, "is group"),
    "no messages": ([5], {}, InputError, "not a message with a role"),
}


@pytest.mark.parametrize("case", ENDS)
@pytest.mark.parametrize("function", [rubric_reward, rubric_rewards])
async def test_an_error_is_the_rollouts_and_no_silent_0(
    vf: Any, named: Any, function: Any, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    from verifiers.utils.save_utils import state_to_output

    said, failures, kind, words = ENDS[case]
    named(**failures)
    one = state(vf, said)
    await vf.Rubric([function]).score_group([one])
    assert one["reward"] == 0.0 and isinstance(one["error"], kind)
    assert words in str(one["error"])
    one["completion"] = []
    assert words in state_to_output(one, [])["error"]["message"]


def raises(completion: Any) -> float:
    raise ValueError("no")


def answers_none(completion: Any) -> Any:
    return None


def answers_nan(completion: Any) -> float:
    return math.nan


def nothing_of_a_group(completions: Any) -> Any:
    return None


async def test_what_a_rubric_does(vf: Any) -> None:
    one = state(vf, "good")
    for function in (raises, answers_none):
        await vf.Rubric([function]).score_rollout(one)
        assert one["reward"] == 0.0 and one["error"] is None
    await vf.Rubric([answers_nan]).score_rollout(one)
    assert math.isnan(one["reward"])
    with pytest.raises(TypeError):
        await vf.Rubric([nothing_of_a_group]).score_group([one])
