"""Requests to an OpenAI-compatible endpoint: retried while that helps, refused in the right words.

A fault that passes (no connection, 408, 409, 425, 429, any 5xx, an answer that is none) is asked
again until the deadline of the judgement. What the server refuses of this input is InputRejected;
what it refuses of a parameter, a key or the model is a ConfigError with its words.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from autoj_reward.config import EngineConfig
from autoj_reward.config.urls import parse_base_url
from autoj_reward.errors import ConfigError, EngineUnavailable, InputRejected
from autoj_reward.io.http import NO_ANSWER, error_text, post, read_json, retry_after_s, session
from autoj_reward.logs import LOG
from autoj_reward.processes import processes

T = TypeVar("T")
REFUSED = (400, 413, 422)
PASSING = (408, 409, 425, 429)
"""Statuses that pass, beside every 5xx."""
INSTEAD: Mapping[str, str | None] = {
    "max_tokens": "max_completion_tokens",
    "temperature": None,
    "top_p": None,
    "seed": None,
    "n": None,
    "frequency_penalty": None,
    "logprobs": None,
    "top_logprobs": None,
    "return_tokens_as_token_ids": None,
}
"""Parameters that some endpoints do not know: what is sent in their place, or nothing."""
UNKNOWN = re.compile(
    r"un(?:supported|recognized|known|expected)|not (?:be )?(?:supported|permitted|allowed|enabled)"
    r"|(?:does|do)(?: not|n't) support|extra (?:inputs|fields)|no longer",
    re.IGNORECASE,
)
LOGPROBS = ("logprobs", "top_logprobs")
INPUT = ("messages", "prompt", "seed")
"""What differs from one request to the next."""
GOING_ON = {"continue_final_message": True, "add_generation_prompt": False}
"""Makes vLLM and SGLang go on with the assistant's last message."""
TINY = [{"role": "user", "content": "Say OK."}]
CONNECT_S, ANSWER_S = 10.0, 600.0
"""Seconds until a connection, and an answer, is given up and asked for again."""
LONGEST_PAUSE_S, LONGEST_WAIT_S = 30.0, 600.0
"""Seconds between two attempts at most: by our own growing pauses, and by Retry-After."""
TOLD_EVERY_S = 60.0
"""Seconds between two lines in the log on an endpoint that does not answer."""
MINUTE_S = 60.0


