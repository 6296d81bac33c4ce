"""verifiers' `vf.Rubric` (in verifiers until 0.2, in its `legacy` until 0.3): reward functions.

    vf.Rubric([rubric_reward])     one rollout a call
    vf.Rubric([rubric_rewards])    a group a call, as `whiten: group` and `fallback: group` need

A rubric makes 0.0 of every exception. So a failed judgement is the configured fallback, and what is
raised stands in the rollout's `error` as well, by which trainers leave it out.

Set AUTOJ_REWARD as in `verifiers.py`. The response is what the assistant says last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autoj_reward.errors import AutojError
from autoj_reward.trainer.environment import reward_model
from autoj_reward.trainer.numbers import numbers
from autoj_reward.trainer.text import mappings, reply_text


async def rubric_reward(prompt: Any, completion: Any, state: Any) -> float:
    """The reward of one rollout."""
    [found] = await rubric_rewards([prompt], [completion], [state])
    return found


async def rubric_rewards(
    prompts: Sequence[Any], completions: Sequence[Any], states: Sequence[Any]
) -> list[float]:
    """The rewards of a group's rollouts, in order. Raises, and puts into each state: BudgetExceeded
    when too many judgements of this process have failed, ConfigError for a lone rollout where the
    config needs its group, InputError for what is neither text nor messages."""
    try:
        rows = [
            (mappings(prompt), reply_text(mappings(completion)), _about(state))
            for prompt, completion, state in zip(prompts, completions, states, strict=True)
        ]
        return await numbers(reward_model(), rows)
    except AutojError as error:
        for state in states:
            state["error"] = error
        raise


def _about(state: Any) -> dict[str, Any]:
    """What the task tells of a rollout: its `info`, and its answer as the reference."""
    info = state.get("info")
    return {**(info if isinstance(info, dict) else {}), "label": state.get("answer")}
