"""HTTP API: a FastAPI app that judges through a JudgeClient.

    POST /v1/score      {"candidates": [{"query", "response", "context"}]}
                        -> {"judgements": [...]}; with "group_id" and "group_size" they are scores
                        in a group whose other responses come in other requests: see `gather.py`;
                        with "rubric" in each candidate they are scores by its items
    POST /v1/compare    {"pairs": [{"query", "first", "second", "context"}], "swap": true}
                        -> {"comparisons": [...]}
    POST /v1/best_of_n  {"query", "responses": [...], "context"}
                        -> {"selection": {...}, "judgements": [...]}
    POST /v1/rank       {"query", "responses": [two or more], "context", "relative": {"by": ...}}
                        -> {"scores", "errors", "orders" or "matches", "judgements", ...}
    GET  /v1/judge      -> description of the judge: see `JudgeDescription`
    POST /v1/judge      {"items": [{"query", "responses": [one or two], "sample", "direct",
                         "context"}]}
                        -> one JSON line for each input when it is done: {"index", "judgement"};
                        or {"unavailable" | "lost" | "error": reason}, and the caller retries
    GET  /healthz, /readyz, /metrics, /openapi.json

`context` is optional and holds named texts such as a reference answer; the judge's format says
which it shows. A text that cannot be judged fails its own input alone. `/v1/judge` is for other
JudgeClients: the caller keeps the deadline and retries, as it does with Ray replicas. See
`gateway.py` for token, limits and deadlines.

The app calls Serve replicas by their handle. On one machine it is not behind Serve's own proxy,
which would be one more process and one more copy of every body. That proxy answers 500 for requests
in flight on a replica that dies, has no journal, and coalesces nothing. For Kubernetes setups that
need Serve's proxy, the same app runs as an ingress deployment: see `application.py`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import StreamingResponse
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from autoj_reward.client.client import JudgeClient
from autoj_reward.client.remote import JUDGE_HEADER
from autoj_reward.client.sound import find_rejection_reason
from autoj_reward.config import RelativeConfig, RubricConfig, View
from autoj_reward.errors import (
    AutojError,
    ConfigError,
    EngineUnavailable,
    FormatError,
    InputError,
    JournalError,
    ReplicaLost,
)
from autoj_reward.io.files import to_compact_json
from autoj_reward.logs import LOG
from autoj_reward.models.facts import JudgeDescription
from autoj_reward.models.views import resolve_view
from autoj_reward.questions.choose import choice_question
from autoj_reward.questions.compare import compare_all, comparison_question
from autoj_reward.questions.listwise import Listwise
from autoj_reward.questions.rank import Ranking
from autoj_reward.questions.rate import rate_all, rating_question
from autoj_reward.questions.relative import rank_question
from autoj_reward.questions.rubric import rubric_question
from autoj_reward.questions.tournament import Tournament
from autoj_reward.service import bodies
from autoj_reward.service.bodies import problem, require_inputs
from autoj_reward.service.gateway import DEADLINE_SCOPE, LINES, Guard, Limits, run_name
from autoj_reward.service.gather import WAIT_SHARE, Gatherer
from autoj_reward.service.metrics import Metrics
from autoj_reward.service.routes import BodyRoute
from autoj_reward.types import (
    PAIRWISE,
    Candidate,
    Comparison,
    JudgeInput,
    Judgement,
    Outcome,
    Pair,
)

T = TypeVar("T")
R = TypeVar("R")
JSON_TYPE, TEXT_TYPE = "application/json", "text/plain"
PROBLEM = {"schema": {"$ref": "#/components/schemas/Problem"}}
"""Reference to the error schema by name. Passing the model would make FastAPI build a serializer
for each status of each route, which is most of the time to make an app. /readyz brings the model
itself into the OpenAPI document."""
ERRORS: dict[int | str, dict[str, Any]] = {
    code: {"content": {JSON_TYPE: PROBLEM}} for code in (400, 401, 408, 413, 422, 429, 503, 504)
}
"""Error statuses of every route, for the OpenAPI document."""


class Service(FastAPI):
    """The FastAPI app. Serve its `guard`, not the app itself."""

    metrics: Metrics
    """Metrics that `/metrics` shows."""
    guard: Guard
    """The gateway around the app, which checks token and limits."""


def make_app(
    client: JudgeClient, token: str, limits: Limits | None = None, *, alone: bool = True
) -> Service:
    """Return an app that judges through a client.

    token: bearer token that callers must send. limits: None for the defaults. alone: whether all
    requests of a service come to this app, so that it can gather groups.
    """
    app = Service(
        title="autoj-reward",
        docs_url=None,  # its page loads scripts from a CDN
        redoc_url=None,
        strict_content_type=False,
    )
    app.metrics = metrics = Metrics()
    app.guard = Guard(app, token, metrics, limits or Limits())
    _add_error_handlers(app)
    _add_probes(app, client)
    app.router.route_class = BodyRoute
    # In the OpenAPI document, every route from here on needs the token; the guard checks it.
    app.router.dependencies.append(Depends(HTTPBearer(auto_error=False)))
    app.router.responses.update(ERRORS)

    def make_response(body: Any) -> Response:
        return Response(to_compact_json(body), 200, {JUDGE_HEADER: client.backend.judge}, JSON_TYPE)

    async def judge_items(items: Sequence[JudgeInput], view: View | None = None) -> list[Judgement]:
        """Judge inputs through the client. A text that no service can judge fails its input
        alone."""
        rejections = [_reject(item.untrusted, client.backend.judge) for item in items]
        accepted_items = [
            item for item, rejection in zip(items, rejections, strict=True) if rejection is None
        ]
        judgements = iter(await client.judge(accepted_items, view) if accepted_items else ())
        return [next(judgements) if rejection is None else rejection for rejection in rejections]

    def count_ratings(candidates: Sequence[Candidate], judgements: Sequence[Judgement]) -> None:
        metrics.count_judgements(
            (judgement, (candidate.response,))
            for judgement, candidate in zip(judgements, candidates, strict=True)
        )
        metrics.count_ratings(candidates, judgements)

    def count_comparisons(compared: Sequence[tuple[Pair, Comparison]]) -> None:
        metrics.count_comparisons([comparison for _, comparison in compared])
        orders = (
            (order, (pair.first, pair.second))
            for pair, comparison in compared
            for order in comparison.orders
        )
        metrics.count_judgements(orders, PAIRWISE)

    gatherer = Gatherer(client, judge_items, metrics) if alone else None

    @app.post("/v1/score", response_model=bodies.ScoreAnswer)
    async def score(body: bodies.ScoreBody, request: Request) -> Response:
        """Rate each response to its query, or score it in its group."""
        candidates = [
            Candidate(
                item.prompt,
                item.response,
                group_id=body.group_id,
                context=item.context,
                rubric=item.rubric,
            )
            for item in body.candidates
        ]
        if any(item.rubric for item in body.candidates):
            judgements = await score_by_rubric(candidates, body.rubric)
        elif body.group_size is not None:
            judgements = await score_in_group(candidates, body.group_size, body.relative, request)
        else:
            require_inputs(len(candidates) * client.asks.critiques, "candidates")
            questions = [rating_question(candidate, client.asks) for candidate in candidates]
            judgements = await rate_all(questions, judge_items)
            count_ratings(candidates, judgements)
        return make_response({"judgements": [judgement.record() for judgement in judgements]})

    async def score_by_rubric(
        candidates: Sequence[Candidate], rubric_config: RubricConfig | None
    ) -> list[Judgement]:
        """Score responses by the items of their rubrics."""
        try:
            questions = [
                rubric_question(candidate, client.facts, client.asks, rubric_config)
                for candidate in candidates
            ]
        except ConfigError as error:
            raise HTTPException(422, str(error)) from error
        require_inputs(sum(question.most_inputs for question in questions), "candidates")
        scores = await asyncio.gather(*(question.answer(judge_items) for question in questions))
        for question, rubric_score in zip(questions, scores, strict=True):
            texts = (question.candidate.response,)
            metrics.count_judgements(
                ((judgement, texts) for judgement in rubric_score.judgements),
                question.how.protocol,
            )
        return [rubric_score.as_judgement() for rubric_score in scores]

    async def score_in_group(
        candidates: Sequence[Candidate],
        size: int,
        relative: RelativeConfig | None,
        request: Request,
    ) -> list[Judgement]:
        """Score responses in their group. What no group of this size can have is refused now."""
        if gatherer is None:
            raise HTTPException(
                422, "this service has several processes, between which no group can be gathered"
            )
        example = [Candidate("", str(n), context=candidates[0].context) for n in range(size)]
        require_inputs(make_rank_question(example, relative).most_inputs, "group_size")
        wait_s = WAIT_SHARE * request.scope.get(DEADLINE_SCOPE, Limits().deadline_s)
        run = run_name(request.headers)
        return list(
            await asyncio.gather(
                *(gatherer.rate(candidate, size, relative, wait_s, run) for candidate in candidates)
            )
        )

    def make_rank_response(ranking: Ranking) -> Response:
        judgements = [judgement.record() for judgement in ranking.judgements]
        return make_response(ranking.record() | {"judgements": judgements})

    def make_rank_question(
        candidates: Sequence[Candidate], relative: RelativeConfig | None
    ) -> Listwise | Tournament:
        try:
            return rank_question(candidates, client.facts, client.asks, relative)
        except ConfigError as error:
            raise HTTPException(422, str(error)) from error

    @app.post("/v1/compare", response_model=bodies.CompareAnswer)
    async def compare_pairs(body: bodies.CompareBody) -> Response:
        """Compare the two responses of each pair."""
        questions = [
            comparison_question(
                Pair(item.prompt, item.first, item.second, item.context),
                client.facts,
                client.asks,
                swap=body.swap,
            )
            for item in body.pairs
        ]
        comparisons = await compare_all(questions, judge_items)
        pairs = [question.pair for question in questions]
        count_comparisons(list(zip(pairs, comparisons, strict=True)))
        return make_response({"comparisons": [comparison.record() for comparison in comparisons]})

    @app.post("/v1/best_of_n", response_model=bodies.BestOfNAnswer)
    async def best_of_n(body: bodies.BestOfNBody) -> Response:
        """Choose the best response to one query."""
        inputs = len(body.responses) * client.asks.critiques
        require_inputs(inputs, "responses")
        no_logprobs: list[float | None] = [None] * len(body.responses)
        logprobs = body.policy_logprobs or no_logprobs
        candidates = [
            Candidate(body.prompt, response, logprob, context=body.context)
            for response, logprob in zip(body.responses, logprobs, strict=True)
        ]
        facts = await client.contact()
        try:
            view = resolve_view(body.view, "choose", facts.preferred, facts.views)
        except ConfigError as error:
            raise HTTPException(422, str(error)) from error
        matches = (bodies.MAX_INPUTS - inputs) // 2
        question = choice_question(
            candidates, facts, client.asks, view=view, rules=body.tie_break, matches=matches
        )
        choice = await question.answer(judge_items)
        count_ratings(candidates, choice.judgements)
        count_comparisons(choice.comparisons)
        return make_response(
            {
                "selection": choice.selection,
                "judgements": [judgement.record() for judgement in choice.judgements],
            }
        )

    @app.post("/v1/rank", response_model=bodies.RankAnswer)
    async def rank(body: bodies.RankBody) -> Response:
        """Judge the responses of one group together, and return a score for each."""
        candidates = [
            Candidate(body.prompt, response, context=body.context) for response in body.responses
        ]
        question = make_rank_question(candidates, body.relative)
        require_inputs(question.most_inputs, "responses")
        try:
            ranking = await question.answer(judge_items)
        except InputError as error:
            raise HTTPException(422, str(error)) from error
        metrics.count_ranking(ranking, body.responses)
        return await asyncio.to_thread(make_rank_response, ranking)

    @app.get("/v1/judge", response_model=JudgeDescription)
    async def name() -> Response:
        """Describe the judge: its fingerprint, and what it can do."""
        facts = await client.contact()
        about = {"judge": client.backend.judge, "in_flight": client.limits.max_in_flight}
        return make_response(facts.model_dump(mode="json") | about)

    @app.post("/v1/judge", response_class=Response, responses={200: {"content": {LINES: {}}}})
    async def judge(body: bodies.JudgeBody) -> Response:
        """Judge inputs for another JudgeClient; stream one JSON line for each when it is done."""
        items = [
            JudgeInput(
                item.protocol,
                item.prompt,
                item.responses,
                item.sample,
                item.direct,
                item.context,
                item.items,
            )
            for item in body.items
        ]
        return _Lines(_stream_lines(client, items, metrics), {JUDGE_HEADER: client.backend.judge})

    @app.get("/metrics", response_class=Response, responses={200: {"content": {TEXT_TYPE: {}}}})
    async def show_metrics() -> Response:
        """Metrics in Prometheus' text format."""
        return Response(metrics.text(), media_type=f"{TEXT_TYPE}; version=0.0.4; charset=utf-8")

    return app


