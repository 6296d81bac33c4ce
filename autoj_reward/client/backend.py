"""Interface between the client and a judge, and the backend that judges in this process."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Protocol

from autoj_reward.judge.make import make_judge
from autoj_reward.models.facts import JudgeFacts
from autoj_reward.models.spec import JudgeSpec
from autoj_reward.replicas.replica import JudgeReplica
from autoj_reward.types import JudgeInput, Judgement


class Backend(Protocol):
    """Interface of a backend: judges lists of inputs, and yields each judgement when it is done."""

    judge: str
    """Fingerprint of the judge: it identifies model, format and decoding."""

    @property
    def facts(self) -> JudgeFacts:
        """Return what the judge can do. An endpoint's are complete after `contact`."""
        return JudgeFacts()

    @property
    def problem(self) -> str:
        """Return the error that keeps an endpoint from answering now; "" if there is none."""
        return ""

    @property
    def place(self) -> str:
        """Return where the judge runs, for logs and without secrets."""
        return "in this process"

    async def contact(self, finding: Mapping[str, Any]) -> Mapping[str, Any]:
        """Complete the facts, and return the probed capabilities of the judge's endpoint.

        Judges without an endpoint have no capabilities: {}. finding: capabilities probed earlier;
        if empty, an endpoint is probed now. Raises EngineUnavailable if the endpoint does not
        answer, ConfigError for an error that only the user can fix.
        """
        return {}

    def stream(self, items: Sequence[JudgeInput]) -> AsyncIterator[tuple[int, Judgement]]:
        """Yield (index, judgement) in order of completion.

        Raises EngineUnavailable if a replica is lost.
        """

    async def check(self) -> int:
        """Return the number of replicas that can judge now. Raises EngineUnavailable for 0."""

    async def update(self, spec: JudgeSpec) -> None:
        """Replace the judge. On return every new call goes to the new one.

        Calls in flight are finished by the old judge or retried on the new one.
        """

    async def close(self) -> None:
        """Stop the replicas and connections that were opened for this backend."""


class LocalBackend(Backend):
    """Backend that runs the replica code in this process, without Ray.

    It serves endpoints, scripted judges and tests.
    """

    def __init__(self, spec: JudgeSpec, replica: JudgeReplica | None = None) -> None:
        """replica: the judge of this spec on an engine of its own; None makes one."""
        self._spec = spec
        self._replica = replica or JudgeReplica(make_judge(spec))
        self._calls_in_flight: Counter[JudgeReplica] = Counter()
        self.judge = self._replica.judge_name
        self._facts = spec.facts_on(self._replica.abilities)

    async def start(self) -> None:
        """Start the judge's engine."""
        await self._replica.start()

    @property
    def facts(self) -> JudgeFacts:
        return self._facts

    @property
    def problem(self) -> str:
        return self._replica.problem

    @property
    def place(self) -> str:
        return self._replica.place

    async def contact(self, finding: Mapping[str, Any]) -> Mapping[str, Any]:
        new_finding = await self._replica.contact(finding)
        self._facts = self._spec.facts_on(self._replica.abilities)
        return new_finding

    async def stream(self, items: Sequence[JudgeInput]) -> AsyncGenerator[tuple[int, Judgement]]:
        replica = self._replica
        self._calls_in_flight[replica] += 1
        try:
            async with aclosing(replica.stream(list(items))) as answers:
                async for answer in answers:
                    yield answer
        finally:
            self._calls_in_flight[replica] -= 1
            if replica is not self._replica and not self._calls_in_flight[replica]:
                del self._calls_in_flight[replica]
                await replica.close()

    async def check(self) -> int:
        await self._replica.check()
        return 1

    async def update(self, spec: JudgeSpec) -> None:
        new, old = JudgeReplica(make_judge(spec)), self._replica
        await new.start()
        self._spec, self._replica, self.judge = spec, new, new.judge_name
        self._facts = spec.facts_on(new.abilities)
        if not self._calls_in_flight[old]:
            await old.close()

    async def close(self) -> None:
        await self._replica.close()
