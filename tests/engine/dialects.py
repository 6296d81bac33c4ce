"""Chat endpoints that answer by a table of rules, as providers and servers do in the field."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from tests.engine.test_openai_engine import Answer, Endpoint

GOOD_TEXT = "It is fine.\n\nRating: [[7]]"
TINY_CHARS = 40
"""A user message shorter than this is that of a request of two words."""
Condition = Callable[[Any, dict[str, Any]], bool]


def user_text(body: Mapping[str, Any]) -> str:
    return str([m["content"] for m in body["messages"] if m["role"] == "user"][-1])


CONDITIONS: Mapping[str, Condition] = {
    "has_all": lambda names, body: all(name in body for name in names),
    "has_any": lambda names, body: any(name in body for name in names),
    "equal": lambda fields, body: all(body.get(k) == v for k, v in fields.items()),
    "not_equal": lambda fields, body: any(body.get(k) != v for k, v in fields.items()),
    "role": lambda role, body: any(m["role"] == role for m in body["messages"]),
    "contains": lambda text, body: text in user_text(body),
    "tiny": lambda tiny, body: tiny == (len(user_text(body)) < TINY_CHARS),
}
"""Conditions on a request's body, by name."""


def good_answer(**choice: Any) -> dict[str, Any]:
    """Return a completion that rates a response 7. choice: other values of its choice."""
    message = {"role": "assistant", "content": GOOD_TEXT}
    whole = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
    usage = {"prompt_tokens": 50, "completion_tokens": 9, "total_tokens": 59}
    return {"id": "x", "object": "chat.completion", "choices": [whole | choice], "usage": usage}


class RuledEndpoint(Endpoint):
    """Endpoint that gives the answer of the first rule that fits a request, else a good one.

    A rule fits if all conditions under `if` hold. Besides CONDITIONS there are `key`: the bearer
    token; `times`: only the first K requests for which the others hold; `after`: only after K of
    them. It answers with `status` (200), `headers`, and `json`, `text`, or `choice`: a good answer
    with these values in its choice.
    """

    def __init__(self, rules: list[dict[str, Any]]) -> None:
        super().__init__()
        self._rules = rules
        self._fitted: Counter[int] = Counter()
        self.judged = 0
        """Requests that were judgements, so far."""
        self.on_judgement: Callable[[int], object] = lambda count: None
        """Called with that number after each of them, before its answer."""
        self.answer = self._answer_by_rules
        # A run that ends leaves requests behind, whose connections break.
        self.server.handle_error = lambda *_: None  # type: ignore[method-assign]

    def _answer_by_rules(self, path: str, body: dict[str, Any]) -> Answer:
        answer = self._find_answer(body)
        if len(user_text(body)) >= TINY_CHARS:
            self.judged += 1
            self.on_judgement(self.judged)
        return answer

    def _find_answer(self, body: dict[str, Any]) -> Answer:
        for place, rule in enumerate(self._rules):
            if self._fits(place, rule.get("if", {}), body):
                data = rule.get("text", rule.get("json"))
                if "choice" in rule:
                    data = good_answer(**rule["choice"])
                return rule.get("status", 200), data, rule.get("headers", {})
        return 200, good_answer(), {}

    def _fits(self, place: int, conditions: Mapping[str, Any], body: dict[str, Any]) -> bool:
        for name, value in conditions.items():
            if name in CONDITIONS and not CONDITIONS[name](value, body):
                return False
        if "key" in conditions and self.last_key != conditions["key"]:
            return False
        self._fitted[place] += 1
        count = self._fitted[place]
        return count <= conditions.get("times", count) and count > conditions.get("after", 0)

    @property
    def last_key(self) -> str:
        """The bearer token of the request that is being answered."""
        _, _, headers = self.requests[-1]
        return headers.get("Authorization", "").removeprefix("Bearer ")


def as_lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)
