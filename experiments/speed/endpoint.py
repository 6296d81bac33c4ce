"""Scripted OpenAI-compatible endpoint: the same critique for every request, after a fixed time.

    python -m experiments.speed.endpoint LATENCY_S

It serves /v1/chat/completions on a free port of the loopback interface and prints the port. Answers
are built once, so that the endpoint's own work disturbs the caller as little as possible.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from aiohttp import web

RATING = 7
"""Rating in every answer."""
CRITIQUE = f"""The response answers the question that the user asked, and its tone is friendly \
and clear. It names the two causes that matter most, and the order in which it explains them makes \
the text easy to follow. However, there are a few points where it falls short:

1. It states that one cause is "always" the main one, without a reason or an example; a reader who \
has seen the opposite would not be convinced.
2. The steps in the second paragraph are sound, but it is not said how long each of them takes, \
nor how one would notice that it has worked.
3. The last sentence repeats the first one and adds nothing new.

The response would be better with one concrete example, a rough estimate of the time for each \
step, and a shorter ending. Overall it is helpful and accurate, although it leaves out details \
that the user would need.

Rating: [[{RATING}]]"""
"""Text of every answer."""
RATING_PROBS = {7: 0.62, 8: 0.21, 6: 0.12, 5: 0.03, 9: 0.01}
"""Probabilities of the tokens at the rating. Other tokens share the rest."""
EXPECTED = sum(n * p for n, p in RATING_PROBS.items()) / sum(RATING_PROBS.values())
"""Expected rating that a caller computes from the alternatives."""
_TOKEN = re.compile(r"\[\[|\]\]| ?\w+|\n+| ?[^\w\s]+")


def tokens() -> list[str]:
    """Return the critique in pieces of about the size of a model's tokens."""
    return _TOKEN.findall(CRITIQUE)


@lru_cache
def answer(top: int) -> bytes:
    """Return the body of an answer with `top` alternatives per token; 0 for none."""
    written = tokens()
    choice: dict[str, Any] = {
        "index": 0,
        "message": {"role": "assistant", "content": CRITIQUE, "refusal": None},
        "finish_reason": "stop",
        "logprobs": None,
    }
    if top:
        choice["logprobs"] = {"content": [_logprobs(token, written, top) for token in written]}
    usage = {"prompt_tokens": 420, "completion_tokens": len(written)}
    usage["total_tokens"] = sum(usage.values())
    told = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "judge"}
    return json.dumps(told | {"choices": [choice], "usage": usage}, separators=(",", ":")).encode()


def _logprobs(token: str, others: list[str], top: int) -> dict[str, Any]:
    """Return one written token with its alternatives, the most probable first."""
    probs = {str(n): p for n, p in RATING_PROBS.items()} if token == str(RATING) else {token: 0.8}
    fillers = [other for other in dict.fromkeys(others) if other not in probs]
    rest = (1 - sum(probs.values())) / 2
    for filler in fillers[: max(0, top - len(probs))]:
        probs[filler] = rest
        rest /= 2
    told = [_token(text, p) for text, p in list(probs.items())[:top]]
    return told[0] | {"top_logprobs": told}


def _token(text: str, p: float) -> dict[str, Any]:
    return {"token": text, "logprob": math.log(p), "bytes": list(text.encode())}


def scripted_app(latency_s: float) -> web.Application:
    """Return an app with only POST /v1/chat/completions, answered after latency_s."""

    async def complete(request: web.Request) -> web.Response:
        asked = json.loads(await request.read())
        top = int(asked.get("top_logprobs", 0)) if asked.get("logprobs") else 0
        await asyncio.sleep(latency_s)
        return web.Response(body=answer(top), content_type="application/json")

    app = web.Application(client_max_size=2**24)
    app.router.add_post("/v1/chat/completions", complete)
    return app


async def _serve(latency_s: float) -> None:
    runner = web.AppRunner(scripted_app(latency_s), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


@contextmanager
def endpoint(latency_s: float) -> Iterator[str]:
    """Run the endpoint in a separate process, and yield its base URL."""
    command = [sys.executable, "-m", "experiments.speed.endpoint", str(latency_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        finally:
            process.kill()


@contextmanager
def serve_app(app: web.Application) -> Iterator[tuple[str, asyncio.AbstractEventLoop]]:
    """Serve an app in a thread of this process. Yield its address and its event loop."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)  # 0 would wait without end

    async def start() -> int:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
        return int(runner.addresses[0][1])

    try:
        port = asyncio.run_coroutine_threadsafe(start(), loop).result()
        yield f"http://127.0.0.1:{port}", loop
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


if __name__ == "__main__":
    asyncio.run(_serve(float(sys.argv[1])))