def _reject(texts: Iterable[str], judge: str) -> Judgement | None:
    """Return the rejection of an input with a text that no service can judge, else None."""
    reason = find_rejection_reason(texts)
    return Judgement(Outcome.INPUT_REJECTED, reason=reason, judge=judge) if reason else None


class _Lines(StreamingResponse):
    """Streaming response of JSON lines. Its generator is closed however the response ends.

    That includes a caller that hangs up with lines unread; the guard notices the hang-up.
    """

    def __init__(self, lines: AsyncGenerator[bytes], headers: dict[str, str]) -> None:
        super().__init__(lines, headers=headers, media_type=LINES)
        self._lines = lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._lines):
            await self.stream_response(send)


async def _stream_lines(
    client: JudgeClient, items: Sequence[JudgeInput], metrics: Metrics
) -> AsyncGenerator[bytes]:
    def make_line(index: int, judgement: Judgement) -> bytes:
        metrics.count_judgements([(judgement, items[index].responses)], items[index].protocol)
        return to_compact_json({"index": index, "judgement": judgement.record()}) + b"\n"

    sent_indices = []
    for index, item in enumerate(items):
        if rejection := _reject(item.untrusted, client.backend.judge):
            yield make_line(index, rejection)
        else:
            sent_indices.append(index)
    stream = client.backend.stream([items[index] for index in sent_indices])
    try:
        async for n, judgement in stream:
            yield make_line(sent_indices[n], judgement)
    except AutojError as error:
        kind = "lost" if isinstance(error, ReplicaLost) else "error"
        kind = "unavailable" if type(error) is EngineUnavailable else kind
        yield to_compact_json({kind: str(error)}) + b"\n"
    finally:  # the caller may have hung up: stop the replica's work
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()


