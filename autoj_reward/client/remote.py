"""Backend for a running reward service, over HTTP."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import aiohttp

from autoj_reward.config import View
from autoj_reward.config.urls import BaseUrl, parse_base_url
from autoj_reward.engine.base import ROUNDING
from autoj_reward.errors import (
    ConfigError,
    EngineError,
    EngineUnavailable,
    InputRejected,
    ReplicaLost,
)
from autoj_reward.formats.render import require_unicode
from autoj_reward.io.http import NO_ANSWER, error_text, post, read_json, retry_after_s, session
from autoj_reward.journal import read_judgement
from autoj_reward.models.spec import JudgeSpec
from autoj_reward.models.views import VIEWS
from autoj_reward.types import (
    DIRECT,
    PAIRWISE,
    RATING,
    SINGLE,
    VERDICT,
    JudgeInput,
    Judgement,
    Outcome,
    Reading,
)

JUDGE_HEADER = "x-autoj-judge"
"""Header of every answer of a service: the fingerprint of its current judge."""
CONNECT_S, PROBE_S, PAUSE_S = 5.0, 5.0, 0.5
"""Timeouts in seconds: to connect, for a short request, and between two attempts to reach the
service."""
LONGEST_WAIT_S = 60.0
"""Limit in seconds on a busy service's `Retry-After`."""
PASSING = (408, 429)
"""Client error statuses that are retried. Every 5xx except 500 is retried too."""
SLOTS = {SINGLE: RATING, PAIRWISE: VERDICT}
"""The slot that an OK judgement must have, for the protocols of every generative judge."""
RATED = (RATING, DIRECT)
"""Slots whose numbers lie on the rating scale."""
NO_JUDGEMENT = (ValueError, KeyError, TypeError, AttributeError, IndexError)
"""Exceptions from reading a line that holds no judgement."""


@dataclass(frozen=True, slots=True)
class ServiceDescription:
    """Description that a service gives of itself (GET /v1/judge).

    Older services give only `judge`.
    """

    judge: str
    """Fingerprint of the judge."""
    views: frozenset[View] = VIEWS
    """The views that the judge can give."""
    preferred: View | None = None
    """The view that the model's entry in `judges.yaml` names."""
    in_flight: int | None = None
    """Judge inputs that the service accepts at a time."""
    scale: tuple[float, float] | None = None
    """Lowest and highest rating; None where the judge has no scale."""
    distributions: str = ""
    """Where label probabilities come from, in words."""
    tie: float | None = None
    """If set, the judge compares by ratings; see `RewardClient`."""
    max_group: int | None = None
    """Responses that one listwise judgement scores at most; None without a group protocol."""
    compares: bool | None = None
    """Whether the judge compares two responses; None if the service does not say."""


class HttpBackend:
    """Backend for a running reward service. Make one with `connect`."""

    replicas, problem = 1, ""

    def __init__(
        self, base: BaseUrl, client: aiohttp.ClientSession, told: ServiceDescription
    ) -> None:
        self._base, self._client = base, client
        self.address, self.judge, self.told = base.root, told.judge, told

    @classmethod
    async def connect(cls, address: str, token: str, start_s: float) -> HttpBackend:
        """Connect to a service.

        Raises EngineUnavailable naming the address if no service answers in `start_s` seconds,
        ConfigError for a wrong token or address.
        """
        base = parse_base_url(address, "service.address")
        # No timeout on reading: the RewardClient keeps the deadline.
        client = session(base, headers={"Authorization": f"Bearer {token}"}, connect_s=CONNECT_S)
        deadline = time.monotonic() + start_s
        try:
            while True:
                try:
                    return cls(base, client, await _ask(client, base, min(PROBE_S, start_s)))
                except EngineUnavailable as error:
                    if time.monotonic() + PAUSE_S > deadline:
                        raise EngineUnavailable(
                            f"no reward service at {base.root} within {start_s:g} s ({error}): "
                            "start it with `autoj serve`, or correct service.address"
                        ) from error
                await asyncio.sleep(PAUSE_S)
        except BaseException:
            await client.close()
            raise

    @property
    def place(self) -> str:
        return f"the service at {self.address}"

    @property
    def distributions(self) -> str:
        return self.told.distributions or "not told by this service"

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
            except InputRejected as error:  # HTTP 413 for the whole group, so before any answer
                half = len(group) // 2
                if half:
                    groups += [group[half:], group[:half]]
                else:
                    yield group[0], self._rejected(str(error))

    def _rejected(self, reason: str) -> Judgement:
        return Judgement(Outcome.INPUT_REJECTED, reason=reason, judge=self.judge)

    async def _posted(self, items: Sequence[JudgeInput]) -> AsyncGenerator[tuple[int, Judgement]]:
        asked = {"items": [item.record() for item in items]}
        left = set(range(len(items)))
        try:
            async with post(self._client, self._base.at("/v1/judge"), asked) as answer:
                await self._require_ok(answer)
                self.judge = answer.headers.get(JUDGE_HEADER, self.judge)
                async with aclosing(_lines(answer.content)) as lines:
                    async for line in lines:
                        index, judgement = self._read(line, items)
                        if index not in left:
                            raise EngineUnavailable(f"{self.address} answered input {index} twice")
                        left.remove(index)
                        yield index, judgement
        except NO_ANSWER as error:
            raise EngineUnavailable(
                f"the reward service at {self.address} was lost: {error_text(error)}"
            ) from error

    async def _require_ok(self, answer: aiohttp.ClientResponse) -> None:
        """Raise the error that a status other than 200 stands for."""
        status = answer.status
        if status == 413:
            raise InputRejected(f"{self.address} takes no body of this input's size")
        if status in PASSING or status > 500:
            error = EngineUnavailable(f"{self.address}: HTTP {status}")
            error.retry_after_s = retry_after_s(answer.headers, LONGEST_WAIT_S)
            raise error
        if status != 200:
            said = self._base.hide_secrets((await answer.read()).decode("utf-8", "replace"))
            raise EngineError(f"{self.address}: HTTP {status}: {said[:500]}")

    def _read(self, line: bytes, items: Sequence[JudgeInput]) -> tuple[int, Judgement]:
        """Return (index, judgement) of an answer line.

        An unsound judgement fails its own input alone, as `unavailable`. Raises the error that the
        service reports in place of a judgement, and EngineUnavailable for any other line.
        """
        try:
            found = read_json(line)
            if "judgement" not in found:
                [(kind, reason)] = found.items()
                error = {
                    "unavailable": EngineUnavailable,
                    "lost": ReplicaLost,
                    "error": EngineError,
                }[kind]
                raise error(f"{self.address}: {reason}")
            index = found["index"]
            if type(index) is not int or not 0 <= index < len(items):
                raise ValueError(f"index {index!r}")
        except NO_JUDGEMENT as problem:
            raise EngineUnavailable(
                f"{self.address} answered what is no judgement: {line[:80]!r}"
            ) from problem
        try:
            judgement = read_judgement(found["judgement"])
            _require_sound(judgement, items[index], self.told.scale)
        except NO_JUDGEMENT as problem:
            reason = f"{self.address} answered what is no judgement ({problem}): {line[:200]!r}"
            return index, Judgement(Outcome.UNAVAILABLE, reason=reason, judge=self.judge)
        return index, judgement

    async def contact(self, known: Mapping[str, Any]) -> tuple[frozenset[View], Mapping[str, Any]]:
        """Return the views that the service's current judge can give."""
        if self.judge != self.told.judge:  # the service has replaced its judge
            self.told = await _ask(self._client, self._base, PROBE_S)
        return self.told.views, {}

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


