"""verifiers 0.3 and later, and prime-rl with it: rewards of a taskset's rollouts.

    reward         a task's reward: `rewards.judge.fn = "autoj_reward.trainer.verifiers:reward"`
    JudgeScorer    the same as a `vf.Judge`, to subclass or to export from a judge plugin

A failed judgement or a spent failure budget ends its rollout with an error, and prime-rl leaves the
rollout out of the group.

Set AUTOJ_REWARD to the YAML file of a reward config (a `RewardConfig`). Name a running service in
it, since environments run in several processes. The query is the task's prompt, and the response is
the assistant's last message.
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
    """Return the reward of a trace, and record metrics and the critique in the trace.

    The judge shows the task's own fields as context, with `answer` as the reference. Raises
    NoReward for a failed judgement, and BudgetExceeded when too many of this process have failed.
    Raises InputError for a task without a prompt, ConfigError if the config needs the other
    responses of a query.
    """
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
    """Record the judge's call in the trace."""
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
    # Made on first use: verifiers is slow to import.
    if name == "JudgeScorer":
        return _judge_scorer()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@cache
def _judge_scorer() -> type:
    from verifiers.v1 import Judge

    class JudgeScorer(Judge[float]):
        """`reward` as a judge of verifiers. Of its config, id, name and weight have an effect."""

        async def score(self, task: Any, trace: Any) -> float:
            return await reward(task, trace)

    return JudgeScorer
