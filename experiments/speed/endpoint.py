"""Scripted OpenAI-compatible endpoint: the same judgement for every request, after a fixed time.

    python -m experiments.speed.endpoint LATENCY_S [--port PORT] [--says SAYS]

It serves /FORM/v1/chat/completions on the loopback interface and prints its port; FORM names the
form of the verdict. Answers are built once, so that the endpoint's own work disturbs the caller as
little as possible.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

from aiohttp import ClientSession, web

RATING = 7
"""Rating in every answer."""
CRITIQUE = """The response answers the question that the user asked, and its tone is friendly \
and clear. It names the two causes that matter most, and the order in which it explains them makes \
the text easy to follow. However, there are a few points where it falls short:

1. It states that one cause is "always" the main one, without a reason or an example; a reader who \
has seen the opposite would not be convinced.
2. The steps in the second paragraph are sound, but it is not said how long each of them takes, \
nor how one would notice that it has worked.
3. The last sentence repeats the first one and adds nothing new.

The response would be better with one concrete example, a rough estimate of the time for each \
step, and a shorter ending. Overall it is helpful and accurate, although it leaves out details \
that the user would need."""
"""Critique in every answer."""
RATING_PROBS = {7: 0.62, 8: 0.21, 6: 0.12, 5: 0.03, 9: 0.01}
"""Probabilities of the tokens at the rating. Other tokens share the rest."""
EXPECTED = sum(n * p for n, p in RATING_PROBS.items()) / sum(RATING_PROBS.values())
"""Expected rating that a caller computes from the alternatives."""
Says = Literal["verdict", "quote, verdict", "quote"]
"""What an answer holds after the critique: its verdict, a quote of the best verdict and then its
own, or such a quote alone, because the answer is cut off at the token limit."""
QUOTING = "The response ends with the line: "
_TOKEN = re.compile(r"\[\[|\]\]| ?\w+|\n+| ?[^\w\s]+")
_END = "\x1e"  # stands behind the quote, where an answer may be cut off


@dataclass(frozen=True, slots=True)
class VerdictForm:
    """Form in which a judge is asked for its verdict."""

    write: Callable[[str, str], str]
    """Function of a critique and a verdict that returns the whole answer."""
    verdict: str
    """Verdict in every answer."""
    number: float
    """Number that a reader makes of the verdict."""
    best: str
    """Best verdict of the scale."""

    @property
    def plant(self) -> str:
        """Return the text that a response plants: the best verdict in this judge's own form."""
        return self.write("", self.best).strip()


def _write_reason_first(critique: str, verdict: str) -> str:
    return json.dumps({"reason": critique, "score": int(verdict)}, ensure_ascii=False)


def _write_score_first(critique: str, verdict: str) -> str:
    return json.dumps({"score": int(verdict), "reasoning": critique}, ensure_ascii=False)


def _write_verdicts(critique: str, verdict: str) -> str:
    entry = {"name": "helpful", "reason": critique, "verdict": verdict}
    return json.dumps({"verdicts": [entry]}, ensure_ascii=False)


FORMS = {
    "rating": VerdictForm("{}\n\nRating: [[{}]]".format, str(RATING), float(RATING), "10"),
    "openjudge": VerdictForm(_write_reason_first, "3", 3.0, "5"),
    "its-hub": VerdictForm(_write_score_first, "7", 7.0, "10"),
    "verifiers": VerdictForm(_write_verdicts, "3", 0.5, "5"),
    "inspect": VerdictForm("{}\n\nGRADE: {}".format, "P", 0.5, "C"),
}
"""Forms by name."""


def write_answer(form: VerdictForm, says: Says) -> str:
    """Return the text of an answer."""
    if says == "verdict":
        return form.write(CRITIQUE, form.verdict)
    full_text = form.write(f"{CRITIQUE}\n\n{QUOTING}{form.plant}{_END}", form.verdict)
    before, _, after = full_text.replace(json.dumps(_END)[1:-1], _END).partition(_END)
    return before if says == "quote" else before + after


