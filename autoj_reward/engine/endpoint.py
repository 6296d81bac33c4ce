"""HTTP requests to an OpenAI-compatible endpoint, with retries and classified errors.

A server that is down or busy is retried until the judgement's deadline: no connection, status 429
or 5xx. An answer that is empty, malformed or an error is asked for three times. A
refusal of a parameter is learned: see `refusals`. A refusal of one input raises InputRejected, if a
request of two words passes. A fault of key, model, quota or parameters raises ConfigError.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from autoj_reward.config import EngineConfig
from autoj_reward.config.urls import parse_base_url
from autoj_reward.engine.answers import (
    NO_COMPLETION,
    BadAnswer,
    ErrorAnswer,
    describe_fault,
    read_generations,
)
from autoj_reward.engine.keys import Credentials
from autoj_reward.engine.refusals import (
    BUSY,
    KEY,
    LOGPROBS,
    OF_PARAMETERS,
    OF_SAMPLING,
    PARAMETER_FALLBACKS,
    REFUSED,
    REMEDIES,
    SYSTEM,
    UNROUTED,
    UNTIMELY,
    Refusal,
    Replacement,
    find_replacement,
    read_refusal,
    refusal_in,
)
from autoj_reward.errors import ConfigError, EngineUnavailable, InputRejected
from autoj_reward.formats.render import fold_system
from autoj_reward.io.backoff import Backoff
from autoj_reward.io.http import NO_ANSWER, error_text, post, read_json, retry_after_s, session
from autoj_reward.logs import LOG
from autoj_reward.processes import processes

T = TypeVar("T")
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
TRIES = 3
"""Requests after which an answer that is empty, malformed or an error is given up."""
ALIKE = 3
"""Different inputs whose equal refusal is no input's fault, if two words are refused too."""
UNREACHED_PAUSE_S = 4.0
"""Maximum of the backoff while nothing answers at all: such an attempt burdens no server, and the
run goes on soon after a restart."""
TOLD_EVERY_S = 60.0
"""Minimum seconds between two warnings about an endpoint that does not answer."""
MINUTE_S = 60.0
MEDIA_TOKENS = 1000
"""Estimate of the tokens of a picture, until the endpoint tells those of the request."""
MAX_BODY = 2**26
"""Bytes of an answer that are read at most."""
EVENT_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")
"""What the first line of a stream of server-sent events begins with."""


class EndpointFault(ConfigError):
    """A fault of key, quota or model that no retry mends. The same command goes on once the cause
    is gone."""

    def __init__(self, words: str, remedy: str) -> None:
        super().__init__(f"{words}: {remedy}; then the same command goes on")


@dataclass(slots=True)
class _Request:
    """A request with what became of its attempts."""

    path: str
    body: Mapping[str, Any]
    deadline: float
    """On `time.monotonic`."""
    tiny: bool = False
    """Whether the input is known to be acceptable."""
    exact: bool = False
    """Whether the user's fields may not replace those of the body."""
    sent_at: float = 0.0
    faults: int = 0
    """Attempts that ended by a fault of the endpoint, other than being down or busy."""
    refused_keys: int = 0


