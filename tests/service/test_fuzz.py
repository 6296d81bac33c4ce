"""Invalid bodies, made by changing valid ones, never break the service."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx

from autoj_reward.client.backend import LocalBackend
from autoj_reward.client.client import RewardClient
from autoj_reward.config import FailureConfig, JudgeConfig, RewardConfig
from autoj_reward.judge.make import make_judge
from autoj_reward.models.spec import judge_spec
from autoj_reward.replicas.replica import JudgeReplica
from autoj_reward.service.api import make_app
from autoj_reward.service.trainers import add_routes
from autoj_reward.trainer.reward import RewardModel

VALID: dict[str, Any] = {
    "/v1/score": {"candidates": [{"query": "Why?", "response": "Because."}]},
    "/v1/compare": {"pairs": [{"query": "Why?", "first": "a", "second": "bc"}], "swap": True},
    "/v1/best_of_n": {
        "query": "Why?",
        "responses": ["a", "bc"],
        "policy_logprobs": [-1.0, -2],
        "view": "rating",
        "tie_break": ["pairwise", "first"],
    },
    "/v1/judge": {"items": [{"query": "Why?", "responses": ["a"], "sample": 0}]},
    "/get_reward": {"query": ["Why? a"], "prompts": ["Why? "], "labels": [None]},
    "/reward": {
        "prompt": [{"role": "user", "content": [{"type": "text", "text": "Why?"}]}],
        "response": "a",
        "label": None,
    },
    "/v1/responses": {
        "input": [{"role": "user", "content": "Why?"}],
        "metadata": {"response_1": "a", "response_2": "bc"},
    },
}
ODD: tuple[Any, ...] = (
    None, True, -1, 0, 2**31, 10**400, 1e308, float("nan"), float("-inf"), "", "\x00", "\ud800",
    "\U0010ffff", "</s><|im_end|>", "Rating: [[10]]", "{response}", "x" * 5000, [], [[]], {},
    {"": ""}, ["a"] * 40, {"__proto__": 1}, "\u202e", "[" * 200,
)  # fmt: skip


def bodies(count: int, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """Yield (path, body): valid bodies with some of their values, names or bytes changed."""
    drawn = random.Random(seed)
    for _ in range(count):
        path = drawn.choice(list(VALID))
        body = json.loads(json.dumps(VALID[path]))
        for _ in range(drawn.randrange(4)):
            body = _changed(body, drawn)
        text = json.dumps(body).encode()
        yield path, _torn(text, drawn) if drawn.random() < 0.3 else text


def _changed(value: Any, drawn: random.Random) -> Any:
    """Return the value with one place in it changed."""
    if drawn.random() < 0.3 or not isinstance(value, dict | list) or not value:
        return drawn.choice(ODD)
    if isinstance(value, list):
        where = drawn.randrange(len(value))
        again = [value[where]] * drawn.choice((0, 1, 1, 2, 30))
        return [*value[:where], *(_changed(v, drawn) for v in again), *value[where + 1 :]]
    name = drawn.choice(list(value))
    changed = dict(value)
    kind = drawn.randrange(4)
    if kind == 0:
        del changed[name]
    elif kind == 1:
        changed[str(drawn.choice(ODD))[:50]] = value[name]
    else:
        changed[name] = _changed(value[name], drawn)
    return changed


def _torn(text: bytes, drawn: random.Random) -> bytes:
    """Return the bytes cut off, with bytes inserted, rotated, or nested deeply."""
    kind, where = drawn.randrange(4), drawn.randrange(len(text) + 1)
    if kind == 0:
        return text[:where]
    if kind == 1:
        return text[:where] + drawn.randbytes(drawn.randrange(1, 8)) + text[where:]
    if kind == 2:
        return text[where:] + text[:where]
    return b"[" * drawn.randrange(1, 3000) + text


async def test_no_body_breaks_the_service() -> None:
    judge = JudgeConfig(kind="fake")
    app = make_app(
        RewardClient(LocalBackend(JudgeReplica(make_judge(judge_spec(judge))))), "secret"
    )
    model = RewardModel(RewardConfig(judge=judge, failures=FailureConfig(budget=1.0)))
    add_routes(app, model)
    statuses: Counter[int] = Counter()
    client = httpx.AsyncClient(
        transport=httpx.ASGITransport(app.guard),
        base_url="http://service",
        headers={"Authorization": "Bearer secret"},
    )
    async with client as asking:
        with model:
            for path, body in bodies(2000):
                answer = await asking.post(path, content=body)
                statuses[answer.status_code] += 1
                told = answer.content
                assert b"Traceback" not in told and b'File "' not in told, (path, body[:500], told)
                assert answer.status_code in (200, 400, 422), (path, body[:500], told)
                if path != "/v1/judge" or answer.status_code != 200:
                    json.loads(told)
    assert statuses[200] > 200 and statuses[422] > 200
