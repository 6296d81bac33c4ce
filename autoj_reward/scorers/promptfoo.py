"""promptfoo: a Python assertion that asks the judge about an output.

    assert:
      - type: python
        value: file:///PATH/autoj_reward/scorers/promptfoo.py
        threshold: 0.6

Set AUTOJ_REWARD to the YAML file of a reward config (a `RewardConfig`). promptfoo starts Python for
each output, so the config names a running service or an endpoint. promptfoo has no score for an
abstention: a judgement that fails raises, and promptfoo reports an error with its reason.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from autoj_reward.errors import ConfigError, EngineError
from autoj_reward.trainer.prompts import Turn, candidate
from autoj_reward.trainer.rows import reward_model
from autoj_reward.trainer.shaping import refuse_groups


def get_assert(output: str, context: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of promptfoo's assertion: `pass`, `score` and `reason`.

    The score is the reward before shaping, mapped to 0 to 1 by the judge's scale. It passes, and
    promptfoo fails it below the assertion's own `threshold`. The query is the prompt that the
    provider got, and the judge shows the test's variables as context. Raises EngineError for a
    judgement that abstains. Raises ConfigError for a judge that would be started, and for a reward
    that needs several responses to a prompt.
    """
    model = reward_model()
    if any(judge.on_replicas for judge in model.config.started):
        raise ConfigError(
            "promptfoo starts Python for each output, and this judge would start with it: run "
            "`autoj serve`, and name its address in the reward config's service"
        )
    refuse_groups(model.config, "promptfoo asserts on one output at a time")
    row_context = model.fields.read(context.get("vars") or {})
    with model:
        [reward] = model.rewards_now(
            [candidate(chat_prompt(context["prompt"]), output, row_context)]
        )
    if reward.raw is None:
        raise EngineError(f"the judge abstains: {reward.judgement.why}")
    score = model.parts.share(reward.raw)
    return {"pass": True, "score": score, "reason": reward.judgement.critique}


def chat_prompt(prompt: str) -> Turn:
    """Return the messages in a prompt that is the JSON text of a chat; another prompt as it is."""
    with suppress(ValueError, RecursionError):  # a text that is no JSON, or nested too deep
        messages = json.loads(prompt)
        if (
            isinstance(messages, list)
            and messages
            and all(_is_message(message) for message in messages)
        ):
            return messages
    return prompt


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and "role" in value
