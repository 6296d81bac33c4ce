"""Backend for a running reward service, over HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import aiohttp

from autoj_reward.client.sound import find_rejection_reason, require_sound
from autoj_reward.config import RelativeConfig
from autoj_reward.config.urls import BaseUrl, parse_base_url
from autoj_reward.conversation import before_response
from autoj_reward.errors import (
    BadMessages,
    ConfigError,
    EngineError,
    EngineUnavailable,
    InputError,
    InputRejected,
    ReplicaLost,
)
from autoj_reward.io.http import NO_ANSWER, error_text, post, read_json, retry_after_s, session
from autoj_reward.journal import read_judgement
from autoj_reward.logs import LOG
from autoj_reward.models.facts import JudgeDescription
from autoj_reward.models.spec import JudgeSpec
from autoj_reward.types import (
    SINGLE,
    Candidate,
    JudgeInput,
    Judgement,
    Outcome,
)

JUDGE_HEADER = "x-autoj-judge"
"""Header of every answer of a service: the fingerprint of its current judge."""
CONNECT_S, PROBE_S, PAUSE_S = 5.0, 5.0, 0.5
"""Timeouts in seconds: to connect, for a short request, and between two attempts to reach the
service."""
LONGEST_WAIT_S = 60.0
"""Limit in seconds on a busy service's `Retry-After`."""
REMIND_S = 60.0
"""Seconds between two log lines while a service does not answer."""
PASSING = (408, 429)
"""Client error statuses that are retried. Every 5xx except 500 is retried too."""
NO_JUDGEMENT = (ValueError, KeyError, TypeError, AttributeError, IndexError)
"""Exceptions from reading a line that holds no judgement."""


class ServiceBusy(EngineUnavailable):
    """Error of a busy service, which answered 408 or 429."""


class Outage:
    """Log lines on a service that does not answer: at once, then each minute, and when it does.

    Without them a trainer whose service was killed would wait in silence, up to the deadline of its
    judgements. now: a clock in seconds.
    """

    def __init__(self, address: str, now: Callable[[], float] = time.monotonic) -> None:
        self._address, self._now = address, now
        self._began: float | None = None
        self._logged = 0.0

    def add(self, problem: str) -> None:
        """Note an attempt that failed. problem: why."""
        now = self._now()
        if self._began is None:
            self._began = self._logged = now
            LOG.warning("waiting for the reward service at %s: %s", self._address, problem)
        elif now - self._logged >= REMIND_S:
            self._logged = now
            waited_s = now - self._began
            LOG.warning(
                "still waiting for the reward service at %s, for %.0f s: %s",
                self._address,
                waited_s,
                problem,
            )

    def end(self) -> None:
        """Note an answer."""
        if self._began is not None:
            waited_s = self._now() - self._began
            self._began = None
            LOG.warning(
                "the reward service at %s answers again after %.0f s: going on",
                self._address,
                waited_s,
            )


