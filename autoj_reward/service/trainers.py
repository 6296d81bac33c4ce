"""Routes for trainers, in the request forms of their frameworks.

    POST /reward        {"prompt", "response", "label"?, "metadata"?} -> a number
    POST /get_reward    {"query": [...], "prompts": [...], "labels"?} -> OpenRLHF's answer
    POST /v1/score/evaluation  {"messages": [...]} -> {"scores": [...]}, for LLaMA-Factory
    POST /v1/responses  two responses to compare, from NeMo Gym's genrm_compare

A failed judgement gets the fallback of the service's `reward.failures` until the run's failure
budget is spent. Each training run that uses the service has its own budget.

NeMo Gym uses the judge in place of its model and sends requests of the Responses API. `input` is
the conversation, and `metadata` holds response_1 and response_2. Requests for a GenRM's chat
template hold the responses as the last messages, with these names as roles; both forms are read.
The answer's text is {"score_1": 1..5, "score_2": 1..5, "ranking": 1..6}.

With relative rewards all comparisons of a prompt are answered from one judgement of its responses.
genrm_compare sends them at once, and does not say how many they are. A circle of comparisons shows
when it is closed, but all pairs of some responses look complete after the first. So a prompt is
complete when no comparison of it has come for QUIET_S.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import uuid4

from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel, Field

from autoj_reward.client.client import JudgeClient
from autoj_reward.config import AUDIT, RewardConfig
from autoj_reward.conversation import Response
from autoj_reward.errors import BudgetExceeded, ConfigError, InputError
from autoj_reward.service.bodies import (
    DESCRIBED,
    MAX_INPUTS,
    MAX_RESPONSES,
    Body,
    ChatMessages,
    Text,
    require_inputs,
)
from autoj_reward.service.gateway import run_name
from autoj_reward.trainer.llamafactory import get_scores
from autoj_reward.trainer.openrlhf import get_reward
from autoj_reward.trainer.parts import Reward, RewardSource
from autoj_reward.trainer.prompts import Turn, candidate, mappings
from autoj_reward.trainer.rows import row_rewards
from autoj_reward.trainer.shaping import Budgets, FailureBudget, make_budgets
from autoj_reward.types import Candidate, GroupKey, Judgement, Pair, Verdict, group_key

RUNS = 256
"""Limit on runs whose failures are remembered. The runs that called longest ago are forgotten
first."""
OVER_S = 60.0
"""Seconds without a call after which a run with a spent budget is over. The next call with its name
starts a new run."""
ROLES = ("response_1", "response_2")
"""Roles of the two responses, and their names in `metadata`."""
PRINCIPLE = "principle"
"""Name of the criteria in `metadata`, and the field of a judge's format that shows them."""
SCORE_RANGE = (1.0, 5.0)
"""Lowest and highest score."""
UNDECIDED = 3.5
"""Middle of the ranking. 1 means that the first response is much better, 6 that the second is."""
RANKED = {Verdict.FIRST: 3.0, Verdict.SECOND: 4.0}
"""Ranking of two responses with equal scores, by the verdict of the judge's comparison."""
QUIET_S = 1.0
"""Seconds without a further comparison of a prompt after which its responses are judged
together."""


class GetRewardBody(BaseModel):
    """Body of POST /get_reward. Its lists have the same length."""

    model_config = DESCRIBED

    query: list[Text] = Field(max_length=MAX_INPUTS)
    """Prompt and response of each row as one decoded text."""
    prompts: list[Text] = Field([], max_length=MAX_INPUTS)
    """Prompt of each row."""
    labels: list[Any] | None = None
    """Reference answer of each row, for a judge that shows one. With `rubric` in the config a label
    may be a list of items or an object with `rubric`, also as JSON text."""


class EvaluationBody(BaseModel):
    """Body of POST /v1/score/evaluation. Its `model` is accepted and not used."""

    model_config = DESCRIBED

    messages: list[Text] = Field(max_length=MAX_INPUTS)
    """Prompt and response of each row as one decoded text, with the special tokens of a chat
    template."""


class RewardBody(Body):
    """Body of POST /reward."""

    prompt: Text | ChatMessages
    """Text, with or without a chat template, or the messages of a conversation."""
    response: Text
    """The response to rate."""
    label: Any = None
    """Reference answer, for a judge that shows one and for functions."""
    metadata: dict[str, Any] | None = None
    """Other context by name, as slime's samples hold it."""


class ResponsesBody(BaseModel):
    """Body of POST /v1/responses.

    Sampling parameters such as `temperature` are accepted and not used: the service's own config
    applies.
    """

    model_config = DESCRIBED

    input: Text | ChatMessages
    """Text, or the messages of the conversation; the last two may have the roles `response_1` and
    `response_2`."""
    metadata: dict[str, Text] | None = None
    """The responses under `response_1` and `response_2`."""


