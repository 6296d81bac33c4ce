"""NeMo Gym: a resources server whose `verify` asks the judge. In a folder of your own:

    # resources_servers/judge/app.py
    from autoj_reward.trainer.nemo_gym import JudgeResourcesServer

    if __name__ == "__main__":
        JudgeResourcesServer.run_webserver()

A failed judgement becomes the configured fallback in a masked row, which trainers leave out. Gym's
own JudgeError would set its reward to 0.0, and NeMo RL counts that in the group's mean. Set
AUTOJ_REWARD to the YAML file of a reward config (a `RewardConfig`) that names a running service.
Gym's `genrm_compare` calls such a service directly: see `service/trainers.py`.
"""

from __future__ import annotations

from typing import Any

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    ReverifyMode,
    SimpleResourcesServer,
)
from pydantic import ConfigDict

from autoj_reward.trainer.parts import Reward
from autoj_reward.trainer.prompts import candidate, mappings
from autoj_reward.trainer.rows import reward_model
from autoj_reward.trainer.stats import row_figures


class JudgeServerConfig(BaseResourcesServerConfig):
    """Config of the resources server."""

    REVERIFY_MODE = ReverifyMode.STATELESS


class JudgeVerifyRequest(BaseVerifyRequest):
    """Request of Gym's `verify`: input, response, and the row's own fields."""

    model_config = ConfigDict(extra="allow")


class JudgeVerifyResponse(BaseVerifyResponse):
    """Verified row, with the judge's metrics and the reward."""

    model_config = ConfigDict(extra="allow")


class JudgeResourcesServer(SimpleResourcesServer):
    """Resources server that rewards with the judge."""

    ray_enabled = False
    config: JudgeServerConfig

    async def verify(self, body: JudgeVerifyRequest) -> JudgeVerifyResponse:
        """Return the row with the reward of the assistant's last message, or of what `judge.shows`
        says.

        The judge shows the row's own fields as context, with `expected_answer` as the reference.
        Raises BudgetExceeded when too many judgements of this process have failed. Raises
        ConfigError if the config needs the other responses of a query. Gym answers each of them
        with 500.
        """
        model = reward_model()
        prompt = _read_messages(body.responses_create_params.input)
        context = model.fields.try_read(_read_row(body), "expected_answer")
        candidates = [candidate(prompt, _read_turns(body.response.output), context)]
        rewards = await model.rewards(candidates)
        [number] = model.numbers(rewards, candidates)
        [reward] = rewards
        metrics = row_figures(reward, model.parts) | _mask_failure(reward)
        return JudgeVerifyResponse(**body.model_dump() | metrics | {"reward": number})


def _read_row(body: JudgeVerifyRequest) -> dict[str, Any]:
    """Return the row's own fields, and those that older rows hold in `verifier_metadata`."""
    extra = body.model_extra or {}
    metadata = extra.get("verifier_metadata")
    return {**(metadata if isinstance(metadata, dict) else {}), **extra}


def _mask_failure(reward: Reward) -> dict[str, Any]:
    """Return Gym's fields that mask a row whose judgement failed; {} for a judgement that is ok."""
    if reward.value is not None:
        return {}
    return {
        "mask_sample": True,
        "failure_kind": "judge_failed",
        "failure_reason": reward.judgement.why,
    }


def _read_messages(items: Any) -> Any:
    """Return the messages of a Responses API input or output; a text is returned unchanged."""
    messages = mappings(items)
    return messages if isinstance(messages, str) else [item for item in messages if "role" in item]


def _read_turns(items: Any) -> list[Any]:
    """Return the items of a Responses API output as chat messages. Other items are left out."""
    turns = []
    for item in mappings(items):
        if item.get("type") == "function_call":
            turns.append({"role": "assistant", "tool_calls": [item]})
        elif item.get("type") == "function_call_output":
            turns.append({"role": "tool", "content": item.get("output")})
        elif "role" in item:
            turns.append(item)
    return turns
