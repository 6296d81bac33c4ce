"""slime: `--custom-rm-path autoj_reward.trainer.slime.custom_rm`, alone or with `--group-rm`.

Set AUTOJ_REWARD to the YAML file of a reward config (a `RewardConfig`; name a running service in
it, since eval and rollout may be several processes). The other way is a running service's
`POST /reward`: `--rm-type remote_rm --rm-url http://RUN:TOKEN@127.0.0.1:8300/reward`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autoj_reward.trainer.environment import reward_model
from autoj_reward.trainer.failures import Budgets
from autoj_reward.trainer.reward import RewardModel
from autoj_reward.trainer.template import prompt_text, without_end
from autoj_reward.trainer.text import Turn, query_text
from autoj_reward.types import Candidate


async def custom_rm(args: Any, samples: Any, **_: Any) -> float | list[float]:
    """The reward of one of slime's samples, or with --group-rm those of a list, in order.

    Raises BudgetExceeded when too many judgements have failed, and ConfigError for a lone sample
    where the config needs its group: slime ends the run with either. Failures below the budget get
    the configured fallback.
    """
    asked = samples if isinstance(samples, list) else [samples]
    found = await numbers(reward_model(), [(s.prompt, s.response) for s in asked])
    return found if isinstance(samples, list) else found[0]


async def numbers(
    model: RewardModel, rows: Sequence[tuple[Turn, str]], budgets: Budgets | None = None
) -> list[float]:
    """One number for each (prompt, response): a prompt is messages, or a text with a chat template
    or without."""
    candidates = [
        Candidate(
            prompt_text(prompt) if isinstance(prompt, str) else query_text(prompt),
            without_end(response),
        )
        for prompt, response in rows
    ]
    return model.numbers(await model.rewards(candidates, budgets), candidates)