class Endpoint:
    """The HTTP side of one endpoint.

    problem: what keeps it from answering at the moment; empty if nothing does. instead: parameters
    that it refused, with what is sent in their place.
    """

    def __init__(
        self, config: EngineConfig, at_once: int, deadline_s: float, first_pause_s: float
    ) -> None:
        """at_once: requests in flight. deadline_s: seconds that one request may take, retries
        included. first_pause_s: wait before the second attempt; it doubles from one to the next."""
        self._config, self._deadline_s = config, deadline_s
        self._free = asyncio.Semaphore(at_once)
        self._pace = Pace(config.requests_per_minute, config.tokens_per_minute)
        self._first_pause_s = first_pause_s
        self._key, self._told_at = "", -TOLD_EVERY_S
        self._taken: set[str] = set()
        self.instead: dict[str, str | None] = {}
        self.problem = ""

    def open(self) -> None:
        """Read the key and make the session; nobody is asked yet. Raises ConfigError."""
        headers = {}
        if name := self._config.api_key_env:
            self._key = _key_in(name)
            headers["Authorization"] = f"Bearer {self._key}"
        self._base = parse_base_url(str(self._config.base_url), "base_url")
        self._session = session(
            self._base, headers=headers, connect_s=CONNECT_S, total_s=ANSWER_S, proxies=True
        )

    async def close(self) -> None:
        await self._session.close()

    @property
    def lacks_logprobs(self) -> bool:
        """Whether it refused to tell log-probabilities."""
        return "logprobs" in self.instead

    def address(self, path: str) -> str:
        """The URL of a path, as logs and errors show it."""
        return f"{self._base.root}{path}"

    async def post(
        self,
        path: str,
        body: Mapping[str, Any],
        read: Callable[[dict[str, Any], float], T],
        deadline_s: float | None = None,
        tiny: bool = False,
    ) -> T:
        """Return what `read` makes of the answer and of the seconds of waiting for a free request.

        deadline_s: by default that of a judgement. tiny: whether the input is known to be good, so
        that a refusal is about the rest. Raises EngineUnavailable when it has passed,
        InputRejected and ConfigError as the module says.
        """
        wait_s, pause_s, size = 0.0, self._first_pause_s, _size(body)
        started = time.monotonic()
        deadline = started + (deadline_s or self._deadline_s)
        while True:
            asked_at = time.monotonic()
            await self._pace.take(size)
            async with self._free:
                wait_s += time.monotonic() - asked_at
                status, data, headers, problem = await self._send(path, body)
            if status == 200:
                try:
                    answer = read_json(data)
                    found = read(answer, wait_s)
                except (ValueError, KeyError, IndexError, TypeError, AttributeError):
                    problem = f"an answer that is no completion: {self._said(status, data)}"
                else:
                    self._pace.correct(size, _tokens(answer))
                    self.problem = ""
                    self._taken.add(_parameters(body))
                    return found
            elif status in REFUSED:
                await self._settle(path, body, status, data, deadline, tiny)
                continue
            elif status and not (status in PASSING or status >= 500):
                raise ConfigError(
                    f"{self.address(path)} answered {self._said(status, data)}; check base_url, "
                    "model and api_key_env"
                )
            if status == 429:  # it is there, and busy
                deadline = max(deadline, started + self._deadline_s)
            self._tell(path, problem or f"status {self._said(status, data)}")
            pause = max(retry_after_s(headers, LONGEST_WAIT_S), pause_s * random.uniform(0.5, 1.5))
            if time.monotonic() + pause >= deadline:
                raise EngineUnavailable(
                    f"{self.address(path)}: no answer within {deadline_s or self._deadline_s:g} s; "
                    f"last: {self.problem}"
                )
            await asyncio.sleep(pause)
            pause_s = min(LONGEST_PAUSE_S, pause_s * 2)

    async def _send(
        self, path: str, body: Mapping[str, Any]
    ) -> tuple[int, bytes, Mapping[str, str], str]:
        """Status (0 without an answer), body and headers of one answer, and why there is none."""
        sent = {"model": self._config.model, **self._adapted(body)}
        try:
            async with post(self._session, self._base.at(path), sent) as reply:
                return reply.status, await reply.read(), reply.headers, ""
        except NO_ANSWER as error:
            return 0, b"", {}, self._masked(error_text(error))

    def _adapted(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The body with the parameters that this endpoint takes."""
        names = ((self.instead.get(name, name), value) for name, value in body.items())
        return {name: value for name, value in names if name is not None}

    async def _settle(
        self,
        path: str,
        body: Mapping[str, Any],
        status: int,
        data: bytes,
        deadline: float,
        tiny: bool,
    ) -> None:
        """Find out what a refusal is about: return if a parameter was taken back, so that the same
        request may be sent again; else raise InputRejected or ConfigError."""
        said = f"{self.address(path)} answered {self._said(status, data)}"
        if (name := _parameter(data, self._adapted(body))) is not None:
            old = next((k for k, v in self.instead.items() if v == name), name)
            other = INSTEAD[old] if old == name else None
            together = LOGPROBS if old in LOGPROBS else (old,)
            self.instead |= dict.fromkeys(together, other)
            LOG.warning(
                "%s; from now on %s is %s", said, name, f"sent as {other}" if other else "left out"
            )
            return
        known = _parameters(body) in self._taken
        if tiny or not (known or await self._takes_anything(path, body, deadline)):
            raise ConfigError(
                f"{said}, and it refuses a request of two words with these parameters as well: "
                "change what it names (max_tokens, model and the like)"
            )
        self._taken.add(_parameters(body))
        raise InputRejected(said)

    async def _takes_anything(self, path: str, body: Mapping[str, Any], deadline: float) -> bool:
        """Whether the endpoint answers a tiny request with the same parameters."""
        tiny = {name: value for name, value in body.items() if name not in GOING_ON}
        if "messages" in tiny:
            tiny["messages"] = TINY
        else:
            tiny["prompt"] = body["prompt"][:1]
        pause_s = self._first_pause_s
        while time.monotonic() < deadline:
            async with self._free:
                status, data, headers, problem = await self._send(path, tiny)
            if status == 200:
                return True
            if status in REFUSED:
                return False
            self._tell(path, problem or f"status {self._said(status, data)}")
            await asyncio.sleep(max(retry_after_s(headers, LONGEST_WAIT_S), pause_s))
            pause_s = min(LONGEST_PAUSE_S, pause_s * 2)
        raise EngineUnavailable(f"{self.address(path)}: no answer; last: {self.problem}")

    def _tell(self, path: str, problem: str) -> None:
        self.problem = problem
        if (now := time.monotonic()) - self._told_at >= TOLD_EVERY_S:
            self._told_at = now
            LOG.warning(
                "%s does not answer (%s): asking again, for up to %g s a judgement",
                self.address(path),
                problem,
                self._deadline_s,
            )

    def _said(self, status: int, data: bytes) -> str:
        """Status and the head of the body, without what it must not repeat."""
        return f"{status}: {self._masked(data.decode('utf-8', 'replace'))[:300]}"

    def _masked(self, text: str) -> str:
        return self._base.hide_secrets(text, self._key)


def _parameters(body: Mapping[str, Any]) -> str:
    """What a request asks for, whatever its input."""
    own = {name: value for name, value in body.items() if name not in INPUT}
    return json.dumps(own, sort_keys=True)


def _key_in(name: str) -> str:
    key = os.environ.get(name, "").strip()
    if not key:
        raise ConfigError(f"api_key_env names {name}, which is not set in the environment")
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"the key in {name} holds characters that no HTTP header can carry")
    return key


def _parameter(data: bytes, body: Mapping[str, Any]) -> str | None:
    """The parameter of the body that a refusal says the endpoint does not know, if it may be left
    out or sent by another name."""
    may_go = {*INSTEAD, *(other for other in INSTEAD.values() if other)}
    names = [name for name in body if name in may_go]
    text = data.decode("utf-8", "replace")
    try:
        error = read_json(data)
        error = error.get("error", error) if isinstance(error, dict) else {}
        stated = error.get("param") if isinstance(error, dict) else None
        words = str(error.get("message") or text) if isinstance(error, dict) else text
    except ValueError:
        stated, words = None, text
    if not UNKNOWN.search(words):
        return None
    if stated in names:
        return str(stated)
    named = (
        n
        for n in sorted(names, key=len, reverse=True)
        if re.search(rf"\b{n}\b", words, re.IGNORECASE)
    )
    return next(named, None)


def _size(body: Mapping[str, Any]) -> int:
    """Tokens that a request may cost, by a rough count before it is sent."""
    prompt = body.get("prompt")
    given = len(prompt) if prompt else sum(len(m["content"]) for m in body["messages"]) // 4
    return given + int(body["max_tokens"]) * int(body.get("n", 1))


def _tokens(answer: dict[str, Any]) -> int | None:
    told = (answer.get("usage") or {}).get("total_tokens")
    return told if isinstance(told, int) else None


class Pace:
    """Lets requests through as fast as the limits allow, evenly over the minute.

    The processes of one run divide the limits between them.
    """

    def __init__(self, requests: float | None, tokens: float | None) -> None:
        """requests, tokens: most of them a minute; None: no limit."""
        share_s = MINUTE_S * processes()
        self._request_s = share_s / requests if requests else 0.0
        self._token_s = share_s / tokens if tokens else 0.0
        self._free_at = 0.0

    async def take(self, tokens: int) -> None:
        """Wait for the turn of a request that may cost so many tokens."""
        if not (self._request_s or self._token_s):
            return
        now = time.monotonic()
        turn = max(now, self._free_at)
        self._free_at = turn + max(self._request_s, tokens * self._token_s)
        await asyncio.sleep(turn - now)

    def correct(self, expected: int, spent: int | None) -> None:
        """Give back what a request did not cost. spent: tokens; None where it is not told."""
        if spent is not None and spent < expected:
            over = max(self._request_s, expected * self._token_s)
            self._free_at -= over - max(self._request_s, spent * self._token_s)
