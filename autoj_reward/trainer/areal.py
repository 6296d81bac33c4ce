"""AReaL: a reward function for its workflows.

    workflow_kwargs=dict(reward_fn="autoj_reward.trainer.areal.reward_fn", ...)

AReaL calls it in a pool of processes, and what takes 15 s four times over, its wait for a process
included, is a reward of 0. So `judge.serve.deadline_s` must be below that, and the calls under way
no more than the pool answers in time. A workflow of your own that awaits `reward` knows no such
timeout.

Set AUTOJ_REWARD to the YAML file of a reward config (a `RewardConfig`; name a running service in
it, since the pool has several processes).
"""

from __future__ import annotations

import asyncio
from typing import Any

from autoj_reward.errors import ConfigError
from autoj_reward.trainer.rows import reward_model, row_rewards

PATIENCE_S = 15.0
"""After which AReaL's wrapper asks again, and at last takes 0."""


async def reward(
    prompt: str, completions: str, prompt_ids: Any = None, completion_ids: Any = None, **data: Any
) -> float:
    """The reward of one completion. The query is the row's `messages`, else what the user says in
    the prompt; the row's columns are the context that the judge shows, `answer` the reference.
    Failures get the configured fallback.

    Raises BudgetExceeded when too many judgements of this process have failed, ConfigError where
    the config needs the other responses of a query, InputError for messages that are none.
    """
    row = {**data, "label": data.get("answer")}
    asked = (data.get("messages") or prompt, completions, row)
    [found] = await row_rewards(reward_model(), [asked])
    return found


def reward_fn(*args: Any, **kwargs: Any) -> float:
    """`reward` in a process of AReaL's pool. ConfigError where the judge may take so long that
    AReaL would make it 0."""
    deadline_s = reward_model().config.judge.serve.deadline_s
    if deadline_s >= PATIENCE_S:
        raise ConfigError(
            f"judge.serve.deadline_s is {deadline_s:g}, and AReaL takes 0 for what it waits "
            f"{PATIENCE_S:g} s for: set it well below, such as 10"
        )
    return asyncio.run(reward(*args, **kwargs))
