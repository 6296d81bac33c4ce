"""verifiers 0.4 and later, and prime-rl with it: rewards of a taskset's rollouts.

    reward         a task's reward: `rewards.judge.fn = "autoj_reward.trainer.verifiers:reward"`
    JudgeScorer    the same as a `vf.Judge`, to subclass or to export from a judge plugin
    reward_group   rewards the traces of one episode together, from an environment's `finalize`
    JudgeGroupEnv  an environment that does so: n attempts at a task, as in verifiers' best-of-n

A failed judgement or a spent failure budget ends its rollout with an error, and prime-rl leaves the
rollout out of the group.

Set AUTOJ_REWARD to the YAML file of a reward config (a `RewardConfig`). Name a running service in
it, since environments run in several processes. The query is the task's prompt, and the response is
the assistant's last message, or what `judge.shows` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from autoj_reward.errors import InputError, NoReward
from autoj_reward.trainer.parts import Reward
from autoj_reward.trainer.prompts import candidate, mappings
from autoj_reward.trainer.reward import RewardModel
from autoj_reward.trainer.rows import reward_model
from autoj_reward.trainer.shaping import needs_groups
from autoj_reward.trainer.stats import row_figures
from autoj_reward.types import Candidate


async def reward(task: Any, trace: Any) -> float:
    """Return the reward of a trace, and record metrics and the critique in the trace.

    The judge shows the task's own fields as context, with `answer` as the reference. Raises
    NoReward for a failed judgement, and BudgetExceeded when too many of this process have failed.
    Raises InputError for a task without a prompt, ConfigError if the config needs the other
    responses of a query.
    """
    model = reward_model()
    trace_candidate = _make_candidate(model, task, trace)
    [result] = await model.rewards([trace_candidate])
    _record(model, trace, trace_candidate, result)
    if result.value is None:
        raise NoReward(result.judgement.why)
    return result.value


async def reward_group(traces: Sequence[Any], name: str = "judge", weight: float = 1.0) -> None:
    """Reward the traces of one episode together, and record all as `reward` does.

    Those with the same prompt and context form a group; relative rewards need two or more. Traces
    that failed are left out. A judgement that abstains is an error of its trace. name: name of the
    reward in the traces. weight: its weight. Raises what `reward` raises, but no NoReward.
    """
    model = reward_model()
    finished_traces = [trace for trace in traces if trace.ok]
    if len(finished_traces) == 1 and needs_groups(model.config):
        finished_traces[0].record_error(NoReward("no other trace of its episode can be judged"))
        return
    candidates = [_make_candidate(model, trace.task.data, trace) for trace in finished_traces]
    for trace, trace_candidate, result in zip(
        finished_traces, candidates, await model.rewards(candidates), strict=True
    ):
        _record(model, trace, trace_candidate, result)
        if result.value is None:
            trace.record_error(NoReward(result.judgement.why))
        else:
            trace.record_reward(name, result.value, weight)


def _make_candidate(model: RewardModel, task: Any, trace: Any) -> Candidate:
    if task.prompt is None:
        raise InputError("the task has no prompt, so the judge would have no query: give it one")
    context = model.fields.read({**vars(task), **(task.model_extra or {})}, "answer")
    # The last reply, with all turns of the trace from the policy's first one.
    nodes = trace.branches[-1].nodes if trace.branches else []
    begin = next((n for n, node in enumerate(nodes) if node.sampled), len(nodes))
    messages = mappings([node.message for node in nodes[begin:]])
    return candidate(mappings(task.prompt), messages, context, text=trace.last_reply)


def _record(model: RewardModel, trace: Any, candidate: Candidate, result: Reward) -> None:
    """Record the judge's metrics and its call in the trace."""
    from verifiers.v1.judge import JudgeResponse
    from verifiers.v1.types import Usage

    trace.record_metrics(row_figures(result, model.parts))
    usage = result.judgement.usage
    tokens = Usage(
        prompt_tokens=usage.tokens_in - usage.tokens_cached,
        cached_input_tokens=usage.tokens_cached,
        completion_tokens=usage.tokens_out,
    )
    trace.record_judge_call(
        name="judge",
        request={"query": candidate.prompt.text, "response": candidate.response.text},
        response=JudgeResponse(text=result.judgement.critique, parsed=result.raw, usage=tokens),
    )


def __getattr__(name: str) -> Any:
    # Made on first use: verifiers is slow to import.
    if name == "JudgeScorer":
        return _make_judge_scorer()
    if name == "JudgeGroupEnv":
        return _make_judge_group_env()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@cache
def _make_judge_scorer() -> type:
    from verifiers.v1 import Judge

    class JudgeScorer(Judge[float]):
        """`reward` as a judge of verifiers. Of its config, id, name and weight have an effect."""

        async def score(self, task: Any, trace: Any) -> float:
            return await reward(task, trace)

    return JudgeScorer


@cache
def _make_judge_group_env() -> type:
    from verifiers.v1.envs.best_of_n import BestOfNEnv

    class JudgeGroupEnv(BestOfNEnv):
        """Environment of n attempts at a task, which are judged together once all have ended."""

        async def finalize(self, task: Any, episode: Any) -> None:
            await reward_group(episode.traces)
            await super().finalize(task, episode)

    return JudgeGroupEnv