async def _ask(
    client: aiohttp.ClientSession, base: BaseUrl, timeout_s: float
) -> ServiceDescription:
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
        said = read_json(body)
        scale = said.get("scale")
        return ServiceDescription(
            str(said["judge"]),
            frozenset(said.get("views", VIEWS)),
            said.get("view"),
            said.get("in_flight"),
            (float(scale[0]), float(scale[1])) if scale else None,
            str(said.get("distributions", "")),
            None if said.get("ratings_tie") is None else float(said["ratings_tie"]),
            None if said.get("max_group") is None else int(said["max_group"]),
            said.get("compares"),
        )
    except NO_JUDGEMENT as error:
        raise EngineUnavailable("it answers, but is no reward service") from error


async def _lines(content: aiohttp.StreamReader) -> AsyncGenerator[bytes]:
    """Yield the lines of a body as they arrive, however long they are."""
    parts: list[bytes] = []
    async for chunk in content.iter_any():
        head, *others = chunk.split(b"\n")
        parts.append(head)
        for other in others:
            yield b"".join(parts)
            parts = [other]
    if last := b"".join(parts):
        yield last


def _require_sound(
    judgement: Judgement, item: JudgeInput, scale: tuple[float, float] | None
) -> None:
    """Raise ValueError for a judgement with impossible values, such as a rating off the scale."""
    wanted = SLOTS.get(item.protocol)
    if judgement.ok and wanted and judgement.reading(wanted) is None:
        raise ValueError(f"it is ok and says nothing of the {wanted}")
    if judgement.ok and item.protocol == SINGLE and judgement.rating is None:
        raise ValueError("its rating is no number")
    if not isinstance(judgement.critique, str) or not isinstance(judgement.reason, str):
        raise ValueError("its texts are none")
    for reading in judgement.readings:
        _require_sound_reading(reading, scale)


def _require_sound_reading(reading: Reading, scale: tuple[float, float] | None) -> None:
    if not isinstance(reading.slot, str) or not isinstance(reading.label, str):
        raise ValueError("its names are none")
    _require_shares([share for _, share in reading.distribution or ()])
    low, high = (scale if reading.slot in RATED else None) or (-math.inf, math.inf)
    for name, found in (("value", reading.value), ("expected", reading.expected)):
        if found is None:
            continue
        if not _is_number(found) or not low <= found <= high:
            within = f" from {low:g} to {high:g}" if scale else ""
            raise ValueError(f"{name} is {found!r}, and no rating{within}")
    _require_shares([0.0 if reading.outside is None else reading.outside])
    _require_shares([reading.unknown])


def _require_shares(shares: Sequence[Any]) -> None:
    """Raise ValueError unless these are probabilities that add up to at most 1."""
    if not all(_is_number(share) and share >= 0 for share in shares) or sum(shares) > 1 + ROUNDING:
        raise ValueError("its probabilities are none")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and value is not True and math.isfinite(value)


def find_rejection_reason(texts: Iterable[str]) -> str:
    """Return why a service rejects an input with these texts, or "" if it does not."""
    for text in texts:
        try:
            require_unicode(text)
        except InputRejected as error:
            return str(error)
    return ""
