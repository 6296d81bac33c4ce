"""NeMo Gym: a resources server whose `verify` asks the judge. In a folder of your own:

    # resources_servers/judge/app.py
    from autoj_reward.trainer.nemo_gym import JudgeResourcesServer

    if __name__ == "__main__":
        JudgeResourcesServer.run_webserver()

A failed judgement is the configured fallback in a masked row, which trainers leave out: Gym's own
JudgeError would make its reward 0.0, which NeMo RL counts in the group's mean all the same. Set
AUTOJ_REWARD to the YAML file of a reward config (a `RewardConfig`) that names a running service.
Gym's `genrm_compare` asks such a service itself: see `edge/genrm.py`.
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

from autoj_reward.trainer.environment import reward_model
from autoj_reward.trainer.reward import Reward
from autoj_reward.trainer.stats import row_figures
from autoj_reward.trainer.text import mappings, query_text, reply_text
from autoj_reward.types import Candidate


class JudgeServerConfig(BaseResourcesServerConfig):
    REVERIFY_MODE = ReverifyMode.STATELESS


class JudgeVerifyResponse(BaseVerifyResponse):
    """A verified row, with the judge's figures beside the reward."""

    model_config = ConfigDict(extra="allow")


class JudgeResourcesServer(SimpleResourcesServer):
    ray_enabled = False
    config: JudgeServerConfig

    async def verify(self, body: BaseVerifyRequest) -> JudgeVerifyResponse:
        """The reward of what the assistant says last to the messages of the input.

        Raises InputError for what is neither text nor messages, ConfigError where the config needs
        the other responses of a query, and BudgetExceeded when too many judgements of this process
        have failed: Gym answers each with 500.
        """
        model = reward_model()
        asked = _said(body.responses_create_params.input)
        candidate = Candidate(query_text(asked), reply_text(_said(body.response.output)))
        rewards = await model.rewards([candidate])
        [number] = model.numbers(rewards, [candidate])
        [found] = rewards
        told = row_figures(found, model.parts) | _mask(found)
        return JudgeVerifyResponse(**body.model_dump(), **told, reward=number)


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
