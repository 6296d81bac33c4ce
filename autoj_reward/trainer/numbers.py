"""From rows as trainers have them to one number each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autoj_reward.trainer.failures import Budgets
from autoj_reward.trainer.reward import RewardModel
from autoj_reward.trainer.template import prompt_turns, without_end
from autoj_reward.trainer.text import Turn, candidate


async def numbers(
    model: RewardModel,
    rows: Sequence[tuple[Turn, str, Mapping[str, Any]]],
    budgets: Budgets | None = None,
) -> list[float]:
    """One number for each (prompt, response, row): a prompt is messages, or a text with a chat
    template or without; the row holds the context that the judge shows, `label` the reference.
    Failures get the configured fallback; raises BudgetExceeded once too many have
    failed, InputError for what is neither text nor messages."""
    candidates = [
        candidate(
            prompt_turns(prompt) if isinstance(prompt, str) else prompt,
            without_end(response),
            model.fields.read(row, "label"),
        )
        for prompt, response, row in rows
    ]
    return model.numbers(await model.rewards(candidates, budgets), candidates)
