"""Two responses as NeMo Gym's `genrm_compare` asks about them: a judge in the place of its model.

Gym posts the Responses API: `input` is the conversation, and `metadata` holds response_1 and
response_2; a GenRM's chat template has them as the last messages, under roles of these names, and
both are read. The answer's text is {"score_1": 1..5, "score_2": 1..5, "ranking": 1..6}.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any
from uuid import uuid4

from pydantic import BaseModel

from autoj_reward.client.client import RewardClient
from autoj_reward.conversation import content_text
from autoj_reward.errors import InputError
from autoj_reward.service.bodies import Text, Turns
from autoj_reward.trainer.prompts import candidate, mappings
from autoj_reward.trainer.reward import RewardModel
from autoj_reward.trainer.shaping import Budgets
from autoj_reward.types import Candidate, Contest, Verdict

ROLES = ("response_1", "response_2")
SCORES = (1.0, 5.0)
"""The worst and the best score."""
UNDECIDED = 3.5
"""The middle of the ranking, which is 1 where the first is much better, and 6 where the second."""
RANKED = {Verdict.FIRST: 3.0, Verdict.SECOND: 4.0}
"""Of equal scores, whom the judge's comparison calls better."""


class Asked(BaseModel):
    """The body of POST /v1/responses. What samples a model, such as `temperature`, is accepted and
    not used: the service's own judge decides."""

    input: Text | Turns
    metadata: dict[str, Text] | None = None


async def answer(model: RewardModel, asked: Asked, budgets: Budgets | None) -> dict[str, Any]:
    """A response object of the Responses API. A judgement that fails has the middle of the scale;
    raises BudgetExceeded, and InputError for a body without two responses or with a principle."""
    candidates = _read(asked)
    rewards = await model.rewards(candidates, budgets)
    middle = model.parts.middle
    shares = [model.parts.share(middle if r.raw is None else r.raw) for r in rewards]
    low, high = SCORES
    scores = [low + (high - low) * share for share in shares]
    ranking = UNDECIDED - 2.5 * (shares[0] - shares[1])
    if shares[0] == shares[1]:
        ranking = await _ranked(model, *candidates)
    return _response({"score_1": scores[0], "score_2": scores[1], "ranking": ranking})


def _read(asked: Asked) -> list[Candidate]:
    """The two responses to what was asked."""
    told = asked.metadata or {}
    if told.get("principle"):
        raise InputError("this judge has its own criteria: set use_principle to false")
    turns = [] if isinstance(asked.input, str) else mappings(asked.input)
    said = {t["role"]: content_text(t) for t in turns if t["role"] in ROLES} | told
    if any(role not in said for role in ROLES):
        raise InputError("two responses are compared: metadata.response_1 and metadata.response_2")
    own = [turn for turn in turns if turn["role"] not in ROLES]
    prompt = asked.input if isinstance(asked.input, str) else own
    return [candidate(prompt, said[role]) for role in ROLES]


async def _ranked(model: RewardModel, one: Candidate, other: Candidate) -> float:
    async def compared(client: RewardClient) -> float:
        if not client.compares:
            return UNDECIDED
        contest = Contest(one.query, one.response, other.response, one.context)
        [found] = await client.compare([contest])
        return RANKED.get(found.verdict, UNDECIDED)

    return await asyncio.wrap_future(model.run(compared))


def _response(scores: dict[str, float]) -> dict[str, Any]:
    text = {"type": "output_text", "text": json.dumps(scores), "annotations": []}
    message = {"type": "message", "role": "assistant", "status": "completed", "content": [text]}
    return {
        "id": f"resp_{uuid4().hex}",
        "object": "response",
        "created_at": time.time(),
        "model": "autoj-reward",
        "status": "completed",
        "output": [message | {"id": f"msg_{uuid4().hex}"}],
        "parallel_tool_calls": False,
        "tool_choice": "none",
        "tools": [],
    }
