"""Routes that trainers ask in their own form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field

from autoj_reward.edge.bodies import MAX_CANDIDATES, Text
from autoj_reward.errors import BudgetExceeded, ConfigError
from autoj_reward.trainer.openrlhf import get_reward
from autoj_reward.trainer.reward import RewardModel
from autoj_reward.types import Judgement


class Query(BaseModel):
    """The body of POST /get_reward. `query` and `prompts` are as long as each other; labels are
    accepted and not used."""

    query: list[Text] = Field(max_length=MAX_CANDIDATES)
    prompts: list[Text] = Field([], max_length=MAX_CANDIDATES)
    labels: list[Any] | None = None


Judged = Callable[[Iterable[tuple[Judgement, Sequence[str]]]], None]
"""Takes note of judgements, each with the responses it is of."""


def add_route(app: FastAPI, model: RewardModel, judged: Judged = lambda found: None) -> None:
    """POST /get_reward on a service: whole batches, single rows, and the empty ones that newer
    versions send to every address but the first. 422 for a lone row where the service's config
    needs its group, 503 once the failure budget is spent."""

    @app.post("/get_reward")
    async def answer(body: Query) -> dict[str, Any]:
        if len(body.prompts) != len(body.query):
            raise HTTPException(
                422, f"{len(body.query)} query and {len(body.prompts)} prompts: one prompt a query"
            )
        try:
            return await get_reward(model, body.query, body.prompts)
        except BudgetExceeded as error:
            raise HTTPException(503, str(error)) from error
        except ConfigError as error:
            raise HTTPException(422, str(error)) from error
        finally:
            judged((reward.judgement, (c.response,)) for c, reward in model.recent())
