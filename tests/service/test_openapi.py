"""Requests drawn by schemathesis from the OpenAPI document.

Valid ones are answered as the document says, invalid ones are refused, and none is a server error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from autoj_reward.client.backend import LocalBackend
from autoj_reward.client.client import JudgeClient
from autoj_reward.config import FailureConfig, JudgeConfig, RewardConfig
from autoj_reward.models.spec import judge_spec
from autoj_reward.service import trainers
from autoj_reward.service.api import make_app
from autoj_reward.trainer.reward import RewardModel

JUDGE = JudgeConfig(kind="fake")
MODEL = RewardModel(RewardConfig(judge=JUDGE, failures=FailureConfig(budget=1)))
APP = make_app(JudgeClient(LocalBackend(judge_spec(JUDGE))), "secret")
trainers.add_routes(APP, MODEL)
PATHS = APP.openapi()["paths"]
OPERATIONS = sorted((method, path) for path, methods in PATHS.items() for method in methods)
BEYOND_SCHEMAS = (
    "policy_logprobs has",
    "one prompt a query",
    "one label a query",
    "should be a valid integer",
    "direct reads the rating of one",
    "two responses are compared",
    "this judge has its own criteria",
    "give either query or messages",
    "messages[",
    "no turn of the user",
    "the judge's format has no",
    "which does not use",
    "give group_id and group_size",
    "listwise judges 1 or more",
    "comparisons take both or alternate",
    "is of the schedule",
    "schedule is reference",
    "a request may cost",
    "rubric[",
    "no item has positive points",
    "every candidate a rubric, or none",
    "a rubric scores a response alone",
    "items is a file of a run",
    "by is overall",
)
"""Why a body that the page allows may be refused: lists of different lengths, 1.0 for 1, the direct
reading of two responses, a conversation of less than two responses or with a principle, one of two
keys that go together, and messages that are no conversation. Keys of `relative` may fit neither
each other nor the judge.
Rubric items may have impossible values.
"""


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    import schemathesis  # reading the page takes seconds, of the process that needs it alone

    with pytest.MonkeyPatch.context() as patch:
        # No other caller sends the rest of a group that is drawn, so waiting for it is in vain.
        patch.setattr("autoj_reward.service.api.WAIT_SHARE", 0.0)
        yield schemathesis.openapi.from_asgi("/openapi.json", APP.guard)
    MODEL.close()


def test_every_route_is_on_the_page() -> None:
    served_routes = {
        (method.lower(), route.path)
        for route in APP.routes
        for method in getattr(route, "methods", ())
        if route.path != "/openapi.json"
    }
    assert set(OPERATIONS) == served_routes and len(served_routes) == 13


def test_every_name_on_the_page_stands_for_a_schema() -> None:
    page = APP.openapi()
    schema_names = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(page)))
    assert "Problem" in schema_names and schema_names <= set(page["components"]["schemas"])


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_the_page_holds(method: str, path: str, page: Any) -> None:
    from schemathesis.openapi.checks import RejectedPositiveData

    # Lists of responses that are lists of messages are slow to draw, and many are too large.
    @settings(
        max_examples=12,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(case=page[path][method].as_strategy())
    def check_case(case: Any) -> None:
        answer = case.call(headers={"Authorization": "Bearer secret"})
        try:
            case.validate_response(answer)
        except* RejectedPositiveData:
            problem = json.loads(answer.content)
            assert answer.status_code == 422
            assert any(reason in problem["detail"] for reason in BEYOND_SCHEMAS)

    check_case()
