"""The HTTP edge: a FastAPI app that judges through a RewardClient.

    POST /v1/score      {"candidates": [{"query", "response", "context"}]}
                        -> {"judgements": [...]}
    POST /v1/compare    {"pairs": [{"query", "first", "second", "context"}], "swap": true}
                        -> {"comparisons": [...]}
    POST /v1/best_of_n  {"query", "responses": [...], "context"}
                        -> {"selection": {...}, "judgements": [...]}
    POST /v1/rank       {"query", "responses": [two or more], "context", "relative": {"by": ...}}
                        -> {"scores", "errors", "orders" or "matches", "judgements", ...}
    GET  /v1/judge      -> what the judge is and gives: see `bodies.JudgeDescription`
    POST /v1/judge      {"items": [{"query", "responses": [one or two], "sample", "direct",
                         "context"}]}
                        -> one JSON line an input, as each is done: {"index", "judgement"}; or
                        {"unavailable" | "lost" | "error": reason}, and the caller asks again
    GET  /healthz, /readyz, /metrics, /openapi.json

The app holds a RewardClient, which asks Serve replicas by handle; on one machine it does not sit
behind Serve's own proxy. The proxy answers 500 for what was in flight on a replica that dies, keeps
no journal and coalesces nothing, and would be one more process and one more copy of every body.
Where Kubernetes wants Serve's proxy, the same app runs as an ingress deployment: `application.py`.

`context`, which may be left out, holds named texts such as a reference; the judge's format says
which it shows. A text that cannot be judged costs its own input. `/v1/judge` is for other
RewardClients: nothing there decides how long to wait or what to retry, since the asking side does,
as it does for Ray. See `gateway.py` for token, limits and deadlines.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing
from typing import Any, TypeVar, get_type_hints

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import StreamingResponse
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from pydantic import TypeAdapter, ValidationError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from autoj_reward.client.client import RewardClient
from autoj_reward.client.remote import JUDGE_HEADER, unfit
from autoj_reward.config import View
from autoj_reward.errors import (
    AutojError,
    ConfigError,
    EngineUnavailable,
    FormatError,
    InputError,
    JournalError,
    ReplicaLost,
)
from autoj_reward.io.files import as_json
from autoj_reward.logs import LOG
from autoj_reward.models.views import resolve_view
from autoj_reward.questions.compare import Compare, compare_all
from autoj_reward.questions.rate import Rate, rate_all
from autoj_reward.service import bodies
from autoj_reward.service.bodies import problem, require_inputs
from autoj_reward.service.gateway import LINES, Guard, Limits
from autoj_reward.service.metrics import Metrics
from autoj_reward.types import (
    GROUP,
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
"""By name: FastAPI makes a serializer of a model for each code of each route, most of an app's
making. The model itself is in the OpenAPI document by /readyz."""
ERRORS: dict[int | str, dict[str, Any]] = {
    code: {"content": {JSON_TYPE: PROBLEM}} for code in (400, 401, 408, 413, 422, 429, 503, 504)
}
RouteFunction = Callable[..., Coroutine[Any, Any, Response]]


class Service(FastAPI):
    """The app. metrics: what `/metrics` shows. Serve `guard`, not the app itself."""

    metrics: Metrics
    guard: Guard


def make_app(client: RewardClient, token: str, limits: Limits | None = None) -> Service:
    """An app that judges through a client. token: what callers must present."""
    app = Service(
        title="autoj-reward",
        docs_url=None,  # its page loads scripts from a CDN
        redoc_url=None,
        strict_content_type=False,
    )
    app.metrics = metrics = Metrics()
    app.guard = Guard(app, token, metrics, limits or Limits())
    _tell_errors(app)
    _add_probes(app, client)
    app.router.route_class = BodyRoute
    # In the OpenAPI document, every route from here on needs the token; the guard checks it.
    app.router.dependencies.append(Depends(HTTPBearer(auto_error=False)))
    app.router.responses.update(ERRORS)

    def answer(body: Any) -> Response:
        return Response(json.dumps(body), 200, {JUDGE_HEADER: client.backend.judge}, JSON_TYPE)

    async def ask(items: Sequence[JudgeInput], view: View | None = None) -> list[Judgement]:
        """Ask the client; a text that is unfit for a service costs its own input alone."""
        found = [_refused(item.untrusted, client.backend.judge) for item in items]
        fit = [item for item, own in zip(items, found, strict=True) if own is None]
        rest = iter(await client.judge(fit, view) if fit else ())
        return [next(rest) if own is None else own for own in found]

    def rated(candidates: Sequence[Candidate], judgements: Sequence[Judgement]) -> None:
        metrics.judged((j, (c.response,)) for j, c in zip(judgements, candidates, strict=True))
        metrics.rated(candidates, judgements)

    def compared(found: Sequence[Comparison], pairs: Sequence[Pair]) -> None:
        metrics.compared(found)
        orders = (
            (order, pair[1:3]) for c, pair in zip(found, pairs, strict=True) for order in c.orders
        )
        metrics.judged(orders, PAIRWISE)

    @app.post("/v1/score", response_model=bodies.ScoreAnswer)
    async def score(body: bodies.ScoreBody) -> Response:
        require_inputs(len(body.candidates) * client.critiques, "candidates")
        candidates = [Candidate(c.query, c.response, context=c.context) for c in body.candidates]
        judgements = await rate_all([Rate(one, client.critiques) for one in candidates], ask)
        rated(candidates, judgements)
        return answer({"judgements": [own.record() for own in judgements]})

    @app.post("/v1/compare", response_model=bodies.CompareAnswer)
    async def compare_pairs(body: bodies.CompareBody) -> Response:
        pairs = [Pair(p.query, p.first, p.second, p.context) for p in body.pairs]
        found = await compare_all([Compare(pair, body.swap, client.tie) for pair in pairs], ask)
        compared(found, pairs)
        return answer({"comparisons": [as_json(own) for own in found]})

    @app.post("/v1/best_of_n", response_model=bodies.BestOfNAnswer)
    async def best_of_n(body: bodies.BestOfNBody) -> Response:
        inputs = len(body.responses) * client.critiques
        require_inputs(inputs, "responses")
        unknown: list[float | None] = [None] * len(body.responses)
        logprobs = body.policy_logprobs or unknown
        candidates = [
            Candidate(body.query, response, logprob, context=body.context)
            for response, logprob in zip(body.responses, logprobs, strict=True)
        ]
        try:
            view = resolve_view(body.view, "choose", client.preferred, await client.views())
        except ConfigError as error:
            raise HTTPException(422, str(error)) from error
        matches = (bodies.MAX_INPUTS - inputs) // 2
        question = client.question_of_choice(
            candidates, view=view, rules=body.tie_break, matches=matches
        )
        choice = await question.answer(ask)
        rated(candidates, choice.judgements)
        held = choice.selection.comparisons
        pairs = [Pair.of(candidates[i], candidates[j]) for i, j, _ in held]
        compared(choice.comparisons, pairs)
        return answer(
            {
                "selection": as_json(choice.selection),
                "judgements": [own.record() for own in choice.judgements],
            }
        )

    @app.post("/v1/rank", response_model=bodies.RankAnswer)
    async def rank(body: bodies.RankBody) -> Response:
        candidates = [Candidate(body.query, text, context=body.context) for text in body.responses]
        try:
            question = await client.question_of_rank(candidates, body.relative)
            require_inputs(question.most_inputs, "responses")
            ranking = await question.answer(ask)
        except (ConfigError, InputError) as error:
            raise HTTPException(422, str(error)) from error
        protocol = PAIRWISE if ranking.matches else GROUP
        metrics.judged(((own, body.responses) for own in ranking.judgements), protocol)
        return answer(
            ranking.record() | {"judgements": [own.record() for own in ranking.judgements]}
        )

    @app.get("/v1/judge", response_model=bodies.JudgeDescription)
    async def name() -> Response:
        views = tuple(sorted(await client.views()))
        return answer(
            as_json(
                bodies.JudgeDescription(
                    client.backend.judge,
                    views,
                    client.preferred,
                    client.max_in_flight,
                    list(client.scale) if client.scale else None,
                    client.backend.distributions,
                    client.tie,
                    client.max_group,
                    client.compares,
                )
            )
        )

    @app.post("/v1/judge", response_class=Response, responses={200: {"content": {LINES: {}}}})
    async def judge(body: bodies.JudgeBody) -> Response:
        asked = [
            JudgeInput(i.protocol, i.query, tuple(i.responses), i.sample, i.direct, i.context)
            for i in body.items
        ]
        return _Lines(_lines(client, asked, metrics), {JUDGE_HEADER: client.backend.judge})

    @app.get("/metrics", response_class=Response, responses={200: {"content": {TEXT_TYPE: {}}}})
    async def show_metrics() -> Response:
        """Prometheus' text format."""
        return Response(metrics.text(), media_type=f"{TEXT_TYPE}; version=0.0.4; charset=utf-8")

    return app


