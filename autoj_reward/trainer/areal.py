"""AReaL: a workflow that judges, or a reward function for AReaL's own workflows.

    workflow="autoj_reward.trainer.areal.JudgeWorkflow"   in place of RLVRWorkflow
    reward_fn="autoj_reward.trainer.areal.reward_fn"      for AReaL's other workflows

Prefer the workflow, which takes the arguments of RLVRWorkflow but `reward_fn`. A reward function is
called in a pool of processes, and what takes 15 s four times over, its wait for a process included,
is a reward of 0; the workflow's reward is not called so.

AReaL rejects a trajectory whose workflow raises, logs why, and goes on without it for ever. So what
must end a run leaves the workflow as SystemExit, which ends AReaL's rollout thread, and with it the
run: "AsyncTaskRunner is exiting".

Set AUTOJ_REWARD to the YAML file of a reward config (a `RewardConfig`; name a running service in
it, since both run in several processes).
"""

from __future__ import annotations

import asyncio
import logging
from functools import cache
from typing import Any

from autoj_reward.errors import BudgetExceeded, ConfigError
from autoj_reward.trainer.environment import reward_model
from autoj_reward.trainer.numbers import numbers

LOG = logging.getLogger("autoj_reward.trainer")
PATIENCE_S = 15.0
"""After which AReaL's wrapper asks again, and at last takes 0."""


async def reward(
    prompt: str, completions: str, prompt_ids: Any = None, completion_ids: Any = None, **data: Any
) -> float:
    """The reward of one completion. The query is the row's `messages`, else what the user says in
    the prompt. Failures get the configured fallback.

    Raises BudgetExceeded when too many judgements of this process have failed, ConfigError where
    the config needs the other responses of a query, InputError for messages that are none.
    """
    [found] = await numbers(reward_model(), [(data.get("messages") or prompt, completions)])
    return found


def reward_fn(*args: Any, **kwargs: Any) -> float:
    """`reward` in a process of AReaL's pool. ConfigError where the judge may take so long that
    AReaL would make it 0."""
    deadline_s = reward_model().config.judge.serve.deadline_s
    if deadline_s >= PATIENCE_S:
        raise ConfigError(
            f"judge.serve.deadline_s is {deadline_s:g}, and AReaL takes 0 for what it waits "
            f"{PATIENCE_S:g} s for: set it well below, such as 10, or take JudgeWorkflow"
        )
    return asyncio.run(reward(*args, **kwargs))


def __getattr__(name: str) -> Any:
    # A subclass of AReaL's, which only its own environment can import.
    if name == "JudgeWorkflow":
        return _judge_workflow()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@cache
def _judge_workflow() -> type:
    from areal.workflow.rlvr import RLVRWorkflow

    class JudgeWorkflow(RLVRWorkflow):
        """AReaL's single turn, rewarded on its own event loop, without the wrapper's timeout."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(reward, *args, **kwargs)
            self.async_reward_fn = self._reward

        async def _reward(self, *args: Any, **kwargs: Any) -> float:
            try:
                return await reward(*args, **kwargs)
            except (BudgetExceeded, ConfigError) as error:
                LOG.error("no reward, which ends the run: %s", error)
                raise SystemExit(str(error)) from error

    return JudgeWorkflow
