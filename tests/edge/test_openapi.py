"""What schemathesis draws from the OpenAPI page: what it allows is answered as it says, what it
forbids is refused, and nothing is a server error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from hypothesis import given, settings

from autoj_reward.client.backend import LocalBackend
from autoj_reward.client.client import RewardClient
from autoj_reward.config import FailureConfig, JudgeConfig, RewardConfig
from autoj_reward.edge import trainers
from autoj_reward.edge.http import make_app
from autoj_reward.judge.make import make_judge
from autoj_reward.replicas.replica import JudgeReplica
from autoj_reward.trainer.reward import RewardModel

OPERATIONS = (
    *(("get", path) for path in ("/healthz", "/metrics", "/readyz", "/v1/judge")),
    *(("post", path) for path in ("/get_reward", "/reward")),
    *(("post", f"/v1/{name}") for name in ("best_of_n", "compare", "judge", "responses", "score")),
)
BEYOND_SCHEMAS = (
    "policy_logprobs has",
    "one prompt a query",
    "should be a valid integer",
    "direct reads the rating of one",
    "no pairwise prompt of RewardBench's",
)
"""Why a body that the page allows may be refused: lists of different lengths, 1.0 for 1, the direct
reading of two responses, and a conversation that asks for no verdict."""


@pytest.fixture(scope="module")
def app() -> Iterator[FastAPI]:
    judge = JudgeConfig(kind="fake")
    made = make_app(RewardClient(LocalBackend(JudgeReplica(make_judge(judge)))), "secret")
    with RewardModel(RewardConfig(judge=judge, failures=FailureConfig(budget=1))) as model:
        trainers.add_routes(made, model)
        yield made


@pytest.fixture(scope="module")
def page(app: FastAPI) -> Any:
    import schemathesis  # reading the page takes seconds, of the process that needs it alone

    return schemathesis.openapi.from_asgi("/openapi.json", app.guard)  # type: ignore[attr-defined]


def test_every_route_is_on_the_page(app: FastAPI) -> None:
    paths = app.openapi()["paths"]
    found = {(method, path) for path, methods in paths.items() for method in methods}
    served = {
        (method.lower(), route.path)
        for route in app.routes
        for method in getattr(route, "methods", ())
        if not route.path.startswith(("/docs", "/openapi"))
    }
    assert found == served == set(OPERATIONS)


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_the_page_holds(method: str, path: str, page: Any) -> None:
    from schemathesis.openapi.checks import RejectedPositiveData

    @settings(max_examples=40)
    @given(case=page[path][method].as_strategy())
    def holds(case: Any) -> None:
        answer = case.call(headers={"Authorization": "Bearer secret"})
        try:
            case.validate_response(answer)
        except* RejectedPositiveData:
            told = json.loads(answer.content)
            assert answer.status_code == 422
            assert any(why in told["detail"] for why in BEYOND_SCHEMAS)

    holds()
