"""A running reward service as a backend: what `make_app` serves, asked over HTTP."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import httpx

from autoj_reward.config import JudgeConfig, View
from autoj_reward.errors import (
    ConfigError,
    EngineError,
    EngineUnavailable,
    InputRejected,
    ReplicaLost,
)
from autoj_reward.journal import judgement_of
from autoj_reward.models.views import VIEWS
from autoj_reward.prompts.render import require_unicode
from autoj_reward.types import JudgeInput, Judgement, Outcome

JUDGE_HEADER = "x-autoj-judge"
"""In every answer of a service: the fingerprint of the judge that it asks now."""
JSON = {"Content-Type": "application/json"}
BUSY = (429, 502, 503, 504)


class HttpBackend:
    """A running reward service as a backend. Make one with `connect`."""

    replicas, problem = 1, ""

    def __init__(
        self,
        address: str,
        client: httpx.AsyncClient,
        transport: httpx.AsyncBaseTransport,
        judge: str,
        views: frozenset[View] = VIEWS,
        preferred: View | None = None,
    ) -> None:
        self._address, self._client, self._transport = address, client, transport
        self._post = client.build_request("POST", "/v1/judge")
        self.judge = judge
        self.views, self.preferred = views, preferred

    @classmethod
    async def connect(cls, address: str, token: str, start_s: float) -> HttpBackend:
        """Find the service. Raises EngineUnavailable naming the address if nobody answers within
        `start_s` seconds, ConfigError for a wrong token or address."""
        # Judging takes as long as it takes; the RewardClient keeps the deadline.
        limits = httpx.Limits(max_connections=None)
        transport = httpx.AsyncHTTPTransport(limits=limits, trust_env=False)
        client = httpx.AsyncClient(
            base_url=address,
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(None, connect=5.0),
            transport=transport,
        )
        deadline = time.monotonic() + start_s
        while True:
            try:
                answer = await client.get("/v1/judge", timeout=min(5.0, start_s))
                if answer.status_code == 401:
                    raise ConfigError(f"the reward service at {address} refuses the token")
                if answer.status_code == 200:
                    told = answer.json()
                    views = frozenset(told.get("views", VIEWS))
                    return cls(address, client, transport, told["judge"], views, told.get("view"))
                reason = f"HTTP {answer.status_code}"
            except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
                await client.aclose()
                raise ConfigError(f"service.address {address!r} is no URL: {error}") from error
            except httpx.HTTPError as error:
                reason = f"{type(error).__name__}: {error}"
            except (ValueError, KeyError, TypeError):
                reason = "it answers, but is no reward service"
            except ConfigError:
                await client.aclose()
                raise
            if time.monotonic() + 0.5 > deadline:
                await client.aclose()
                raise EngineUnavailable(
                    f"no reward service at {address} within {start_s:g} s ({reason}): start it "
                    "with `autoj serve`, or correct service.address"
                )
            await asyncio.sleep(0.5)

    async def stream(self, items: Sequence[JudgeInput]) -> AsyncGenerator[tuple[int, Judgement]]:
        """Answers as the service sends them; what it would reject is not sent. Of two halves of a
        surrogate pair it could not even know: they would arrive as one character.

        EngineUnavailable if the service refuses for now or is lost itself, ReplicaLost if a replica
        behind it went while it held the items.
        """
        readable = []
        for index, item in enumerate(items):
            if reason := unfit(item.untrusted):
                yield index, self._rejected(reason)
            else:
                readable.append(index)
        groups = [readable] if readable else []
        while groups:
            group = groups.pop()
            try:
                async with aclosing(self._posted([items[n] for n in group])) as answers:
                    async for n, judgement in answers:
                        yield group[n], judgement
            except InputRejected as error:  # the body of the whole group, so before any answer
                half = len(group) // 2
                if half:
                    groups += [group[half:], group[:half]]
                else:
                    yield group[0], self._rejected(str(error))

    def _rejected(self, reason: str) -> Judgement:
        return Judgement(Outcome.INPUT_REJECTED, reason=reason, judge=self.judge)

    async def _posted(self, items: Sequence[JudgeInput]) -> AsyncGenerator[tuple[int, Judgement]]:
        try:
            async with aclosing(await self._answer(items)) as answer:
                if answer.status_code == 413:
                    raise InputRejected(f"{self._address} takes no body of this input's size")
                if answer.status_code in BUSY:
                    raise _busy(self._address, answer)
                if answer.status_code != 200:
                    told = (await answer.aread())[:500].decode("utf-8", "replace")
                    raise EngineError(f"{self._address}: HTTP {answer.status_code}: {told}")
                self.judge = answer.headers.get(JUDGE_HEADER, self.judge)
                async for line in answer.aiter_lines():
                    yield self._read(line)
        except httpx.HTTPError as error:
            raise EngineUnavailable(
                f"the reward service at {self._address} was lost: {type(error).__name__}: {error}"
            ) from error

    async def _answer(self, items: Sequence[JudgeInput]) -> httpx.Response:
        """The head of an answer. By the client's own transport: what httpx does before it for any
        site (cookies, redirects, merged addresses) takes a third of the time of a request."""
        asked = {"items": [item.record() for item in items]}
        body = json.dumps(asked, separators=(",", ":")).encode()
        headers = {"Authorization": self._post.headers["Authorization"]} | JSON
        known = self._post.extensions
        post = httpx.Request(
            "POST", self._post.url, headers=headers, content=body, extensions=known
        )
        return await self._transport.handle_async_request(post)

    def _read(self, line: str) -> tuple[int, Judgement]:
        try:
            found = json.loads(line)
            if "judgement" in found:
                return found["index"], judgement_of(found["judgement"])
            [(kind, reason)] = found.items()
            error = {
                "unavailable": EngineUnavailable,
                "lost": ReplicaLost,
                "error": EngineError,
            }[kind]
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            raise EngineUnavailable(
                f"{self._address} answered what is no judgement: {line[:80]!r}"
            ) from problem
        raise error(f"{self._address}: {reason}")

    async def contact(self, known: Mapping[str, Any]) -> tuple[frozenset[View], Mapping[str, Any]]:
        """Return the numbers that the service's judge gives, as it says itself."""
        return self.views, {}

    async def check(self) -> int:
        try:
            answer = await self._client.get("/readyz", timeout=5)
        except httpx.HTTPError as error:
            raise EngineUnavailable(f"no reward service at {self._address}: {error}") from error
        if answer.status_code != 200:
            raise EngineUnavailable(f"{self._address}: not ready: HTTP {answer.status_code}")
        return 1

    async def update(self, config: JudgeConfig) -> None:
        raise ConfigError(f"the judge of {self._address} is updated there")

    async def close(self) -> None:
        await self._client.aclose()


def unfit(texts: Iterable[str]) -> str:
    """Why a service judges no input with these texts, or an empty string."""
    for text in texts:
        try:
            require_unicode(text)
        except InputRejected as error:
            return str(error)
    return ""


def _busy(address: str, answer: httpx.Response) -> EngineUnavailable:
    error = EngineUnavailable(f"{address}: HTTP {answer.status_code}")
    asked = answer.headers.get("retry-after", "")
    error.retry_after_s = min(60.0, float(asked)) if asked.isdecimal() else 0.0
    return error
