"""NeMo Gym: a resources server whose `verify` asks the judge. In a folder of your own:

    # resources_servers/judge/app.py
    from autoj_reward.trainer.nemo_gym import JudgeResourcesServer

    if __name__ == "__main__":
        JudgeResourcesServer.run_webserver()

A failed judgement is the configured fallback in a masked row, which trainers leave out: Gym's own
JudgeError would make its reward 0.0, which NeMo RL counts in the group's mean all the same. Set
AUTOJ_REWARD to the YAML file of a reward config (a `RewardConfig`) that names a running service.
Gym's `genrm_compare` asks such a service itself: see `service/trainers.py`.
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
from autoj_reward.trainer.prompts import candidate, mappings, reply_text
from autoj_reward.trainer.rows import reward_model
from autoj_reward.trainer.stats import row_figures


class JudgeServerConfig(BaseResourcesServerConfig):
    REVERIFY_MODE = ReverifyMode.STATELESS


class JudgeVerifyRequest(BaseVerifyRequest):
    """What Gym posts: the row's own fields beside input and response."""

    model_config = ConfigDict(extra="allow")


class JudgeVerifyResponse(BaseVerifyResponse):
    """A verified row, with the judge's figures beside the reward."""

    model_config = ConfigDict(extra="allow")


class JudgeResourcesServer(SimpleResourcesServer):
    ray_enabled = False
    config: JudgeServerConfig

    async def verify(self, body: JudgeVerifyRequest) -> JudgeVerifyResponse:
        """The reward of what the assistant says last to the messages of the input. The row's own
        fields are the context that the judge shows, `expected_answer` the reference.

        Raises InputError for what is neither text nor messages, ConfigError where the config needs
        the other responses of a query, and BudgetExceeded when too many judgements of this process
        have failed: Gym answers each with 500.
        """
        model = reward_model()
        asked = _said(body.responses_create_params.input)
        known = model.fields.read(_about(body), "expected_answer")
        candidates = [candidate(asked, reply_text(_said(body.response.output)), known)]
        rewards = await model.rewards(candidates)
        [number] = model.numbers(rewards, candidates)
        [found] = rewards
        told = row_figures(found, model.parts) | _mask(found)
        return JudgeVerifyResponse(**body.model_dump() | told | {"reward": number})


def _about(body: JudgeVerifyRequest) -> dict[str, Any]:
    """The row's own fields, and those that older rows keep under `verifier_metadata`."""
    own = body.model_extra or {}
    metadata = own.get("verifier_metadata")
    return {**(metadata if isinstance(metadata, dict) else {}), **own}


def _mask(found: Reward) -> dict[str, Any]:
    """What says that a reward is no measurement, in the words of Gym; nothing if it is one."""
    if found.value is not None:
        return {}
    return {
        "mask_sample": True,
        "failure_kind": "judge_failed",
        "failure_reason": found.judgement.why,
    }


def _said(items: Any) -> Any:
    """The messages among the items of a Responses API input or output; a text as it is."""
    found = mappings(items)
    return found if isinstance(found, str) else [item for item in found if "role" in item]