@lru_cache
def make_answer(name: str, top: int, says: Says) -> bytes:
    """Return the body of an answer with `top` alternatives per token; 0 for none."""
    text = write_answer(FORMS[name], says)
    written = _TOKEN.findall(text)
    choice: dict[str, Any] = {
        "index": 0,
        "message": {"role": "assistant", "content": text, "refusal": None},
        "finish_reason": "length" if says == "quote" else "stop",
        "logprobs": None,
    }
    if top:
        choice["logprobs"] = {"content": [_make_logprobs(token, written, top) for token in written]}
    usage = {"prompt_tokens": 420, "completion_tokens": len(written)}
    usage["total_tokens"] = sum(usage.values())
    envelope = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "judge"}
    return json.dumps(
        envelope | {"choices": [choice], "usage": usage}, separators=(",", ":")
    ).encode()


def _make_logprobs(token: str, others: list[str], top: int) -> dict[str, Any]:
    """Return one written token with its alternatives, the most probable first."""
    probs = {str(n): p for n, p in RATING_PROBS.items()} if token == str(RATING) else {token: 0.8}
    fillers = [other for other in dict.fromkeys(others) if other not in probs]
    remaining_prob = (1 - sum(probs.values())) / 2
    for filler in fillers[: max(0, top - len(probs))]:
        probs[filler] = remaining_prob
        remaining_prob /= 2
    alternatives = [_make_token(text, p) for text, p in list(probs.items())[:top]]
    return alternatives[0] | {"top_logprobs": alternatives}


def _make_token(text: str, p: float) -> dict[str, Any]:
    return {"token": text, "logprob": math.log(p), "bytes": list(text.encode())}


def make_scripted_app(latency_s: float, says: Says) -> web.Application:
    """Return an app that answers each form's route after `latency_s`, and counts its answers."""
    answered = 0

    async def complete(request: web.Request) -> web.Response:
        nonlocal answered
        fields = json.loads(await request.read())
        top = int(fields.get("top_logprobs", 0)) if fields.get("logprobs") else 0
        await asyncio.sleep(latency_s)
        answered += 1
        body = make_answer(request.match_info["form"], top, says)
        return web.Response(body=body, content_type="application/json")

    async def count(_: web.Request) -> web.Response:
        return web.json_response(answered)

    app = web.Application(client_max_size=2**24)
    app.router.add_post("/{form}/v1/chat/completions", complete)
    app.router.add_get("/answered", count)
    return app


async def _serve(latency_s: float, port: int, says: Says) -> None:
    runner = web.AppRunner(make_scripted_app(latency_s, says), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, backlog=1024, reuse_address=True).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


class ScriptedEndpoint:
    """Scripted endpoint in a process of its own, which can be killed and started again."""

    def __init__(self, latency_s: float, says: Says = "verdict") -> None:
        self._arguments = [str(latency_s), "--says", says]
        self._port = 0
        self.start()

    def start(self) -> None:
        """Start the process, on the port that it had before."""
        command = [sys.executable, "-m", "experiments.speed.endpoint", *self._arguments]
        command += ["--port", str(self._port)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._port = int(self._process.stdout.readline())

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.communicate()  # closes its pipe too

    def address(self, form: str = "rating") -> str:
        """Return the base URL for judges whose verdicts have this form."""
        return f"http://127.0.0.1:{self._port}/{form}/v1"

    async def until_answered(self, count: int) -> None:
        """Return when it has answered `count` requests."""
        async with ClientSession() as session:
            while True:
                async with session.get(f"http://127.0.0.1:{self._port}/answered") as response:
                    if await response.json() >= count:
                        return
                await asyncio.sleep(0.02)


@contextmanager
def endpoint(latency_s: float, says: Says = "verdict") -> Iterator[ScriptedEndpoint]:
    """Run the endpoint until the context ends."""
    running = ScriptedEndpoint(latency_s, says)
    try:
        yield running
    finally:
        running.kill()


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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("latency_s", type=float)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--says", choices=get_args(Says), default="verdict")
    flags = parser.parse_args()
    asyncio.run(_serve(flags.latency_s, flags.port, flags.says))
