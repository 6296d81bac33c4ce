"""Routes that trainers ask in their own form.

    POST /reward      {"prompt", "response", "label"?, "metadata"?} -> a number
    POST /get_reward  {"query": [...], "prompts": [...], "labels"?} -> OpenRLHF's answer
    POST /v1/responses  two responses, as NeMo Gym's genrm_compare asks about them

A judgement that fails gets the fallback of the service's `reward.failures`, until the budget of the
run that asks is spent. The training runs that share a service have a budget each.

Gym takes the judge in the place of its model, and posts the Responses API: `input` is the
conversation, and `metadata` holds response_1 and response_2; a GenRM's chat template has them as
the last messages, under roles of these names, and both are read. The answer's text is
{"score_1": 1..5, "score_2": 1..5, "ranking": 1..6}.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel, Field

from autoj_reward.client.client import RewardClient
from autoj_reward.config import RewardConfig
from autoj_reward.conversation import content_text
from autoj_reward.errors import BudgetExceeded, ConfigError, InputError
from autoj_reward.service.bodies import MAX_INPUTS, Body, ChatMessages, Text, require_inputs
from autoj_reward.service.gateway import in_address
from autoj_reward.trainer.openrlhf import get_reward
from autoj_reward.trainer.prompts import candidate, mappings
from autoj_reward.trainer.reward import RewardModel
from autoj_reward.trainer.rows import row_rewards
from autoj_reward.trainer.shaping import Budgets, FailureBudget, budgets_of
from autoj_reward.types import Candidate, Judgement, Pair, Verdict

RUN_HEADER = "x-run"
RUNS = 256
"""Runs whose failures are remembered; those that asked longest ago are forgotten first."""
OVER_S = 60.0
"""A refused run that has not asked for so many seconds is over: who asks by its name is new."""
ROLES = ("response_1", "response_2")
SCORE_RANGE = (1.0, 5.0)
"""The worst and the best score."""
UNDECIDED = 3.5
"""The middle of the ranking, which is 1 where the first is much better, and 6 where the second."""
RANKED = {Verdict.FIRST: 3.0, Verdict.SECOND: 4.0}
"""Of equal scores, whom the judge's comparison calls better."""


class GetRewardBody(BaseModel):
    """The body of POST /get_reward. Its lists are as long as each other. labels: the
    references, for a judge that shows one."""

    query: list[Text] = Field(max_length=MAX_INPUTS)
    prompts: list[Text] = Field([], max_length=MAX_INPUTS)
    labels: list[Any] | None = None


class RewardBody(Body):
    """The body of POST /reward.

    prompt: a text, with a chat template or without, or the messages of a conversation. response:
    the text to rate. label: the reference, for a judge that shows one and for functions.
    metadata: other context by name, as slime's samples have it.
    """

    prompt: Text | ChatMessages
    response: Text
    label: Any = None
    metadata: dict[str, Any] | None = None


class ResponsesBody(BaseModel):
    """The body of POST /v1/responses. What samples a model, such as `temperature`, is accepted and
    not used: the service's own judge decides."""

    input: Text | ChatMessages
    metadata: dict[str, Text] | None = None


class RunBudget(FailureBudget):
    """A failure budget that, once spent, refuses only calls in which a judgement failed."""

    spent = False

    def count(self, judgements: Sequence[Judgement]) -> None:
        """Count judgements. Raises BudgetExceeded if the run's budget is spent and one of them
        failed."""
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


JudgementObserver = Callable[[Iterable[tuple[Judgement, Sequence[str]]]], None]
"""Takes note of judgements, each with the responses it is of."""


def add_routes(
    app: FastAPI, model: RewardModel, judged: JudgementObserver = lambda found: None
) -> None:
    """The routes on a service. 422 for a lone row where the service's config needs its group, 503
    for a row that has failed once the failure budget of its run is spent."""
    runs = Runs(model.config)
    inputs_each = sum(judge.critiques for judge in model.judges.values())

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
    async def batch(body: GetRewardBody, request: Request) -> dict[str, Any]:
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
    async def one(body: RewardBody, request: Request) -> float:
        """The reward of one response."""
        row = {**(body.metadata or {}), "label": body.label}
        with answering():
            [number] = await row_rewards(
                model, [(mappings(body.prompt), body.response, row)], budgets(request)
            )
            return number

    @app.post("/v1/responses")
    async def pair(body: ResponsesBody, request: Request) -> dict[str, Any]:
        """Scores of two responses."""
        with answering():
            return await _compared(model, body, budgets(request))


async def _compared(
    model: RewardModel, asked: ResponsesBody, budgets: Budgets | None
) -> dict[str, Any]:
    """A response object of the Responses API. A judgement that fails has the middle of the scale;
    raises BudgetExceeded, and InputError for a body without two responses or with a principle."""
    candidates = _two_candidates(asked)
    rewards = await model.rewards(candidates, budgets)
    middle = model.parts.middle
    shares = [model.parts.share(middle if r.raw is None else r.raw) for r in rewards]
    low, high = SCORE_RANGE
    scores = [low + (high - low) * share for share in shares]
    ranking = UNDECIDED - 2.5 * (shares[0] - shares[1])
    if shares[0] == shares[1]:
        ranking = await _ranking(model, *candidates)
    return _response_object({"score_1": scores[0], "score_2": scores[1], "ranking": ranking})


def _two_candidates(asked: ResponsesBody) -> list[Candidate]:
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


async def _ranking(model: RewardModel, one: Candidate, other: Candidate) -> float:
    async def compared(client: RewardClient) -> float:
        if not client.compares:
            return UNDECIDED
        [found] = await client.compare([Pair.of(one, other)])
        return RANKED.get(found.verdict, UNDECIDED)

    return await asyncio.wrap_future(model.run(compared))


def _response_object(scores: dict[str, float]) -> dict[str, Any]:
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
