"""LLaMA-Factory: the reward API of its PPO trainer, which is a route of a running service.

    reward_model_type: api
    reward_model: http://RUN:TOKEN@127.0.0.1:8300/v1/score/evaluation

The trainer sends prompt and response of a row as one decoded text with special tokens, without
saying where the response begins. A chat template's header of the assistant's turn tells, if the
text has one. A policy may spell such a header itself, so a text with several is a failed judgement
and not a guess; prompts with earlier turns of the assistant cannot be trained on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from autoj_reward.trainer.parts import RewardSource
from autoj_reward.trainer.prompts import (
    HEADED,
    candidate,
    prompt_turns,
    refuse_needed,
    strip_end_token,
)
from autoj_reward.trainer.shaping import Budgets
from autoj_reward.types import Candidate

GENERATED = ("assistant", "model")
"""Names of the policy's role in chat templates."""
INSTRUCTION_END = re.compile(r"\[/INST\]")
"""End of the user's turn in the templates of Llama 2 and Mistral."""


async def get_scores(
    model: RewardSource, texts: Sequence[str], budgets: Budgets | None = None
) -> list[float]:
    """Return one number for each text, in order. Failures get the configured fallback.

    budgets: failure budgets of the calling run. Raises BudgetExceeded when too many judgements have
    failed. Raises ConfigError for a judge that needs other columns than prompt and response.
    """
    refuse_needed(model.fields, "LLaMA-Factory sends prompts and responses alone")
    candidates = [split_text(text) for text in texts]
    return model.numbers(await model.rewards(candidates, budgets), candidates)


def split_text(text: str) -> Candidate:
    """Return the candidate in a decoded text: what the user says, and the response after it.

    It is unusable if the text does not have exactly one header of the assistant's turn in a known
    chat template.
    """
    starts = _find_response_starts(text)
    if len(starts) == 1:
        prompt, response = text[: starts[0]], text[starts[0] :]
        return candidate(prompt_turns(prompt), strip_end_token(response))
    reason = (
        f"the text {text[:40]!r} opens {len(starts)} turns of the assistant in a known chat "
        "template (ChatML, Llama 3, Gemma, [INST]), so its response is unknown: train on prompts "
        "without earlier answers, with such a template"
    )
    return replace(candidate(text, ""), unusable=reason)


def _find_response_starts(text: str) -> list[int]:
    """Return the index after each header of the assistant's turn."""
    for header, _ in HEADED:
        if header.search(text):
            return [m.end() for m in header.finditer(text) if m[1] in GENERATED]
    return [match.end() for match in INSTRUCTION_END.finditer(text)]
