"""FastAPI routes that hold the body of a request only once."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any, get_type_hints

from fastapi import HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.types import ASGIApp, Receive, Scope, Send

Endpoint = Callable[..., Coroutine[Any, Any, Response]]


class BodyRoute(APIRoute):
    """A route of `endpoint(body)`, whose bytes are dropped as soon as they have been read.

    FastAPI's own handler keeps them until the answer is there, which takes as long as judging does:
    requests in flight would hold every text twice. Other endpoints stay FastAPI's.
    """

    def __init__(self, path: str, endpoint: Endpoint, **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        kinds = get_type_hints(endpoint)
        if list(kinds) == ["body", "return"]:
            self.app = _app(TypeAdapter(kinds["body"]), endpoint)


def _app(shape: TypeAdapter[Any], endpoint: Endpoint) -> ASGIApp:
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
