"""From rows as trainers have them to one number each."""

from __future__ import annotations

from collections.abc import Sequence

from autoj_reward.trainer.failures import Budgets
from autoj_reward.trainer.reward import RewardModel
from autoj_reward.trainer.template import prompt_text, without_end
from autoj_reward.trainer.text import Turn, query_text
from autoj_reward.types import Candidate


async def numbers(
    model: RewardModel, rows: Sequence[tuple[Turn, str]], budgets: Budgets | None = None
) -> list[float]:
    """One number for each (prompt, response): a prompt is messages, or a text with a chat template
    or without. Failures get the configured fallback; raises BudgetExceeded once too many have
    failed, InputError for what is neither text nor messages."""
    candidates = [
        Candidate(
            prompt_text(prompt) if isinstance(prompt, str) else query_text(prompt),
            without_end(response),
        )
        for prompt, response in rows
    ]
    return model.numbers(await model.rewards(candidates, budgets), candidates)