class RunBudget(FailureBudget):
    """Failure budget of a run. Once spent, it refuses only calls in which a judgement failed."""

    spent = False
    """Whether the budget was spent at the last count."""

    def count(self, judgements: Sequence[Judgement]) -> None:
        """Count judgements.

        Raises BudgetExceeded if the run's budget is spent and one of these judgements failed.
        """
        try:
            super().count(judgements)
            self.spent = False
        except BudgetExceeded:
            self.spent = True
            if not all(judgement.ok for judgement in judgements):
                raise


class Runs:
    """Failure budgets of the runs that use a service, by the run's name."""

    def __init__(self, config: RewardConfig, now: Callable[[], float] = time.monotonic) -> None:
        self._config, self._now = config, now
        self._runs: OrderedDict[str, tuple[dict[str, RunBudget], float]] = OrderedDict()

    def budgets(self, name: str) -> dict[str, RunBudget]:
        """Return the budgets of a run that calls now, by the name of the reward part."""
        budgets, last_call_s = self._runs.pop(name, ({}, 0.0))
        is_spent = any(budget.spent for budget in budgets.values())
        if not budgets or (is_spent and self._now() - last_call_s > OVER_S):
            budgets = make_budgets(self._config, RunBudget)
        self._runs[name] = budgets, self._now()
        if len(self._runs) > RUNS:
            self._runs.popitem(last=False)
        return budgets


@dataclass(slots=True, eq=False)
class _Prompt:
    """A prompt whose responses are being gathered from comparisons."""

    candidates: dict[Response, Candidate] = field(default_factory=dict)
    """Candidates by their response."""
    timer: asyncio.TimerHandle | None = None
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[dict[Response, Reward]] | None = None
    """The judging, once the prompt is closed."""


class PromptGroups:
    """Gathers the responses of each prompt from its comparisons, and judges them once together."""

    def __init__(self, model: RewardSource) -> None:
        self._model = model
        self._open: dict[tuple[str, GroupKey], _Prompt] = {}

    async def rewards(
        self, pair: Sequence[Candidate], run: str, budgets: Budgets | None
    ) -> list[Reward]:
        """Return the rewards of two responses among all that the prompt's comparisons show.

        run: name of the run; the prompts of runs do not mix. Raises what `RewardSource.rewards`
        raises.
        """
        name = run, group_key(pair[0])
        prompt = self._open.setdefault(name, _Prompt())
        prompt.candidates |= {candidate.response: candidate for candidate in pair}
        if prompt.timer is not None:
            prompt.timer.cancel()
        quiet_s = QUIET_S if len(prompt.candidates) < MAX_RESPONSES else 0.0
        close = partial(self._close, name, budgets)
        prompt.timer = asyncio.get_running_loop().call_later(quiet_s, close)
        await prompt.closed.wait()
        assert prompt.task is not None
        rewards = await asyncio.shield(prompt.task)
        return [rewards[candidate.response] for candidate in pair]

    def _close(self, name: tuple[str, GroupKey], budgets: Budgets | None) -> None:
        prompt = self._open.pop(name)
        prompt.task = asyncio.create_task(self._judge(list(prompt.candidates.values()), budgets))
        prompt.closed.set()

    async def _judge(
        self, candidates: list[Candidate], budgets: Budgets | None
    ) -> dict[Response, Reward]:
        group = candidates if len(candidates) > 1 else 2 * candidates  # two equal responses
        rewards = await self._model.rewards(group, budgets)
        return {
            candidate.response: reward for candidate, reward in zip(group, rewards, strict=True)
        }


JudgementObserver = Callable[[Iterable[tuple[Judgement, Sequence[Response]]]], None]
"""Callback that receives judgements, each with the responses that it judges."""


