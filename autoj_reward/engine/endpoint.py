"""HTTP requests to an OpenAI-compatible endpoint, with retries and classified errors.

Temporary faults are retried until the judgement's deadline: no connection, status 408, 409, 425,
429 or 5xx. An answer that came whole and is no completion is asked for three times. If the server
refuses this input, InputRejected is raised. If it refuses a parameter, the key or the model,
ConfigError is raised with the server's message.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from autoj_reward.config import EngineConfig
from autoj_reward.config.urls import parse_base_url
from autoj_reward.engine.answers import NO_COMPLETION, describe_fault
from autoj_reward.errors import ConfigError, EngineUnavailable, InputRejected
from autoj_reward.io.backoff import Backoff
from autoj_reward.io.http import NO_ANSWER, error_text, post, read_json, retry_after_s, session
from autoj_reward.logs import LOG
from autoj_reward.processes import processes

T = TypeVar("T")
REFUSED = (400, 413, 422)
"""Statuses with which an endpoint refuses a request."""
PASSING = (408, 409, 425, 429)
"""Statuses that are retried, besides every 5xx."""
RESPONSE_FORMAT = "response_format"
"""Parameter that holds the JSON schema of the answer."""
PARAMETER_FALLBACKS: Mapping[str, str | None] = {
    "max_tokens": "max_completion_tokens",
    "temperature": None,
    "top_p": None,
    "seed": None,
    "n": None,
    "frequency_penalty": None,
    "logprobs": None,
    "top_logprobs": None,
    "return_tokens_as_token_ids": None,
    RESPONSE_FORMAT: None,
}
"""Parameters that some endpoints do not support: the name to send in their place, or None to omit
them."""
UNKNOWN = re.compile(
    r"un(?:supported|recognized|known|expected)|not (?:be )?(?:supported|permitted|allowed|enabled)"
    r"|(?:does|do)(?: not|n't) support|extra (?:inputs|fields)|no longer",
    re.IGNORECASE,
)
"""Wording of a refusal that is about an unsupported parameter."""
NO_SCHEMA = re.compile(r"response[_ ]format|json[_ ]schema", re.IGNORECASE)
"""Wording of a refusal that is about the schema. The schema is this package's own, so no such
refusal is the user's to correct, whatever its other words are."""
LOGPROBS = ("logprobs", "top_logprobs")
INPUT = ("messages", "prompt", "seed")
"""Body fields that differ from one request to the next."""
CONTINUE_PARAMETERS = {"continue_final_message": True, "add_generation_prompt": False}
"""Parameters that make vLLM and SGLang continue the assistant's last message."""
TEST_MESSAGES = [{"role": "user", "content": "Say OK."}]
"""Messages of a minimal test request."""
CONNECT_S, ANSWER_S = 10.0, 600.0
"""Timeouts in seconds for a connection and for an answer; afterwards the request is retried."""
LONGEST_PAUSE_S, LONGEST_WAIT_S = 30.0, 600.0
"""Maximum seconds between two attempts: by exponential backoff, and by Retry-After."""
COMPLETION_TRIES = 3
"""Requests after which an answer that came whole and is no completion is given up."""
UNREACHED_PAUSE_S = 4.0
"""Maximum of the backoff while nothing answers at all: such an attempt burdens no server, and the
run goes on soon after a restart."""
TOLD_EVERY_S = 60.0
"""Minimum seconds between two warnings about an endpoint that does not answer."""
MINUTE_S = 60.0


