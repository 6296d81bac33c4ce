"""The judge as a function, for trainers that load a reward function by its name.

    trl: {reward_funcs: [autoj_reward.reward.judge_reward]}   # axolotl

AUTOJ_REWARD names the YAML file of a reward config (a `RewardConfig`). Each process opens one judge
at its first call, so name a running service or an endpoint in it. Both functions can be pickled and
called in forked and spawned processes, from any thread and event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autoj_reward.trainer.prompts import Turn, prompt_turns, strip_end_token
from autoj_reward.trainer.rows import reward_model
from autoj_reward.trainer.trl import GRPOReward, LogExtra, LogMetric


async def judge_reward(
    prompts: Sequence[Turn],
    completions: Sequence[Turn],
    log_metric: LogMetric | None = None,
    log_extra: LogExtra | None = None,
    **columns: Any,
) -> list[float | None]:
    """Return the rewards in order, for trainers with async functions (TRL 0.27 and later).

    A judgement that abstains is None, which TRL leaves out of its group since 1.6. A prompt or
    completion is text, with or without a chat template, or messages. The judge's context fields are
    read from columns. Raises BudgetExceeded when too many judgements of this process have failed,
    ConfigError for a config that cannot be used.
    """
    turns = _strip_templates(prompts, completions)
    return await GRPOReward(reward_model()).judge(*turns, log_metric, log_extra, **columns)


def judge_reward_sync(
    prompts: Sequence[Turn],
    completions: Sequence[Turn],
    log_metric: LogMetric | None = None,
    log_extra: LogExtra | None = None,
    **columns: Any,
) -> list[float]:
    """Return the rewards in order, for trainers that need a number for each completion.

    A judgement that abstains gets the configured fallback. Arguments and errors are those of
    `judge_reward`.
    """
    turns = _strip_templates(prompts, completions)
    return GRPOReward(reward_model()).judge_sync(*turns, log_metric, log_extra, **columns)


def _strip_templates(
    prompts: Sequence[Turn], completions: Sequence[Turn]
) -> tuple[list[Turn], list[Turn]]:
    """Return prompts and completions with decoded texts read as messages and responses."""
    return (
        [prompt_turns(prompt) if isinstance(prompt, str) else prompt for prompt in prompts],
        [
            strip_end_token(completion) if isinstance(completion, str) else completion
            for completion in completions
        ],
    )
