"""verifiers 0.3 and later, and with it prime-rl: the rewards of a taskset's rollouts.

    reward         a task's reward: `rewards.judge.fn = "autoj_reward.trainer.verifiers:reward"`
    JudgeScorer    the same as a `vf.Judge`, to subclass or to export from a judge plugin

A failed judgement and a spent budget end their rollout with an error in words, and prime-rl leaves
it out of the group.

Set AUTOJ_REWARD to the YAML file of a reward config (a `RewardConfig`; name a running service in
it, since environments run in several processes). The query is the task's prompt, and the response
what the assistant says last.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from autoj_reward.errors import InputError, NoReward
from autoj_reward.trainer.parts import Reward
from autoj_reward.trainer.prompts import candidate, mappings
from autoj_reward.trainer.rows import reward_model
from autoj_reward.trainer.stats import row_figures
from autoj_reward.types import Candidate


async def reward(task: Any, trace: Any) -> float:
    """The reward of a trace, whose metrics get the judge's figures and whose `judge_calls` the
    critique. The task's own fields are the context that the judge shows, `answer` the reference.
    Raises NoReward for a judgement that fails, InputError for a task without a prompt,
    ConfigError where the config needs the other responses of a query, and BudgetExceeded when too
    many judgements of this process have failed."""
    if task.prompt is None:
        raise InputError("the task has no prompt, so the judge would have no query: give it one")
    model = reward_model()
    known = model.fields.read({**vars(task), **(task.model_extra or {})}, "answer")
    asked = candidate(mappings(task.prompt), trace.last_reply, known)
    [found] = await model.rewards([asked])
    trace.record_metrics(row_figures(found, model.parts))
    _record(trace, asked, found)
    if found.value is None:
        raise NoReward(found.judgement.why)
    return found.value


def _record(trace: Any, candidate: Candidate, found: Reward) -> None:
    from verifiers.v1.judge import JudgeResponse
    from verifiers.v1.types import Usage

    usage = found.judgement.usage
    tokens = Usage(
        prompt_tokens=usage.tokens_in - usage.tokens_cached,
        cached_input_tokens=usage.tokens_cached,
        completion_tokens=usage.tokens_out,
    )
    trace.record_judge_call(
        name="judge",
        request={"query": candidate.query, "response": candidate.response},
        response=JudgeResponse(text=found.judgement.critique, parsed=found.raw, usage=tokens),
    )


def __getattr__(name: str) -> Any:
    # A class of verifiers', which imports much.
    if name == "JudgeScorer":
        return _judge_scorer()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@cache
def _judge_scorer() -> type:
    from verifiers.v1 import Judge

    class JudgeScorer(Judge[float]):
        """`reward` as a judge of verifiers'; of its config, id, name and weight count."""

        async def score(self, task: Any, trace: Any) -> float:
            return await reward(task, trace)

    return JudgeScorer
