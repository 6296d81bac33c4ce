"""Routes whose only argument is the request's body: checked as FastAPI checks it, in a third of
the time, since nothing is looked for in the address, the headers or dependencies."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, get_type_hints

from fastapi import HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from autoj_reward.edge.responses import App, Message, Receive, Send

Endpoint = Callable[..., Coroutine[Any, Any, Response]]


class BodyRoute(APIRoute):
    """A route of `endpoint(body)`, which answers with a Response."""

    def __init__(self, path: str, endpoint: Endpoint, **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        kinds = get_type_hints(endpoint)
        if list(kinds) == ["body", "return"]:
            self.app = _app(TypeAdapter(kinds["body"]), endpoint)


def _app(shape: TypeAdapter[Any], answer: Endpoint) -> App:
    """What raises is told by the handlers of the app that the route is of."""

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        try:
            checked = shape.validate_python(_parsed(await Request(scope, receive).body()))
        except ValidationError as error:
            found = error.errors(include_url=False)
            wrong = [{**one, "loc": ("body", *one["loc"])} for one in found]
            raise RequestValidationError(wrong) from None
        response = await answer(checked)
        await response(scope, receive, send)

    return app


def _parsed(body: bytes) -> Any:
    """RequestValidationError for what is no JSON, HTTPException for what is no text.

    Of 60 MiB the loop waits a third of the time that `json` takes, which is left to what is wrong
    and to what only it reads: other encodings, and half of a surrogate pair.
    """
    with suppress(ValueError):
        return from_json(body)
    try:
        text = body.decode(json.detect_encoding(body), "surrogatepass")
        del body  # a large one is not held beside what is made of it
        return json.loads(text)
    except json.JSONDecodeError as error:
        wrong = {"type": "json_invalid", "loc": ("body", error.pos), "msg": error.msg}
        raise RequestValidationError([wrong]) from None
    except (ValueError, RecursionError):
        raise HTTPException(400, "the body cannot be read as JSON") from None