def _add_probes(app: Service, client: JudgeClient) -> None:
    @app.get("/healthz")
    async def alive() -> Response:
        """200 while this process answers."""
        return Response('{"status": "ok"}', media_type=JSON_TYPE)

    @app.get("/readyz", responses={503: {"model": bodies.Problem}})
    async def ready() -> Response:
        """200 with the number of ready replicas while new requests are accepted; else 503."""
        if app.guard.admission.draining:
            return _make_problem_response(503, "this service is stopping")
        status = {"status": "ready", "replicas": await client.backend.check()}
        return Response(json.dumps(status), media_type=JSON_TYPE)


def _add_error_handlers(app: Service) -> None:
    """Add handlers that answer exceptions with a `Problem`, without sent text or stack trace."""

    async def answer_invalid_body(request: Request, error: RequestValidationError) -> Response:
        first_error = error.errors()[0]
        is_syntax_error = first_error["type"] == "json_invalid"
        field = (
            "" if is_syntax_error else ".".join(str(part)[:80] for part in first_error["loc"][1:])
        )
        return _make_problem_response(
            422, first_error["msg"].removeprefix("Value error, "), field or "body"
        )

    async def answer_http_error(request: Request, error: HTTPException) -> Response:
        answer = _make_problem_response(error.status_code, str(error.detail))
        if error.status_code == 405:
            answer.headers["Allow"] = ", ".join(_list_methods(app, request.url.path))
        return answer

    async def answer_format_error(request: Request, error: FormatError) -> Response:
        return _make_problem_response(422, str(error))

    async def answer_journal_error(request: Request, error: JournalError) -> Response:
        LOG.error("a judgement cannot be recorded: %s", error)
        return _make_problem_response(503, str(error))

    async def answer_autoj_error(request: Request, error: AutojError) -> Response:
        return _make_problem_response(503, str(error))

    async def answer_unknown_error(request: Request, error: Exception) -> Response:
        return _make_problem_response(500, "internal error; the log has it under this id")

    app.add_exception_handler(RequestValidationError, answer_invalid_body)
    app.add_exception_handler(HTTPException, answer_http_error)
    app.add_exception_handler(FormatError, answer_format_error)
    app.add_exception_handler(JournalError, answer_journal_error)
    app.add_exception_handler(AutojError, answer_autoj_error)
    app.add_exception_handler(Exception, answer_unknown_error)


def _list_methods(app: FastAPI, path: str) -> list[str]:
    """Return the methods of all routes of a path; Starlette names only those of the first."""
    routes = [route for route in app.routes if getattr(route, "path", None) == path]
    return sorted(method for route in routes for method in getattr(route, "methods", None) or ())


def _make_problem_response(status: int, detail: str, field: str = "") -> Response:
    return Response(problem(detail, field), status, media_type=JSON_TYPE)