class HttpBackend:
    """Backend for a running reward service. Make one with `connect`."""

    replicas, problem = 1, ""

    def __init__(
        self, base: BaseUrl, client: aiohttp.ClientSession, description: JudgeDescription
    ) -> None:
        self._base, self._client = base, client
        self.address, self.judge, self.facts = base.root, description.judge, description
        self._outage = Outage(base.root)

    @classmethod
    async def connect(cls, address: str, token: str, start_s: float) -> HttpBackend:
        """Connect to a service.

        Raises EngineUnavailable naming the address if no service answers in `start_s` seconds,
        ConfigError for a wrong token or address.
        """
        base = parse_base_url(address, "service.address")
        # No timeout on reading: the JudgeClient keeps the deadline.
        client = session(base, headers={"Authorization": f"Bearer {token}"}, connect_s=CONNECT_S)
        deadline = time.monotonic() + start_s
        outage = Outage(base.root)
        try:
            while True:
                try:
                    description = await _fetch_description(client, base, min(PROBE_S, start_s))
                    outage.end()
                    return cls(base, client, description)
                except EngineUnavailable as error:
                    if time.monotonic() + PAUSE_S > deadline:
                        raise EngineUnavailable(
                            f"no reward service at {base.root} within {start_s:g} s ({error}): "
                            "start it with `autoj serve`, or correct service.address"
                        ) from error
                    outage.add(str(error))
                await asyncio.sleep(PAUSE_S)
        except BaseException:
            await client.close()
            raise

    @property
    def place(self) -> str:
        return f"the service at {self.address}"

    async def stream(self, items: Sequence[JudgeInput]) -> AsyncGenerator[tuple[int, Judgement]]:
        """Yield (index, judgement) as the service sends them.

        An input with a lone surrogate is rejected here and not sent: JSON could join two of them
        into one character. A body that is too large for the service is split. Raises
        EngineUnavailable if the service refuses for now or is lost, ReplicaLost if one of its
        replicas is lost with the items.
        """
        readable = []
        for index, item in enumerate(items):
            if reason := find_rejection_reason(item.untrusted):
                yield index, self._reject_input(reason)
            else:
                readable.append(index)
        groups = [readable] if readable else []
        while groups:
            group = groups.pop()
            try:
                async with aclosing(self._post_items([items[n] for n in group])) as answers:
                    async for n, judgement in answers:
                        self._outage.end()
                        yield group[n], judgement
            except EngineUnavailable as error:
                self._note_failure(error)
                raise
            except InputRejected as error:  # HTTP 413 for the whole group, so before any answer
                half = len(group) // 2
                if half:
                    groups += [group[half:], group[:half]]
                else:
                    yield group[0], self._reject_input(str(error))

    async def rate_member(
        self, candidate: Candidate, relative: RelativeConfig, deadline_s: float
    ) -> Judgement:
        """Return the judgement of one response in its group, which the service gathers.

        A request that is refused for now or lost is sent again until `deadline_s`. Raises
        EngineError for any other refusal.
        """
        try:
            item = _make_score_item(candidate)
        except InputError as error:
            return self._reject_input(str(error))
        request = {
            "candidates": [item],
            "group_id": candidate.group_id,
            "group_size": candidate.group_size,
            "relative": relative.model_dump(mode="json", exclude_unset=True),
        }
        deadline, last_problem = time.monotonic() + deadline_s, ""
        while (left_s := deadline - time.monotonic()) > 0:
            try:
                async with asyncio.timeout(left_s):
                    judgement = await self._post_member(request, left_s)
                self._outage.end()
                return judgement
            except InputRejected as error:
                return self._reject_input(str(error))
            except TimeoutError:
                break
            except EngineUnavailable as error:
                self._note_failure(error)
                last_problem, pause_s = f"; last: {error}", max(PAUSE_S, error.retry_after_s)
                await asyncio.sleep(min(pause_s, max(0.0, deadline - time.monotonic())))
        reason = f"no answer within {deadline_s:g} s{last_problem}"
        return Judgement(Outcome.UNAVAILABLE, reason=reason, judge=self.judge)

    def _note_failure(self, error: EngineUnavailable) -> None:
        """Log that the service does not answer. A busy service and one that lost a replica do."""
        if not isinstance(error, ServiceBusy | ReplicaLost):
            self._outage.add(str(error))

    async def _post_member(self, request: Mapping[str, Any], deadline_s: float) -> Judgement:
        headers = {"X-Deadline-S": f"{deadline_s:.3f}"}
        try:
            async with post(self._client, self._base.at("/v1/score"), request, headers) as answer:
                await self._require_ok(answer)
                body = await answer.read()
        except NO_ANSWER as error:
            raise self._make_lost_error(error) from error
        try:
            [record] = read_json(body)["judgements"]
            judgement = read_judgement(record)
            require_sound(judgement, JudgeInput(SINGLE, "", ("",)), (0.0, 1.0))
        except NO_JUDGEMENT as problem:
            raise EngineUnavailable(
                f"{self.address} answered what is no judgement ({problem}): {body[:80]!r}"
            ) from problem
        return judgement

    def _make_lost_error(self, error: BaseException) -> EngineUnavailable:
        return EngineUnavailable(
            f"the reward service at {self.address} was lost: {error_text(error)}"
        )

    def _reject_input(self, reason: str) -> Judgement:
        return Judgement(Outcome.INPUT_REJECTED, reason=reason, judge=self.judge)

    async def _post_items(
        self, items: Sequence[JudgeInput]
    ) -> AsyncGenerator[tuple[int, Judgement]]:
        request = {"items": [item.record(whole=True) for item in items]}
        open_indices = set(range(len(items)))
        try:
            async with post(self._client, self._base.at("/v1/judge"), request) as answer:
                await self._require_ok(answer)
                self.judge = answer.headers.get(JUDGE_HEADER, self.judge)
                async with aclosing(_split_lines(answer.content)) as lines:
                    async for line in lines:
                        index, judgement = self._read_line(line, items)
                        if index not in open_indices:
                            raise EngineUnavailable(f"{self.address} answered input {index} twice")
                        open_indices.remove(index)
                        yield index, judgement
        except NO_ANSWER as error:
            raise self._make_lost_error(error) from error

    async def _require_ok(self, answer: aiohttp.ClientResponse) -> None:
        """Raise the error that a status other than 200 stands for."""
        status = answer.status
        if status == 413:
            raise InputRejected(f"{self.address} takes no body of this input's size")
        if status in PASSING or status > 500:
            kind = ServiceBusy if status in PASSING else EngineUnavailable
            error = kind(f"{self.address}: HTTP {status}")
            error.retry_after_s = retry_after_s(answer.headers, LONGEST_WAIT_S)
            raise error
        if status != 200:
            text = self._base.hide_secrets((await answer.read()).decode("utf-8", "replace"))
            raise EngineError(f"{self.address}: HTTP {status}: {text[:500]}")

    def _read_line(self, line: bytes, items: Sequence[JudgeInput]) -> tuple[int, Judgement]:
        """Return (index, judgement) of an answer line.

        An unsound judgement fails its own input alone, as `unavailable`. Raises the error that the
        service reports in place of a judgement, and EngineUnavailable for any other line.
        """
        try:
            record = read_json(line)
            if "judgement" not in record:
                [(kind, reason)] = record.items()
                error = {
                    "unavailable": EngineUnavailable,
                    "lost": ReplicaLost,
                    "error": EngineError,
                }[kind]
                raise error(f"{self.address}: {reason}")
            index = record["index"]
            if type(index) is not int or not 0 <= index < len(items):
                raise ValueError(f"index {index!r}")
        except NO_JUDGEMENT as problem:
            raise EngineUnavailable(
                f"{self.address} answered what is no judgement: {line[:80]!r}"
            ) from problem
        try:
            judgement = read_judgement(record["judgement"])
            require_sound(judgement, items[index], self.facts.scale)
        except NO_JUDGEMENT as problem:
            reason = f"{self.address} answered what is no judgement ({problem}): {line[:200]!r}"
            return index, Judgement(Outcome.UNAVAILABLE, reason=reason, judge=self.judge)
        return index, judgement

    async def contact(self, finding: Mapping[str, Any]) -> Mapping[str, Any]:
        """Learn the facts of the service's current judge."""
        if self.judge != self.facts.judge:  # the service has replaced its judge
            self.facts = await _fetch_description(self._client, self._base, PROBE_S)
        return {}

    async def check(self) -> int:
        timeout = aiohttp.ClientTimeout(PROBE_S)
        try:
            async with self._client.get(self._base.at("/readyz"), timeout=timeout) as answer:
                status = answer.status
        except NO_ANSWER as error:
            raise EngineUnavailable(
                f"no reward service at {self.address}: {error_text(error)}"
            ) from error
        if status != 200:
            raise EngineUnavailable(f"{self.address}: not ready: HTTP {status}")
        return 1

    async def update(self, spec: JudgeSpec) -> None:
        raise ConfigError(f"the judge of {self.address} is updated there")

    async def close(self) -> None:
        await self._client.close()


