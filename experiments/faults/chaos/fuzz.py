"""Bodies that no caller should send, made from those that callers do: same seed, same bodies."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

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
Post = Callable[[str, bytes], Awaitable[tuple[int, bytes]]]
"""Sends a body to a path: status and body of the answer."""


def bodies(count: int, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """(path, body): valid ones with some of their values, names or bytes changed."""
    drawn = random.Random(seed)
    for _ in range(count):
        path = drawn.choice(list(VALID))
        body = json.loads(json.dumps(VALID[path]))
        for _ in range(drawn.randrange(4)):
            body = _changed(body, drawn)
        text = json.dumps(body).encode()
        yield path, _torn(text, drawn) if drawn.random() < 0.3 else text


def _changed(value: Any, drawn: random.Random) -> Any:
    """The value with one place in it changed."""
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
    """The bytes cut off, with some of them changed, or inside out."""
    kind, where = drawn.randrange(4), drawn.randrange(len(text) + 1)
    if kind == 0:
        return text[:where]
    if kind == 1:
        return text[:where] + drawn.randbytes(drawn.randrange(1, 8)) + text[where:]
    if kind == 2:
        return text[where:] + text[:where]
    return b"[" * drawn.randrange(1, 3000) + text


async def run(post: Post, count: int, seed: int = 0) -> Counter[int]:
    """Send so many bodies; how many had each status. ValueError naming the first that was answered
    with a server error, without JSON, or with a stack trace."""
    statuses: Counter[int] = Counter()
    for path, body in bodies(count, seed):
        status, told = await post(path, body)
        statuses[status] += 1
        if status >= 500 or b"Traceback" in told or b'File "' in told:
            raise ValueError(f"{path} answered {status} {told[:200]!r} to {body[:500]!r}")
        if path != "/v1/judge" or status != 200:
            json.loads(told)
    return statuses