def _refused(texts: Iterable[str], judge: str) -> Judgement | None:
    """The judgement of an input whose texts are unfit for a service, None of any other."""
    reason = unfit(texts)
    return Judgement(Outcome.INPUT_REJECTED, reason=reason, judge=judge) if reason else None


class _Lines(StreamingResponse):
    """JSON lines. Their generator is closed however the answer ends, also where a caller hangs up
    that has left lines unread; to notice that is the guard's part."""

    def __init__(self, lines: AsyncGenerator[str], headers: dict[str, str]) -> None:
        super().__init__(lines, headers=headers, media_type=LINES)
        self._lines = lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._lines):
            await self.stream_response(send)


async def _lines(
    client: RewardClient, items: Sequence[JudgeInput], metrics: Metrics
) -> AsyncGenerator[str]:
    def line(index: int, judgement: Judgement) -> str:
        metrics.judged([(judgement, items[index].responses)], items[index].protocol)
        return json.dumps({"index": index, "judgement": judgement.record()}) + "\n"

    asked = []
    for index, item in enumerate(items):
        if own := _refused(item.untrusted, client.backend.judge):
            yield line(index, own)
        else:
            asked.append(index)
    stream = client.backend.stream([items[index] for index in asked])
    try:
        async for n, judgement in stream:
            yield line(asked[n], judgement)
    except AutojError as error:
        kind = "lost" if isinstance(error, ReplicaLost) else "error"
        kind = "unavailable" if type(error) is EngineUnavailable else kind
        yield json.dumps({kind: str(error)}) + "\n"
    finally:  # nobody waits any more: the replica's work must stop, too
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()