class Endpoint:
    """HTTP client of one endpoint. Limits concurrency and request rate, retries, and learns which
    parameters are supported."""

    def __init__(
        self, config: EngineConfig, at_once: int, deadline_s: float, first_pause_s: float
    ) -> None:
        """Create the client; `open` must follow.

        at_once: maximum requests in flight. deadline_s: seconds for one request, including retries.
        first_pause_s: seconds before the second attempt; the pause doubles with each attempt.
        """
        self._config, self._deadline_s = config, deadline_s
        self._free = asyncio.Semaphore(at_once)
        self._pace = RateLimiter(config.requests_per_minute, config.tokens_per_minute)
        self._first_pause_s = first_pause_s
        self._key, self._warned_at = "", -TOLD_EVERY_S
        self._accepted_parameters: set[str] = set()
        self._testing = asyncio.Lock()
        self.instead: dict[str, str | None] = {}
        """Parameters that the endpoint refused, with what is sent in their place."""
        self.problem = ""
        """Reason why the endpoint does not answer at the moment; empty if it does."""

    def open(self) -> None:
        """Read the API key and create the session, without any request. Raises ConfigError."""
        headers = {}
        if name := self._config.api_key_env:
            self._key = _read_key(name)
            headers["Authorization"] = f"Bearer {self._key}"
        self._base = parse_base_url(str(self._config.base_url), "base_url")
        self._session = session(
            self._base, headers=headers, connect_s=CONNECT_S, total_s=ANSWER_S, proxies=True
        )

    async def close(self) -> None:
        await self._session.close()

    @property
    def lacks_logprobs(self) -> bool:
        """Whether the endpoint refused to return log-probabilities."""
        return "logprobs" in self.instead

    def address(self, path: str) -> str:
        """Return the URL of a path as logs and errors show it."""
        return f"{self._base.root}{path}"

    async def post(
        self,
        path: str,
        body: Mapping[str, Any],
        read_answer: Callable[[dict[str, Any], float], T],
        deadline_s: float | None = None,
        tiny: bool = False,
    ) -> T:
        """Send a request and return `read_answer(answer, seconds waited for a free slot)`.

        deadline_s: seconds before giving up; by default the judgement's. tiny: whether the input is
        known to be acceptable, so that a refusal concerns the parameters. Raises EngineUnavailable
        when the deadline has passed, or after COMPLETION_TRIES answers that `read_answer` cannot
        read. Raises InputRejected or ConfigError as the module's docstring says.
        """
        wait_s, size = 0.0, _estimate_tokens(body)
        backoff = Backoff(self._first_pause_s, LONGEST_PAUSE_S)
        malformed_answers = 0
        started = time.monotonic()
        deadline = started + (deadline_s or self._deadline_s)
        while True:
            asked_at = time.monotonic()
            await self._pace.take(size)
            async with self._free:
                wait_s += time.monotonic() - asked_at
                sent_body = self._adapt(body)
                status, data, headers, problem = await self._send(path, sent_body)
            if status == 200:
                try:
                    answer = read_json(data)
                    result = read_answer(answer, wait_s)
                except NO_COMPLETION as error:
                    problem = (
                        f"an answer that is no completion "
                        f"({self._hide_secrets(describe_fault(error))}): "
                        f"{self._quote(status, data)}"
                    )
                    malformed_answers += 1
                    if malformed_answers == COMPLETION_TRIES:
                        self._tell(path, problem)
                        raise EngineUnavailable(
                            f"{self.address(path)}: {malformed_answers} times {problem}"
                        ) from None
                else:
                    self._pace.correct(size, _read_total_tokens(answer))
                    self.problem = ""
                    self._accepted_parameters.add(_dump_parameters(body))
                    return result
            elif status in REFUSED:
                await self._settle(path, body, sent_body, status, data, deadline, tiny)
                continue
            elif status and not (status in PASSING or status >= 500):
                raise ConfigError(
                    f"{self.address(path)} answered {self._quote(status, data)}; check base_url, "
                    "model and api_key_env"
                )
            if status == 429:  # the endpoint is up, and busy
                deadline = max(deadline, started + self._deadline_s)
            self._tell(path, problem or f"status {self._quote(status, data)}")
            pause_s = _compute_pause(backoff, status, headers)
            if time.monotonic() + pause_s >= deadline:
                raise EngineUnavailable(
                    f"{self.address(path)}: no answer within {deadline_s or self._deadline_s:g} s; "
                    f"last: {self.problem}"
                )
            await asyncio.sleep(pause_s)

    async def _send(
        self, path: str, body: Mapping[str, Any]
    ) -> tuple[int, bytes, Mapping[str, str], str]:
        """Send one adapted request. Return (status, body, headers, problem).

        Without an answer the status is 0 and `problem` says why.
        """
        full_body = {"model": self._config.model, **body}
        try:
            async with post(self._session, self._base.at(path), full_body) as reply:
                return reply.status, await reply.read(), reply.headers, ""
        except NO_ANSWER as error:
            return 0, b"", {}, self._hide_secrets(error_text(error))

    def _adapt(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the body with the parameters that this endpoint supports."""
        names = ((self.instead.get(name, name), value) for name, value in body.items())
        return {name: value for name, value in names if name is not None}

    async def _settle(
        self,
        path: str,
        body: Mapping[str, Any],
        sent_body: Mapping[str, Any],
        status: int,
        data: bytes,
        deadline: float,
        tiny: bool,
    ) -> None:
        """Handle a refusal of `sent_body`, the adapted form of `body`. Return if a parameter was
        removed or renamed, so that the request can be sent again.

        Otherwise raise InputRejected or ConfigError.
        """
        if sent_body != self._adapt(body):
            return  # another request's refusal has changed the parameters meanwhile
        refusal = f"{self.address(path)} answered {self._quote(status, data)}"
        if (name := _find_refused_parameter(data, sent_body)) is not None:
            parameter = next((k for k, v in self.instead.items() if v == name), name)
            fallback = PARAMETER_FALLBACKS[parameter] if parameter == name else None
            refused_names = LOGPROBS if parameter in LOGPROBS else (parameter,)
            self.instead |= dict.fromkeys(refused_names, fallback)
            LOG.warning(
                "%s; from now on %s is %s",
                refusal,
                name,
                f"sent as {fallback}" if fallback else "left out",
            )
            return
        # Refusals that come together are settled by one test.
        async with self._testing:
            is_known = _dump_parameters(body) in self._accepted_parameters
            if tiny or not (is_known or await self._takes_anything(path, body, deadline)):
                raise ConfigError(
                    f"{refusal}, and it refuses a request of two words with these parameters as "
                    "well: change what it names (max_tokens, model and the like)"
                )
            self._accepted_parameters.add(_dump_parameters(body))
        raise InputRejected(refusal)

    async def _takes_anything(self, path: str, body: Mapping[str, Any], deadline: float) -> bool:
        """Return whether the endpoint answers a minimal request with the same parameters."""
        tiny = {name: value for name, value in body.items() if name not in CONTINUE_PARAMETERS}
        if "messages" in tiny:
            tiny["messages"] = TEST_MESSAGES
        else:
            tiny["prompt"] = body["prompt"][:1]
        backoff = Backoff(self._first_pause_s, LONGEST_PAUSE_S)
        while time.monotonic() < deadline:
            async with self._free:
                status, data, headers, problem = await self._send(path, self._adapt(tiny))
            if status == 200:
                return True
            if status in REFUSED:
                return False
            self._tell(path, problem or f"status {self._quote(status, data)}")
            await asyncio.sleep(_compute_pause(backoff, status, headers))
        raise EngineUnavailable(f"{self.address(path)}: no answer; last: {self.problem}")

    def _tell(self, path: str, problem: str) -> None:
        self.problem = problem
        if (now := time.monotonic()) - self._warned_at >= TOLD_EVERY_S:
            self._warned_at = now
            LOG.warning(
                "%s does not answer (%s): retrying for up to %g s per judgement",
                self.address(path),
                problem,
                self._deadline_s,
            )

    def _quote(self, status: int, data: bytes) -> str:
        """Return the status and the start of the body, without secrets."""
        return f"{status}: {self._hide_secrets(data.decode('utf-8', 'replace'))[:300]}"

    def _hide_secrets(self, text: str) -> str:
        return self._base.hide_secrets(text, self._key)


def _dump_parameters(body: Mapping[str, Any]) -> str:
    """Return a request's parameters, without its input, as canonical JSON."""
    parameters = {name: value for name, value in body.items() if name not in INPUT}
    return json.dumps(parameters, sort_keys=True)


def _read_key(name: str) -> str:
    key = os.environ.get(name, "").strip()
    if not key:
        raise ConfigError(f"api_key_env names {name}, which is not set in the environment")
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"the key in {name} holds characters that no HTTP header can carry")
    return key


