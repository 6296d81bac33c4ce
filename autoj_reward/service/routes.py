"""Routes that keep no bytes of a request while it is judged."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Coroutine
from itertools import islice
from typing import Any, get_type_hints

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

RouteFunction = Callable[..., Coroutine[Any, Any, Any]]
"""An endpoint of the app. It returns a Response, or a value to send as JSON."""
MAX_VALUES = 2**17
"""Limit on the values of a body: 128 for each of 1,024 judge inputs. Names, arrays and objects
count too. 64 MiB of `[],` would take 1.3 GiB and two seconds to parse."""
_VALUE = re.compile(r'[\[{,]|"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
"""Something that adds a value to a JSON text: a bracket, a comma, or a string as a whole."""


class BodyRoute(APIRoute):
    """A route `endpoint(body)` or `endpoint(body, request)` that drops the request's bytes as soon
    as they have been parsed.

    FastAPI's own handler keeps them until the answer is sent, which takes as long as judging does:
    requests in flight would hold every text twice. Endpoints with other parameters use FastAPI's
    handler.
    """

    def __init__(self, path: str, endpoint: RouteFunction, **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        kinds = get_type_hints(endpoint)
        if list(kinds) in (["body", "return"], ["body", "request", "return"]):
            self.app = _make_body_app(TypeAdapter(kinds["body"]), endpoint, "request" in kinds)


def _make_body_app(shape: TypeAdapter[Any], endpoint: RouteFunction, with_request: bool) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            checked_body = shape.validate_python(_parse_body(await Request(scope, receive).body()))
        except RecursionError:
            raise HTTPException(400, "the body is nested too deeply") from None
        except ValidationError as error:
            errors = error.errors(include_url=False)
            located_errors = [{**item, "loc": ("body", *item["loc"])} for item in errors]
            raise RequestValidationError(located_errors) from None
        # This request has headers and no body.
        answer = await endpoint(checked_body, *([Request(scope)] if with_request else ()))
        response = answer if isinstance(answer, Response) else JSONResponse(answer)
        await response(scope, receive, send)

    return app


def _parse_body(body: bytes) -> Any:
    """Parse a body as JSON.

    Raises RequestValidationError for invalid JSON, HTTPException for undecodable bytes (400) and
    for more than MAX_VALUES values (413), RecursionError for nesting that is too deep.
    """
    try:
        text = body.decode(json.detect_encoding(body), "surrogatepass")
        del body  # do not hold a large body while its JSON is parsed
        if next(islice(_VALUE.finditer(text), MAX_VALUES, None), None):
            raise HTTPException(413, f"the body has more than {MAX_VALUES} values")
        return json.loads(text)
    except json.JSONDecodeError as error:
        json_error = {"type": "json_invalid", "loc": ("body", error.pos), "msg": error.msg}
        raise RequestValidationError([json_error]) from None
    except ValueError:
        raise HTTPException(400, "the body cannot be read as JSON") from None