def _add_probes(app: Service, client: RewardClient) -> None:
    @app.get("/healthz")
    async def alive() -> Response:
        """200 while this process answers at all."""
        return Response('{"status": "ok"}', media_type=JSON_TYPE)

    @app.get("/readyz", responses={503: {"model": bodies.Problem}})
    async def ready() -> Response:
        """200 while new work is taken and so many replicas could do it; 503 if none could."""
        if app.guard.admission.draining:
            return _problem(503, "this service is stopping")
        told = {"status": "ready", "replicas": await client.backend.check()}
        return Response(json.dumps(told), media_type=JSON_TYPE)


def _tell_errors(app: Service) -> None:
    """Errors as problems with a field, without what was sent and without a stack trace."""

    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        syntax = first["type"] == "json_invalid"
        where = "" if syntax else ".".join(str(part)[:80] for part in first["loc"][1:])
        return _problem(422, first["msg"].removeprefix("Value error, "), where or "body")

    async def http(request: Request, error: HTTPException) -> Response:
        answer = _problem(error.status_code, str(error.detail))
        if error.status_code == 405:
            answer.headers["Allow"] = ", ".join(_methods(app, request.url.path))
        return answer

    async def unanswerable(request: Request, error: FormatError) -> Response:
        return _problem(422, str(error))

    async def unrecorded(request: Request, error: JournalError) -> Response:
        LOG.error("a judgement cannot be recorded: %s", error)
        return _problem(503, str(error))

    async def unavailable(request: Request, error: AutojError) -> Response:
        return _problem(503, str(error))

    async def unknown(request: Request, error: Exception) -> Response:
        return _problem(500, "internal error; the log has it under this id")

    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(FormatError, unanswerable)
    app.add_exception_handler(JournalError, unrecorded)
    app.add_exception_handler(AutojError, unavailable)
    app.add_exception_handler(Exception, unknown)


def _methods(app: FastAPI, path: str) -> list[str]:
    """The methods of a path. Starlette names those of its first route alone."""
    routes = [route for route in app.routes if getattr(route, "path", None) == path]
    return sorted(method for route in routes for method in getattr(route, "methods", None) or ())


def _problem(status: int, detail: str, field: str = "") -> Response:
    return Response(problem(detail, field), status, media_type=JSON_TYPE)


class BodyRoute(APIRoute):
    """A route of `endpoint(body)`, whose bytes are dropped as soon as they have been read.

    FastAPI's own handler keeps them until the answer is there, which takes as long as judging does:
    requests in flight would hold every text twice. Other endpoints stay FastAPI's.
    """

    def __init__(self, path: str, endpoint: RouteFunction, **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        kinds = get_type_hints(endpoint)
        if list(kinds) == ["body", "return"]:
            self.app = _body_app(TypeAdapter(kinds["body"]), endpoint)


def _body_app(shape: TypeAdapter[Any], endpoint: RouteFunction) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            checked = shape.validate_python(_parsed(await Request(scope, receive).body()))
        except ValidationError as error:
            found = error.errors(include_url=False)
            wrong = [{**one, "loc": ("body", *one["loc"])} for one in found]
            raise RequestValidationError(wrong) from None
        response = await endpoint(checked)
        await response(scope, receive, send)

    return app


def _parsed(body: bytes) -> Any:
    """RequestValidationError for what is no JSON, HTTPException for what is no text."""
    try:
        text = body.decode(json.detect_encoding(body), "surrogatepass")
        del body  # a large one is not held beside what is made of it
        return json.loads(text)
    except json.JSONDecodeError as error:
        wrong = {"type": "json_invalid", "loc": ("body", error.pos), "msg": error.msg}
        raise RequestValidationError([wrong]) from None
    except (ValueError, RecursionError):
        raise HTTPException(400, "the body cannot be read as JSON") from None
