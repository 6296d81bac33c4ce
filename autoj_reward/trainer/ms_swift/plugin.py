"""ms-swift: a reward function for its GRPO trainers.

    swift rlhf --rlhf_type grpo --external_plugins PATH/TO/plugin.py --reward_funcs autoj ...

Set AUTOJ_REWARD to the YAML file of a reward config (a `RewardConfig`) that names a running service
or an endpoint, since each rank opens its own judge. ms-swift counts None as 0, so a failed
judgement gets the configured fallback.

ms-swift calls the function on every rank, with this rank's part of the groups. Rewards that need
whole groups are judged on rank 0, which gathers the responses of all ranks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from swift.rewards import AsyncORM, orms

from autoj_reward.reward import judge_reward_sync


class JudgeORM(AsyncORM):
    """Reward function `autoj` of ms-swift."""

    async def __call__(
        self,
        completions: Sequence[str],
        messages: Sequence[Sequence[Mapping[str, Any]]],
        **columns: Any,
    ) -> list[float]:
        """Return one number for each completion.

        messages: the whole conversations, which end with the completions. The judge's context
        fields are read from the dataset's columns. Raises BudgetExceeded when too many judgements
        of this process have failed, ConfigError for a config that cannot be used.
        """
        # What is no list of messages goes on as it is, and costs its own row alone.
        prompts = [turns[:-1] if isinstance(turns, list) else turns for turns in messages]
        # ms-swift starts an event loop for each step, and other rewards share it.
        return await asyncio.to_thread(judge_reward_sync, prompts, completions, **columns)


orms["autoj"] = JudgeORM