class Endpoint:
    """HTTP client of one endpoint. Limits concurrency and request rate, retries, and learns what
    the endpoint refuses."""

    def __init__(
        self, config: EngineConfig, at_once: int, deadline_s: float, first_pause_s: float
    ) -> None:
        """Create the client; `open` must follow.

        at_once: maximum requests in flight. deadline_s: seconds for one request, including retries.
        first_pause_s: seconds before the second attempt; the pause doubles with each attempt.
        """
        self._config, self._deadline_s = config, deadline_s
        self._free = InFlightLimit(at_once)
        self._pace = RateLimiter(config.requests_per_minute, config.tokens_per_minute)
        self._first_pause_s = first_pause_s
        self._credentials = Credentials(config)
        self._warned_at = -TOLD_EVERY_S
        self._testing = asyncio.Lock()
        template = config.chat_template_kwargs
        self._chat_fields = {"chat_template_kwargs": template} if template else {}
        self._chat_fields |= config.extra_body
        self._answered_at = 0.0
        self._accepted: dict[int | None, Mapping[str, Any]] = {}
        self._refusals_since_test = ALIKE
        self._alike: dict[str, set[int]] = {}
        self._learned: list[tuple[str, str]] = []
        self.instead: dict[str, Replacement] = {}
        """What the endpoint refused, with what is sent in its place. For `system`, the role whose
        message takes the text."""
        self.problem = ""
        """Reason why the endpoint does not answer at the moment; empty if it does."""

    async def open(self) -> None:
        """Read the API key and create the session, without any request. Raises ConfigError."""
        headers = await self._credentials.read()
        self._base = parse_base_url(str(self._config.base_url), "base_url")
        # A server that sends its answer byte by byte is left at the deadline of a judgement.
        answer_s = min(ANSWER_S, self._deadline_s)
        self._session = session(
            self._base, headers=headers, connect_s=CONNECT_S, total_s=answer_s, proxies=True
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
        exact: bool = False,
    ) -> T:
        """Send a request and return `read_answer(answer, seconds waited for a free slot)`.

        deadline_s: seconds before giving up; by default the judgement's. tiny: whether the input is
        known to be acceptable, so that a refusal concerns the parameters. exact: whether the fields
        of the body come before the user's. Raises EngineUnavailable when the deadline has passed,
        or after TRIES answers that `read_answer` cannot read. Raises InputRejected or ConfigError
        as the module's docstring says.
        """
        wait_s, size = 0.0, _estimate_tokens(body)
        backoff = Backoff(self._first_pause_s, LONGEST_PAUSE_S)
        started = time.monotonic()
        deadline = started + (deadline_s or self._deadline_s)
        request = _Request(path, body, deadline, tiny, exact)
        while True:
            asked_at = time.monotonic()
            await self._pace.take(size)
            await self._free.take()
            request.sent_at = time.monotonic()
            wait_s += request.sent_at - asked_at
            key, sent_body = self._credentials.key, self._adapt(body)
            try:
                status, data, headers, problem, timed_out = await self._send(request, sent_body)
            finally:
                self._free.give()
            if timed_out or status in BUSY:
                self._free.fall(request.sent_at)
            refusal = None
            if 200 <= status < 300:
                try:
                    answer = _parse(data)
                    result = read_answer(answer, wait_s)
                except NO_COMPLETION as error:
                    problem = (
                        f"an answer that is no completion "
                        f"({self._hide_secrets(describe_fault(error))}): "
                        f"{self._quote(status, data)}"
                    )
                    if isinstance(error, ErrorAnswer):
                        refusal = refusal_in(error.content, error.status)
                else:
                    self._pace.correct(size, _read_total_tokens(answer))
                    self._note_success(request)
                    return result
            elif status:
                refusal = read_refusal(status, data)
            if refusal and refusal.is_of_key:
                await self._renew_key(request, key, f"answered {self._quote(status, data)}")
                continue
            if refusal and not await self._settle(request, sent_body, refusal, data):
                continue
            if 200 <= status < 300 and not (refusal and refusal.status):
                self._count_fault(request, problem)
            if status == 429:  # the endpoint is up, and busy
                request.deadline = max(request.deadline, started + self._deadline_s)
            self._tell(path, problem or f"status {self._quote(status, data)}")
            pause_s = _compute_pause(backoff, status, headers)
            if time.monotonic() + pause_s >= request.deadline:
                raise EngineUnavailable(
                    f"{self.address(path)}: no answer within {deadline_s or self._deadline_s:g} s; "
                    f"last: {self.problem}"
                )
            await asyncio.sleep(pause_s)

    async def _send(
        self, request: _Request, body: Mapping[str, Any]
    ) -> tuple[int, bytes, Mapping[str, str], str, bool]:
        """Send one adapted body. Return (status, body, headers, problem, whether time ran out).

        Without an answer the status is 0 and `problem` says why.
        """
        full_body = self._add_fields({"model": self._config.model, **body}, request)
        try:
            url = self._base.at(request.path)
            async with post(self._session, url, full_body) as reply:
                data = await _read_body(reply)
                return reply.status, data, reply.headers, "", False
        except NO_ANSWER as error:
            timed_out = isinstance(error, TimeoutError)
            return 0, b"", {}, self._hide_secrets(error_text(error)), timed_out

    def _add_fields(self, body: dict[str, Any], request: _Request) -> dict[str, Any]:
        """Return a body with the user's fields. null leaves out a field."""
        own = self._chat_fields if "messages" in body else self._config.extra_body
        if not own:
            return body
        merged = {**own, **body} if request.exact else {**body, **own}
        dropped = {name for name, value in own.items() if value is None}
        return {name: value for name, value in merged.items() if name not in dropped}

    def _adapt(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the body with what this endpoint accepts."""
        if not self.instead:
            return body
        adapted: dict[str, Any] = {}
        for name, value in body.items():
            replacement = self.instead.get(name, name)
            if isinstance(replacement, str):
                adapted[replacement] = value
            elif replacement is not None:
                adapted[name] = replacement
        if SYSTEM in self.instead and "messages" in adapted:
            adapted["messages"] = fold_system(adapted["messages"])
        return adapted

    def _note_success(self, request: _Request) -> None:
        self._free.grow()
        self.problem = ""
        self._answered_at = time.monotonic()
        self._accepted[request.body.get("max_tokens")] = request.body
        self._refusals_since_test = ALIKE
        if self._alike:
            self._alike.clear()
        if self._learned:
            self._tell_learned(request)

    def _count_fault(self, request: _Request, problem: str) -> None:
        """Count a fault of the endpoint, and raise EngineUnavailable if it is one too many."""
        request.faults += 1
        if request.faults == TRIES:
            self._tell(request.path, problem)
            raise EngineUnavailable(
                f"{self.address(request.path)}: {TRIES} times {problem}"
            ) from None

    async def _renew_key(self, request: _Request, refused_key: str, words: str) -> None:
        """Read the key again. Raises ConfigError if there is no other one."""
        request.refused_keys += 1
        if request.refused_keys < TRIES and await self._credentials.renew(refused_key):
            self._session.headers.update(self._credentials.authorization)
            return
        raise EndpointFault(f"{self.address(request.path)} {words}", REMEDIES[KEY])

    async def _settle(
        self, request: _Request, sent_body: Mapping[str, Any], refusal: Refusal, data: bytes
    ) -> bool:
        """Handle an answer with an error status. Return whether a pause comes before the next
        attempt.

        Raises InputRejected or ConfigError where there can be none.
        """
        status, body = refusal.status, request.body
        words = f"{self.address(request.path)} answered {self._quote(status, data)}"
        if cause := refusal.cause:
            raise EndpointFault(words, REMEDIES[cause])
        if status != 429:
            # Servers of models that read text alone refuse media by any status, also 500.
            if _holds_media(body) and refusal.is_of_media:
                raise InputRejected(words)
            if sent_body != self._adapt(body):
                return False  # another request's refusal has changed the parameters meanwhile
            if self._learn(refusal, sent_body, request):
                return False
        is_empty = status == 429 and bool(refusal.likely_cause)
        if not status or (status == 429 and not is_empty) or status >= 500:
            return True
        if status not in REFUSED and not is_empty:
            raise ConfigError(f"{words}; {REMEDIES['']}")
        if status in UNROUTED and request.faults + 1 < TRIES:
            self._count_fault(request, words)
            return True
        if request.tiny:
            if status in UNTIMELY:
                return True
            raise self._explain_first_refusal(words, refusal)
        # Refusals that come together are settled by one test.
        async with self._testing:
            if sent_body != self._adapt(body):
                return False
            # An account may run empty while earlier requests are still answered.
            of_account = bool(refusal.likely_cause)
            is_up = not of_account and self._answered_at >= request.sent_at
            if is_up or await self._takes_two_words(request, anew=of_account):
                if is_empty:
                    return True
                if status in UNTIMELY:
                    raise EngineUnavailable(f"{words}, {TRIES} times; it answers two words")
                raise InputRejected(words)
        if not self._was_accepted(body, status):
            raise self._explain_first_refusal(words, refusal)
        inputs = self._alike.setdefault(refusal.gist, set())
        inputs.add(hash(str(body.get("messages") or body.get("prompt"))))
        if len(inputs) >= ALIKE:
            words += f", to {ALIKE} different inputs and to a request of two words alike"
            raise EndpointFault(words, REMEDIES[refusal.likely_cause])
        if not is_empty:
            self._count_fault(request, f"a refusal, of two words as well ({words})")
        return True

    def _explain_first_refusal(self, words: str, refusal: Refusal) -> ConfigError:
        if refusal.status not in OF_PARAMETERS or refusal.likely_cause:
            remedy = REMEDIES[refusal.likely_cause]
            if refusal.status == 404 and not refusal.likely_cause and not self._base.path:
                remedy = (
                    f"most servers answer below /v1: try base_url {self._base.root}/v1; {remedy}"
                )
            return ConfigError(f"{words}; {remedy}")
        return ConfigError(
            f"{words}, and it refuses a request of two words with these parameters as well: "
            "change what it names (max_tokens, model and the like)"
        )

    def _was_accepted(self, body: Mapping[str, Any], status: int) -> bool:
        """Return whether the endpoint has answered a request with these parameters before."""
        if status not in OF_PARAMETERS:  # it says nothing about parameters
            return self._answered_at > 0
        accepted = self._accepted.get(body.get("max_tokens"), {})
        return _list_parameters(accepted) == _list_parameters(body)

    def _learn(self, refusal: Refusal, sent_body: Mapping[str, Any], request: _Request) -> bool:
        """Learn what to send in place of what was refused. Return whether anything was learned."""
        may_change = {*PARAMETER_FALLBACKS, *PARAMETER_FALLBACKS.values()}
        users = self._chat_fields if "messages" in sent_body else self._config.extra_body
        names = [name for name in sent_body if name in may_change and name not in users]
        full_body = {**sent_body, **users}
        found = find_replacement(refusal, full_body, names, request.tiny)
        if found is None:
            return False
        name, replacement = found
        # What is refused may itself stand for something that was: then nothing is sent.
        parameter = next((k for k, v in self.instead.items() if v == name), name)
        if parameter in self.instead:
            replacement = None
        for refused_name in LOGPROBS if parameter in LOGPROBS else (parameter,):
            self.instead[refused_name] = replacement
        if name not in CONTINUE_PARAMETERS:
            self._learned.append((parameter, refusal.words))
        return True

    def _tell_learned(self, request: _Request) -> None:
        """Log in one line what the endpoint refuses, and what is sent from now on."""
        learned, self._learned = self._learned, []
        changes = []
        for name in dict(learned):
            replacement = self.instead.get(name)
            if name == SYSTEM:
                changes.append("the system message stands in the first user message")
            elif isinstance(replacement, str):
                changes.append(f"{name} is sent as {replacement}")
            elif replacement is None:
                changes.append(f"{name} is left out")
            else:
                changes.append(f"{name} is {replacement:g}")
        refusals = "; ".join(dict.fromkeys(_in_one_line(words[:200]) for _, words in learned))
        repeatable = not any(name in OF_SAMPLING for name, _ in learned)
        LOG.warning(
            "%s refused parameters (%s): from now on %s%s",
            self.address(request.path),
            self._hide_secrets(refusals),
            ", ".join(changes),
            "" if repeatable else ". Sampling cannot be fixed, so verdicts are not repeatable",
        )

    async def _takes_two_words(self, request: _Request, anew: bool) -> bool:
        """Return whether the endpoint answers a minimal request with the same parameters.

        Unless `anew` asks for a new one, one that has just passed stands for the refusals that
        follow it, until as many come as may mean another fault. Raises ConfigError for a fault that
        no retry mends, EngineUnavailable at the deadline.
        """
        if not anew and self._refusals_since_test < ALIKE - 1:
            self._refusals_since_test += 1
            return True
        body = {n: v for n, v in request.body.items() if n not in CONTINUE_PARAMETERS}
        if "messages" in body:
            body["messages"] = TEST_MESSAGES
        else:
            body["prompt"] = body["prompt"][:1]
        try:
            left_s = max(0.1, request.deadline - time.monotonic())
            await self.post(request.path, body, read_generations, left_s, tiny=True)
        except EndpointFault:
            raise
        except ConfigError:
            return False
        self._refusals_since_test = 0
        return True

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
        text = self._hide_secrets(data.decode("utf-8", "replace"))
        return f"{status}: {_in_one_line(text[:300])}"

    def _hide_secrets(self, text: str) -> str:
        return self._base.hide_secrets(text, *self._credentials.secrets)


def _in_one_line(text: str) -> str:
    """Return a text with a space for each run of white space, so that a log has one line."""
    return " ".join(text.split())


def _parse(data: bytes) -> Any:
    try:
        return read_json(data)
    except ValueError as error:
        if data.lstrip().startswith(EVENT_FIELDS):
            raise BadAnswer(
                "server-sent events in place of one answer: if the endpoint streams by default, "
                "set judge.extra_body: {stream: false}"
            ) from None
        raise BadAnswer(f"no JSON: {error}") from None


async def _read_body(reply: Any) -> bytes:
    """Return the body of a reply. Raises OSError for one that is longer than MAX_BODY."""
    length = reply.content_length
    if length is not None and length <= MAX_BODY:
        return bytes(await reply.read())
    parts: list[bytes] = []
    size = 0
    async for chunk in reply.content.iter_any():
        size += len(chunk)
        if size > MAX_BODY:
            raise OSError(f"the answer is longer than {MAX_BODY >> 20} MiB")
        parts.append(chunk)
    return b"".join(parts)


def _list_parameters(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request's parameters, without its input."""
    return {name: value for name, value in body.items() if name not in INPUT}


def _compute_pause(backoff: Backoff, status: int, headers: Mapping[str, str]) -> float:
    """Return the seconds until the next attempt; at least those of Retry-After.

    status: that of the failed attempt; 0 if nothing answered.
    """
    longest_s = LONGEST_PAUSE_S if status else UNREACHED_PAUSE_S
    return backoff.next_s(retry_after_s(headers, LONGEST_WAIT_S), longest_s)


def _estimate_tokens(body: Mapping[str, Any]) -> int:
    """Estimate the tokens that a request may cost."""
    tokens = int(body["max_tokens"])
    if prompt := body.get("prompt"):
        return tokens + len(prompt)
    for message in body["messages"]:
        content = message["content"]
        if isinstance(content, str):
            tokens += len(content) // 4
            continue
        for part in content:
            tokens += len(part["text"]) // 4 if part["type"] == "text" else MEDIA_TOKENS
    return tokens


def _holds_media(body: Mapping[str, Any]) -> bool:
    return any(not isinstance(message["content"], str) for message in body.get("messages", ()))


def _read_total_tokens(answer: Any) -> int | None:
    usage = answer.get("usage") if isinstance(answer, dict) else None
    total_tokens = usage.get("total_tokens") if isinstance(usage, dict) else None
    return total_tokens if isinstance(total_tokens, int) else None


class InFlightLimit:
    """Limit on the requests in flight. It halves when the server is overloaded, and grows back with
    each answer. Slow answers alone change nothing."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._limit = float(most)
        self._step = max(1.0, most / 16)
        """By how much the limit grows while as many answers come as it allows at once."""
        self._used = 0
        self._fell_at = 0.0
        self._queue: deque[asyncio.Future[None]] = deque()

    @property
    def limit(self) -> int:
        """Requests that may be in flight now."""
        return int(self._limit)

    async def take(self) -> None:
        """Wait for a free slot and take it."""
        if self._used < int(self._limit) and not self._queue:
            self._used += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give()
            raise

    def give(self) -> None:
        """Free a slot."""
        self._used -= 1
        self._wake()

    def grow(self) -> None:
        """Note an answer."""
        if self._limit < self._most:
            self._limit = min(float(self._most), self._limit + self._step / self._limit)
            self._wake()

    def fall(self, sent_at: float) -> None:
        """Note that the server was overloaded. sent_at: when the request was sent that it met.

        Requests that were sent before the last fall tell nothing new.
        """
        if sent_at > self._fell_at:
            self._fell_at = time.monotonic()
            self._limit = max(1.0, self._limit / 2)

    def _wake(self) -> None:
        while self._queue and self._used < int(self._limit):
            turn = self._queue.popleft()
            if not turn.done():
                self._used += 1
                turn.set_result(None)


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
