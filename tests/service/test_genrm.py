"""NVIDIA's GenRM behind an endpoint as the judge of a service that genrm_compare asks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from autoj_reward.config import RewardConfig, check
from autoj_reward.formats.schema import load_format
from autoj_reward.service.trainers import add_routes
from autoj_reward.trainer.reward import RewardModel
from tests.engine.test_openai_engine import Answer, Endpoint

HISTORY = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "Why is the sky blue?\n"},
]
GOOD = 'Air scatters blue light: {"score_1": 1}.'
POOR = "It is painted.\n"


@pytest.fixture
def genrm() -> Iterator[Endpoint]:
    """Yield an endpoint that answers as the GenRM does, thinking apart, and prefers GOOD."""
    server = Endpoint()
    server.greets = True
    server.answer = judge_pair
    yield server
    server.close()


def judge_pair(path: str, body: dict[str, Any]) -> Answer:
    shown = {message["role"]: message["content"] for message in body["messages"]}
    is_first = "scatters" in shown["response_1"]
    scores = {
        "response_1_analysis": "It has {braces}.",
        "response_2_analysis": 'It says "so".',
        "score_1": 5 if is_first else 2,
        "score_2": 2 if is_first else 5,
        "ranking": 1 if is_first else 6,
    }
    content = f"```json\n{json.dumps(scores)}\n```"
    message = {"content": content, "reasoning_content": "Both are short."}
    return 200, {"choices": [{"message": message, "finish_reason": "stop"}]}, {}


def ask_service(genrm: Endpoint, fmt: str, monkeypatch: pytest.MonkeyPatch, **metadata: str) -> Any:
    """Return the service's answer to a comparison of GOOD and POOR by genrm_compare."""
    # The service waits this long for further comparisons of the group, which has no other.
    monkeypatch.setattr("autoj_reward.service.trainers.QUIET_S", 0.0)
    judge = {"kind": "openai", "model": "genrm", "base_url": genrm.url, "format": fmt}
    config = check(RewardConfig, {"judge": judge, "relative": {"by": "comparisons"}}, "test")
    app = FastAPI()
    with RewardModel(config) as model:
        add_routes(app, model)
        body = {
            "input": [message | {"type": "message"} for message in HISTORY],
            "metadata": {"response_1": GOOD, "response_2": POOR} | metadata,
        }
        with TestClient(app) as http:
            return http.post("/v1/responses", json=body)


def write_messages(first: str, second: str, principle: str = "") -> list[dict[str, str]]:
    """Return the messages that Gym's genrm_model sends to the GenRM for the same comparison."""
    judged = {"principle": principle} if principle else {}
    judged |= {"response_1": first, "response_2": second}
    return [*HISTORY, *({"role": role, "content": text} for role, text in judged.items())]


@pytest.mark.parametrize(
    ("fmt", "principle"),
    [
        ("nemotron-genrm", ""),
        ("nemotron-genrm-2603", load_format("nemotron-genrm-2603").constants["principle"]),
    ],
)
def test_the_genrm_is_asked_as_gym_asks_it(
    fmt: str, principle: str, genrm: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = ask_service(genrm, fmt, monkeypatch)
    assert answer.status_code == 200, answer.text
    sent = [body["messages"] for _, body, _ in genrm.requests]
    orders = [write_messages(GOOD, POOR, principle), write_messages(POOR, GOOD, principle)]
    assert sorted(sent, key=json.dumps) == sorted(orders, key=json.dumps)
    scores = json.loads(answer.json()["output"][0]["content"][0]["text"])
    assert scores["score_1"] > scores["score_2"] and scores["ranking"] < 3.5


def test_a_principle_of_genrm_compare_reaches_a_judge_that_shows_one(
    genrm: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = ask_service(genrm, "nemotron-genrm-2603", monkeypatch, principle="Be kind.")
    assert answer.status_code == 200, answer.text
    sent = [body["messages"] for _, body, _ in genrm.requests]
    assert sent and all(write_messages("", "", "Be kind.")[4] in messages for messages in sent)
    without = ask_service(genrm, "nemotron-genrm", monkeypatch, principle="Be kind.")
    assert without.status_code == 422 and "use_principle" in without.json()["detail"]