def _find_refused_parameter(data: bytes, body: Mapping[str, Any]) -> str | None:
    """Return the body parameter that a refusal calls unsupported; None if it may not be omitted or
    renamed."""
    may_go = {*PARAMETER_FALLBACKS, *(other for other in PARAMETER_FALLBACKS.values() if other)}
    names = [name for name in body if name in may_go]
    text = data.decode("utf-8", "replace")
    try:
        error = read_json(data)
        error = error.get("error", error) if isinstance(error, dict) else {}
        stated = error.get("param") if isinstance(error, dict) else None
        words = str(error.get("message") or text) if isinstance(error, dict) else text
    except ValueError:
        stated, words = None, text
    if RESPONSE_FORMAT in body and (stated == RESPONSE_FORMAT or NO_SCHEMA.search(words)):
        return RESPONSE_FORMAT
    if not UNKNOWN.search(words):
        return None
    if stated in names:
        return str(stated)
    mentioned_names = (
        n
        for n in sorted(names, key=len, reverse=True)
        if re.search(rf"\b{n}\b", words, re.IGNORECASE)
    )
    return next(mentioned_names, None)


def _compute_pause(backoff: Backoff, status: int, headers: Mapping[str, str]) -> float:
    """Return the seconds until the next attempt; at least those of Retry-After.

    status: that of the failed attempt; 0 if nothing answered.
    """
    longest_s = LONGEST_PAUSE_S if status else UNREACHED_PAUSE_S
    return backoff.next_s(retry_after_s(headers, LONGEST_WAIT_S), longest_s)


