"""Routes that keep no bytes of a request while it is judged."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any, get_type_hints

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

RouteFunction = Callable[..., Coroutine[Any, Any, Response]]
"""An endpoint of the app."""


class BodyRoute(APIRoute):
    """A route `endpoint(body)` or `endpoint(body, request)` that returns a Response and drops the
    request's bytes as soon as they have been parsed.

    FastAPI's own handler keeps them until the answer is sent, which takes as long as judging does:
    requests in flight would hold every text twice. Endpoints with other parameters use FastAPI's
    handler.
    """

    def __init__(self, path: str, endpoint: RouteFunction, **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        kinds = get_type_hints(endpoint)
        asked = list(kinds)
        if asked in (["body", "return"], ["body", "request", "return"]) and (
            kinds["return"] is Response
        ):
            self.app = _body_app(TypeAdapter(kinds["body"]), endpoint, "request" in kinds)


def _body_app(shape: TypeAdapter[Any], endpoint: RouteFunction, with_request: bool) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            checked = shape.validate_python(_parsed(await Request(scope, receive).body()))
        except ValidationError as error:
            found = error.errors(include_url=False)
            wrong = [{**one, "loc": ("body", *one["loc"])} for one in found]
            raise RequestValidationError(wrong) from None
        # This request has headers and no body.
        response = await endpoint(checked, *([Request(scope)] if with_request else ()))
        await response(scope, receive, send)

    return app


def _parsed(body: bytes) -> Any:
    """Parse a body as JSON.

    Raises RequestValidationError for invalid JSON, HTTPException (400) for undecodable bytes or
    nesting that is too deep.
    """
    try:
        text = body.decode(json.detect_encoding(body), "surrogatepass")
        del body  # do not hold a large body while its JSON is parsed
        return json.loads(text)
    except json.JSONDecodeError as error:
        wrong = {"type": "json_invalid", "loc": ("body", error.pos), "msg": error.msg}
        raise RequestValidationError([wrong]) from None
    except (ValueError, RecursionError):
        raise HTTPException(400, "the body cannot be read as JSON") from None
