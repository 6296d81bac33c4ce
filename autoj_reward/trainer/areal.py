"""AReaL: a reward function for its workflows.

    workflow_kwargs=dict(reward_fn=checked_reward_fn(), ...)

AReaL calls it in a process pool. A call that takes 15 s, its wait for a process included, is
retried; after four such calls the reward is 0. So keep `judge.serve.deadline_s` below 15 s, and no
more calls in flight than the pool answers in time. A workflow of your own that awaits `reward` has
no such timeout.

Set AUTOJ_REWARD to the YAML file of a reward config (a `RewardConfig`). Name a running service in
it, since the pool has several processes.
"""

from __future__ import annotations

import asyncio
from typing import Any

from autoj_reward.errors import ConfigError
from autoj_reward.trainer.rows import reward_model, row_rewards
from autoj_reward.trainer.shaping import refuse_groups

PATIENCE_S = 15.0
"""Seconds after which AReaL's wrapper retries, and finally returns 0."""
ONE_BY_ONE = "AReaL asks for one response a call"


def checked_reward_fn() -> str:
    """Return the import path of `reward_fn`, for the script that starts the training.

    Raises ConfigError if the config cannot be used with AReaL. AReaL only logs what a reward
    function raises, and rejects the trajectory, so an error at the first reward would stop nothing.
    """
    _require_usable()
    return f"{__name__}.{reward_fn.__name__}"


def _require_usable() -> None:
    config = reward_model().config
    refuse_groups(config, ONE_BY_ONE)
    deadline_s = config.judge.serve.deadline_s
    if deadline_s >= PATIENCE_S:
        raise ConfigError(
            f"judge.serve.deadline_s is {deadline_s:g}, and AReaL takes 0 for what it waits "
            f"{PATIENCE_S:g} s for: set it well below, such as 10"
        )


async def reward(
    prompt: str, completions: str, prompt_ids: Any = None, completion_ids: Any = None, **data: Any
) -> float:
    """Return the reward of one completion. Failed judgements get the configured fallback.

    The query is the row's `messages`, else the user's text in the prompt. The judge shows the row's
    columns as context, with `answer` as the reference. Raises BudgetExceeded when too many
    judgements of this process have failed. Raises ConfigError if the config needs the other
    responses of a query.
    """
    refuse_groups(reward_model().config, ONE_BY_ONE)
    row = {**data, "label": data.get("answer")}
    messages = data.get("messages")
    if messages is None or (isinstance(messages, list) and not messages):
        messages = prompt
    request = (messages, completions, row)
    [number] = await row_rewards(reward_model(), [request])
    return number


def reward_fn(*args: Any, **kwargs: Any) -> float:
    """Return the reward in a process of AReaL's pool; takes the arguments of `reward`.

    Raises ConfigError if the config needs the other responses of a query, or if the judge's
    deadline is so long that AReaL would return 0 first.
    """
    _require_usable()
    return asyncio.run(reward(*args, **kwargs))