def _make_score_item(candidate: Candidate) -> dict[str, Any]:
    """Return a candidate as POST /v1/score takes it. Raises InputError if it takes none such."""
    prompt, response = candidate.prompt, candidate.response
    if reason := find_rejection_reason((prompt.text, response.text)):
        raise InputError(reason)
    record = prompt.record(whole=True)
    if prompt.turns and before_response(record["messages"], answered=True)[0] != prompt:
        raise BadMessages("", "the prompt ends with the assistant, which a service leaves out")
    return record | {"response": response.record(whole=True), "context": dict(candidate.context)}


async def _fetch_description(
    client: aiohttp.ClientSession, base: BaseUrl, timeout_s: float
) -> JudgeDescription:
    """Return a service's description of itself.

    Raises EngineUnavailable with the reason if the service gives none, ConfigError if it refuses
    the token.
    """
    timeout = aiohttp.ClientTimeout(timeout_s)
    try:
        async with client.get(
            base.at("/v1/judge"), timeout=timeout, allow_redirects=False
        ) as answer:
            body, status = await answer.read(), answer.status
    except NO_ANSWER as error:
        raise EngineUnavailable(error_text(error)) from error
    if status == 401:
        raise ConfigError(f"the reward service at {base.root} refuses the token")
    if status != 200:
        raise EngineUnavailable(f"HTTP {status}")
    try:
        return JudgeDescription.model_validate(read_json(body))
    except NO_JUDGEMENT as error:
        raise EngineUnavailable("it answers, but is no reward service") from error


async def _split_lines(content: aiohttp.StreamReader) -> AsyncGenerator[bytes]:
    """Yield the lines of a body as they arrive, however long they are."""
    parts: list[bytes] = []
    async for chunk in content.iter_any():
        first_piece, *further_pieces = chunk.split(b"\n")
        parts.append(first_piece)
        for piece in further_pieces:
            yield b"".join(parts)
            parts = [piece]
    if last_line := b"".join(parts):
        yield last_line
