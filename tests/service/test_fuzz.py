"""Invalid bodies, made by changing valid ones, never break the service."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx

from autoj_reward.client.backend import LocalBackend
from autoj_reward.client.client import JudgeClient
from autoj_reward.config import FailureConfig, JudgeConfig, RewardConfig
from autoj_reward.models.spec import judge_spec
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


def generate_bodies(count: int, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """Yield (path, body): valid bodies with some of their values, names or bytes changed."""
    rng = random.Random(seed)
    for _ in range(count):
        path = rng.choice(list(VALID))
        body = json.loads(json.dumps(VALID[path]))
        for _ in range(rng.randrange(4)):
            body = _change_value(body, rng)
        text = json.dumps(body).encode()
        yield path, _break_bytes(text, rng) if rng.random() < 0.3 else text


def _change_value(value: Any, rng: random.Random) -> Any:
    """Return the value with one place in it changed."""
    if rng.random() < 0.3 or not isinstance(value, dict | list) or not value:
        return rng.choice(ODD)
    if isinstance(value, list):
        where = rng.randrange(len(value))
        again = [value[where]] * rng.choice((0, 1, 1, 2, 30))
        return [*value[:where], *(_change_value(v, rng) for v in again), *value[where + 1 :]]
    name = rng.choice(list(value))
    changed = dict(value)
    kind = rng.randrange(4)
    if kind == 0:
        del changed[name]
    elif kind == 1:
        changed[str(rng.choice(ODD))[:50]] = value[name]
    else:
        changed[name] = _change_value(value[name], rng)
    return changed


def _break_bytes(text: bytes, rng: random.Random) -> bytes:
    """Return the bytes cut off, with bytes inserted, rotated, or nested deeply."""
    kind, where = rng.randrange(4), rng.randrange(len(text) + 1)
    if kind == 0:
        return text[:where]
    if kind == 1:
        return text[:where] + rng.randbytes(rng.randrange(1, 8)) + text[where:]
    if kind == 2:
        return text[where:] + text[:where]
    return b"[" * rng.randrange(1, 3000) + text


async def test_no_body_breaks_the_service() -> None:
    judge = JudgeConfig(kind="fake")
    app = make_app(JudgeClient(LocalBackend(judge_spec(judge))), "secret")
    model = RewardModel(RewardConfig(judge=judge, failures=FailureConfig(budget=1.0)))
    add_routes(app, model)
    statuses: Counter[int] = Counter()
    client = httpx.AsyncClient(
        transport=httpx.ASGITransport(app.guard),
        base_url="http://service",
        headers={"Authorization": "Bearer secret"},
    )
    async with client as session:
        with model:
            for path, body in generate_bodies(2000):
                answer = await session.post(path, content=body)
                statuses[answer.status_code] += 1
                content = answer.content
                assert b"Traceback" not in content and b'File "' not in content, (
                    path,
                    body[:500],
                    content,
                )
                assert answer.status_code in (200, 400, 422), (path, body[:500], content)
                if path != "/v1/judge" or answer.status_code != 200:
                    json.loads(content)
    assert statuses[200] > 200 and statuses[422] > 200
