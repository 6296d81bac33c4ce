"""Server of `autoj watch RUN`: a page about a run, on this machine only, until SIGINT or SIGTERM.

The page itself contains nothing of the run and needs no token. Its requests for data carry a token,
which stands behind the `#` of the printed address. Browsers do not send that part of an address.
"""

from __future__ import annotations

import secrets
import signal
import socket
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response

from autoj_reward.errors import InputError
from autoj_reward.io.files import to_compact_json
from autoj_reward.logs import LOG
from autoj_reward.service.gateway import Guard, Limits
from autoj_reward.service.metrics import Metrics
from autoj_reward.service.serve import listen, make_server
from autoj_reward.watch.answers import Answers
from autoj_reward.watch.page import document, headers
from autoj_reward.watch.run import Run

HOST = "127.0.0.1"
"""Address that the server listens on."""
LOOK_S = 1.0
"""Seconds between two reads of the run's files."""
REQUESTS = 64
"""Maximum requests in flight."""


def main(path: str, port: int) -> int:
    """Serve the page of a run until SIGINT or SIGTERM. Returns the exit status."""
    token, end = secrets.token_urlsafe(24), threading.Event()
    with closing(Run(Path(path))) as run, listen(HOST, port) as listening:
        address = f"http://{HOST}:{listening.getsockname()[1]}/#{token}"
        server = make_server(page_app(run, token), drain_s=1)
        arguments = server, listening, end
        serving = threading.Thread(target=_serve, args=arguments, name="autoj-watch")

        def stop(number: int, frame: Any) -> None:
            # `_serve` sets `end`: the lock of an Event may be held where a handler interrupts.
            server.should_exit = True

        old_handlers = {n: signal.signal(n, stop) for n in (signal.SIGINT, signal.SIGTERM)}
        serving.start()
        print(f"{path}: {address}", flush=True)
        try:
            _follow(run, end)
        finally:
            server.should_exit = True
            serving.join()
            for number, handler in old_handlers.items():
                signal.signal(number, handler)
    return 0


def _serve(server: uvicorn.Server, listening: socket.socket, end: threading.Event) -> None:
    try:
        server.run([listening])
    finally:
        end.set()


def _follow(run: Run, end: threading.Event) -> None:
    """Read the run's files again and again until `end` is set."""
    while not end.is_set():
        try:
            more = run.refresh()
        except Exception as error:  # an unexpected file must not stop the server
            LOG.exception("the run cannot be read")
            run.trouble, more = f"{type(error).__name__}: {error}", False
        if not more:
            end.wait(LOOK_S)


def page_app(run: Run, token: str) -> Guard:
    """Return the app: the page at `/`, and answers under `/api` to requests with the token."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    answers, page = Answers(run), document()

    @app.get("/")
    def show() -> Response:
        return Response(page, headers=headers(), media_type="text/html")

    @app.get("/api/{name}")
    def ask(name: str, request: Request) -> Response:
        try:
            answer = answers.answer(name, dict(request.query_params))
        except InputError as error:
            refusal = to_compact_json({"detail": str(error)})
            return Response(refusal, 422, media_type="application/json")
        plain = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
        body = to_compact_json(answer, finite=True)
        return Response(body, headers=plain, media_type="application/json")

    return Guard(app, token, Metrics(), Limits(requests=REQUESTS), public=("/",))
