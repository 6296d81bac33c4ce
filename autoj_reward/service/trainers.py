"""Routes that trainers ask in their own form.

    POST /reward      {"prompt", "response", "label"?, "metadata"?} -> a number
    POST /get_reward  {"query": [...], "prompts": [...], "labels"?} -> OpenRLHF's answer
    POST /v1/responses  as NeMo Gym's genrm_compare asks: see `genrm.py`

A judgement that fails gets the fallback of the service's `reward.failures`, until the budget of the
run that asks is spent. The training runs that share a service have a budget each.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel, Field

from autoj_reward.config import RewardConfig
from autoj_reward.errors import BudgetExceeded, ConfigError, InputError
from autoj_reward.models import critiques_of
from autoj_reward.service import genrm
from autoj_reward.service.bodies import MAX_INPUTS, Body, Text, Turns
from autoj_reward.service.refusal import require_inputs
from autoj_reward.service.token import in_address
from autoj_reward.trainer.openrlhf import get_reward
from autoj_reward.trainer.prompts import mappings
from autoj_reward.trainer.reward import RewardModel
from autoj_reward.trainer.rows import numbers
from autoj_reward.trainer.shaping import Budgets, FailureBudget, budgets_of
from autoj_reward.types import Judgement

RUN_HEADER = "x-run"
RUNS = 256
"""Runs whose failures are remembered; those that asked longest ago are forgotten first."""
OVER_S = 60.0
"""A refused run that has not asked for so many seconds is over: who asks by its name is new."""


class Query(BaseModel):
    """The body of POST /get_reward. Its lists are as long as each other. labels: the
    references, for a judge that shows one."""

    query: list[Text] = Field(max_length=MAX_INPUTS)
    prompts: list[Text] = Field([], max_length=MAX_INPUTS)
    labels: list[Any] | None = None


class Said(Body):
    """The body of POST /reward.

    prompt: a text, with a chat template or without, or the messages of a conversation. response:
    the text to rate. label: the reference, for a judge that shows one and for functions.
    metadata: other context by name, as slime's samples have it.
    """

    prompt: Text | Turns
    response: Text
    label: Any = None
    metadata: dict[str, Any] | None = None


class RunBudget(FailureBudget):
    """A spent budget that refuses only calls with a failure: what is judged well is answered."""

    spent = False

    def count(self, judgements: Sequence[Judgement]) -> None:
        """BudgetExceeded if the run's budget is spent and one of these has failed."""
        try:
            super().count(judgements)
            self.spent = False
        except BudgetExceeded:
            self.spent = True
            if not all(judgement.ok for judgement in judgements):
                raise


class Runs:
    """The budgets of each run, by its name."""

    def __init__(self, config: RewardConfig, now: Callable[[], float] = time.monotonic) -> None:
        self._config, self._now = config, now
        self._runs: OrderedDict[str, tuple[dict[str, RunBudget], float]] = OrderedDict()

    def budgets(self, name: str) -> dict[str, RunBudget]:
        """The budgets of a run that asks now, by part."""
        found, asked = self._runs.pop(name, ({}, 0.0))
        spent = any(budget.spent for budget in found.values())
        if not found or (spent and self._now() - asked > OVER_S):
            found = budgets_of(self._config, RunBudget)
        self._runs[name] = found, self._now()
        if len(self._runs) > RUNS:
            self._runs.popitem(last=False)
        return found


def run_name(authorization: str, header: str = "") -> str:
    """The name that a caller gives its run: the header X-Run, or the user in its address
    (http://RUN:TOKEN@host). Empty for callers that give none: they share one budget."""
    return (header or in_address(authorization)[0])[:80]


Judged = Callable[[Iterable[tuple[Judgement, Sequence[str]]]], None]
"""Takes note of judgements, each with the responses it is of."""


def add_routes(app: FastAPI, model: RewardModel, judged: Judged = lambda found: None) -> None:
    """The routes on a service. 422 for a lone row where the service's config needs its group, 503
    for a row that has failed once the failure budget of its run is spent."""
    runs = Runs(model.config)
    inputs_each = sum(critiques_of(own.judge) for own in model.config.judged.values())

    def budgets(request: Request) -> Budgets:
        told = request.headers
        return runs.budgets(run_name(told.get("authorization", ""), told.get(RUN_HEADER, "")))

    @contextmanager
    def answering() -> Iterator[None]:
        try:
            yield
        except BudgetExceeded as error:
            raise HTTPException(503, str(error)) from error
        except (ConfigError, InputError) as error:
            raise HTTPException(422, str(error)) from error
        finally:
            judged((reward.judgement, (c.response,)) for c, reward in model.recent())

    @app.post("/get_reward")
    async def batch(body: Query, request: Request) -> dict[str, Any]:
        """Whole batches, single rows, and the empty ones that OpenRLHF sends to every address but
        the first."""
        if len(body.prompts) != len(body.query):
            raise HTTPException(
                422, f"{len(body.query)} query and {len(body.prompts)} prompts: one prompt a query"
            )
        if body.labels and len(body.labels) != len(body.query):
            raise HTTPException(
                422, f"{len(body.query)} query and {len(body.labels)} labels: one label a query"
            )
        require_inputs(len(body.query) * inputs_each, "query")
        with answering():
            return await get_reward(model, body.query, body.prompts, body.labels, budgets(request))

    @app.post("/reward")
    async def one(body: Said, request: Request) -> float:
        """The reward of one response."""
        row = {**(body.metadata or {}), "label": body.label}
        with answering():
            [number] = await numbers(
                model, [(mappings(body.prompt), body.response, row)], budgets(request)
            )
            return number

    @app.post("/v1/responses")
    async def pair(body: genrm.Asked, request: Request) -> dict[str, Any]:
        """Scores of two responses."""
        with answering():
            return await genrm.answer(model, body, budgets(request))