def add_routes(
    app: FastAPI,
    model: RewardSource,
    observe_judgements: JudgementObserver = lambda judgements: None,
) -> None:
    """Add the trainers' routes to a service.

    observe_judgements: receives the judgements behind the rewards. The routes answer 422 for a
    single row if the service's config needs all responses of a query. They answer 503 for a failed
    row once its run's failure budget is spent.
    """
    runs = Runs(model.config)
    relative = any(judged_config.relative for judged_config in model.config.judged.values())
    prompts = PromptGroups(model) if relative else None
    inputs_each = sum(spec.asks.critiques for name, spec in model.specs.items() if name != AUDIT)

    def find_budgets(request: Request) -> Budgets:
        return runs.budgets(run_name(request.headers))

    @contextmanager
    def translate_errors() -> Iterator[None]:
        try:
            yield
        except BudgetExceeded as error:
            raise HTTPException(503, str(error)) from error
        except (ConfigError, InputError) as error:
            raise HTTPException(422, str(error)) from error
        finally:
            recent = [(candidate, reward) for candidate, reward in model.recent() if reward.asked]
            observe_judgements((reward.judgement, (c.response,)) for c, reward in recent)

    @app.post("/get_reward")
    async def batch(body: GetRewardBody, request: Request) -> dict[str, Any]:
        """Rewards of a batch, in OpenRLHF's form.

        Single rows and empty batches are accepted: OpenRLHF sends an empty one to every address but
        the first.
        """
        if len(body.prompts) != len(body.query):
            raise HTTPException(
                422, f"{len(body.query)} query and {len(body.prompts)} prompts: one prompt a query"
            )
        if body.labels and len(body.labels) != len(body.query):
            raise HTTPException(
                422, f"{len(body.query)} query and {len(body.labels)} labels: one label a query"
            )
        require_inputs(len(body.query) * inputs_each, "query")
        with translate_errors():
            return await get_reward(
                model, body.query, body.prompts, body.labels, find_budgets(request)
            )

    @app.post("/reward")
    async def one(body: RewardBody, request: Request) -> float:
        """Reward of one response."""
        row = {**(body.metadata or {}), "label": body.label}
        with translate_errors():
            [number] = await row_rewards(
                model, [(mappings(body.prompt), body.response, row)], find_budgets(request)
            )
            return number

    @app.post("/v1/score/evaluation")
    async def scores(body: EvaluationBody, request: Request) -> dict[str, list[float]]:
        """Rewards of a batch, in the form of LLaMA-Factory's reward API."""
        require_inputs(len(body.messages) * inputs_each, "messages")
        with translate_errors():
            return {"scores": await get_scores(model, body.messages, find_budgets(request))}

    @app.post("/v1/responses")
    async def pair(body: ResponsesBody, request: Request) -> dict[str, Any]:
        """Scores and ranking of two responses, in the form of NeMo Gym's genrm_compare."""
        with translate_errors():
            candidates = _read_two_candidates(model, body)
            if prompts is not None:
                name = run_name(request.headers)
                rewards = await prompts.rewards(candidates, name, find_budgets(request))
            else:
                rewards = await model.rewards(candidates, find_budgets(request))
            return await _make_comparison_answer(
                model, candidates, rewards, compares=prompts is None
            )


async def _make_comparison_answer(
    model: RewardSource, candidates: Sequence[Candidate], rewards: Sequence[Reward], compares: bool
) -> dict[str, Any]:
    """Return a response object of the Responses API with the scores and ranking of two responses.

    A failed judgement gets the middle of the scale. compares: whether equal scores are ranked by a
    comparison.
    """
    middle = model.parts.middle
    shares = [model.parts.share(middle if r.raw is None else r.raw) for r in rewards]
    low, high = SCORE_RANGE
    compares = compares and not any(candidate.unusable for candidate in candidates)
    scores = [low + (high - low) * share for share in shares]
    ranking = UNDECIDED - 2.5 * (shares[0] - shares[1])
    if compares and shares[0] == shares[1]:
        ranking = await _rank_equal_pair(model, *candidates)
    return _make_response_object({"score_1": scores[0], "score_2": scores[1], "ranking": ranking})


def _read_two_candidates(model: RewardSource, body: ResponsesBody) -> list[Candidate]:
    """Return the candidates of the two responses.

    Raises InputError for a body without two responses, and for one with a principle if the judge
    shows none, since it then has its own criteria.
    """
    metadata = body.metadata or {}
    if metadata.get(PRINCIPLE) and PRINCIPLE not in {column.field for column in model.fields.asked}:
        raise InputError("this judge has its own criteria: set use_principle to false")
    turns = [] if isinstance(body.input, str) else mappings(body.input)
    responses: dict[str, Turn] = dict(metadata)
    for turn in turns:
        if turn["role"] in ROLES:
            responses.setdefault(turn["role"], [turn | {"role": "assistant"}])
    if any(role not in responses for role in ROLES):
        raise InputError("two responses are compared: metadata.response_1 and metadata.response_2")
    prompt_turns = [turn for turn in turns if turn["role"] not in ROLES]
    prompt = body.input if isinstance(body.input, str) else prompt_turns
    beside = model.fields.read(metadata)
    return [candidate(prompt, responses[role], beside) for role in ROLES]


async def _rank_equal_pair(model: RewardSource, first: Candidate, second: Candidate) -> float:
    """Return the ranking of two responses with equal scores: by comparison, if the judge
    compares."""

    async def compare_pair(client: JudgeClient) -> float:
        if not client.facts.compares:
            return UNDECIDED
        [comparison] = await client.compare([Pair.of(first, second)])
        return RANKED.get(comparison.verdict, UNDECIDED)

    return await model.ask_judge(compare_pair)


def _make_response_object(scores: dict[str, float]) -> dict[str, Any]:
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
