"""Bodies drawn from the OpenAPI page itself are answered, or refused with the field."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from autoj_reward.config import JudgeConfig
from autoj_reward.serve.backend import LocalBackend
from autoj_reward.serve.client import RewardClient
from autoj_reward.serve.http import make_app
from autoj_reward.serve.replica import JudgeReplica

HEADERS = {"Authorization": "Bearer secret"}
APP = make_app(RewardClient(LocalBackend(JudgeReplica(JudgeConfig(kind="fake")))), "secret")
PAGE = APP.openapi()
PATHS = [path for path, found in PAGE["paths"].items() if "post" in found]


def schema_of(path: str) -> dict[str, Any]:
    body: dict[str, Any] = PAGE["paths"][path]["post"]["requestBody"]
    return dict(body["content"]["application/json"]["schema"])


def drawn(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that a schema of the page allows; lists and texts kept short."""
    if "$ref" in schema:
        return st.deferred(lambda: drawn(resolved(schema["$ref"])))
    if "anyOf" in schema:
        return st.one_of(*map(drawn, schema["anyOf"]))
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kind = schema["type"]
    if kind == "object":
        fields = {name: drawn(field) for name, field in schema["properties"].items()}
        must = set(schema.get("required", ()))
        return st.fixed_dictionaries(
            {name: fields[name] for name in must},
            optional={name: field for name, field in fields.items() if name not in must},
        )
    if kind == "array":
        least, most = schema.get("minItems", 0), min(3, schema.get("maxItems", 3))
        return st.lists(drawn(schema["items"]), min_size=least, max_size=most)
    return {
        "string": st.text(max_size=20),
        "integer": st.integers(schema.get("minimum", -9), schema.get("maximum", 9)),
        "number": st.floats(allow_nan=False, allow_infinity=False),
        "boolean": st.booleans(),
        "null": st.none(),
    }[kind]


def resolved(reference: str) -> dict[str, Any]:
    found: dict[str, Any] = PAGE["components"]["schemas"][reference.rpartition("/")[2]]
    return found


def post(path: str, body: Any) -> httpx.Response:
    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(APP.guard)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return await client.post(path, json=body, headers=HEADERS)

    return asyncio.run(run())


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_what_the_page_allows_is_answered(path: str, data: st.DataObject) -> None:
    body = data.draw(drawn(schema_of(path)))
    answer = post(path, body)
    pairs = body.get("policy_logprobs")
    if pairs is not None and len(pairs) != len(body["responses"]):  # no schema can say so
        assert answer.status_code == 422 and "policy_logprobs" in answer.json()["detail"]
        return
    items = body.get("items", ())
    if any(item.get("direct") and len(item["responses"]) == 2 for item in items):  # nor this
        assert answer.status_code == 422 and "direct" in answer.json()["detail"]
        return
    assert answer.status_code == 200, answer.text
    if path != "/v1/judge":
        shown = PAGE["paths"][path]["post"]["responses"]["200"]["content"]["application/json"]
        schema = shown["schema"] | {"components": PAGE["components"]}
        Draft202012Validator(schema).validate(answer.json())


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=60, deadline=None)
@given(
    body=st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=5) | st.integers(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
        max_leaves=6,
    )
)
def test_any_other_json_is_refused(path: str, body: Any) -> None:
    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(APP.guard)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return await client.post(path, content=json.dumps(body), headers=HEADERS)

    answer = asyncio.run(run())
    assert answer.status_code == 422 and answer.json()["detail"]