def _estimate_tokens(body: Mapping[str, Any]) -> int:
    """Estimate the tokens that a request may cost."""
    prompt = body.get("prompt")
    prompt_tokens = len(prompt) if prompt else sum(len(m["content"]) for m in body["messages"]) // 4
    return prompt_tokens + int(body["max_tokens"]) * int(body.get("n", 1))


def _read_total_tokens(answer: dict[str, Any]) -> int | None:
    total_tokens = (answer.get("usage") or {}).get("total_tokens")
    return total_tokens if isinstance(total_tokens, int) else None


class RateLimiter:
    """Rate limiter: spreads requests evenly over the minute.

    The processes of one run share the limits equally.
    """

    def __init__(self, requests: float | None, tokens: float | None) -> None:
        """Set the limits. requests, tokens: maximum per minute; None means no limit."""
        share_s = MINUTE_S * processes()
        self._request_s = share_s / requests if requests else 0.0
        self._token_s = share_s / tokens if tokens else 0.0
        self._free_at = 0.0

    async def take(self, tokens: int) -> None:
        """Wait until a request that may cost `tokens` tokens is allowed."""
        if not (self._request_s or self._token_s):
            return
        now = time.monotonic()
        turn = max(now, self._free_at)
        self._free_at = turn + max(self._request_s, tokens * self._token_s)
        await asyncio.sleep(turn - now)

    def correct(self, expected: int, spent: int | None) -> None:
        """Return the unused part of a request's estimate to the limit.

        expected, spent: tokens; `spent` is None if the endpoint did not report them.
        """
        if spent is not None and spent < expected:
            reserved_s = max(self._request_s, expected * self._token_s)
            self._free_at -= reserved_s - max(self._request_s, spent * self._token_s)
