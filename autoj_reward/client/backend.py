"""How the client reaches a judge: one seam, and the backend that judges in this process."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Protocol

from autoj_reward.config import View
from autoj_reward.judge.make import make_judge
from autoj_reward.models.spec import JudgeSpec
from autoj_reward.models.views import VIEWS
from autoj_reward.replicas.replica import JudgeReplica
from autoj_reward.types import JudgeInput, Judgement


class Backend(Protocol):
    """Judges lists of inputs, answering each as soon as it is done."""

    judge: str
    """Fingerprint of the judge behind it."""

    @property
    def problem(self) -> str:
        """What keeps an endpoint from answering at the moment; empty if nothing does."""
        return ""

    @property
    def place(self) -> str:
        """Where the judge is, for a log and without secrets."""
        return "in this process"

    @property
    def distributions(self) -> str:
        """Where label probabilities come from, for a log; of an endpoint, once `contact` has
        returned."""
        return "not told"

    async def contact(self, known: Mapping[str, Any]) -> tuple[frozenset[View], Mapping[str, Any]]:
        """Return the numbers that the judge gives, and what to keep of having asked an endpoint.

        known: what was kept before; without it an endpoint is asked. Raises EngineUnavailable if
        nobody answers, ConfigError for what only the user can mend.
        """
        return VIEWS, {}

    def stream(self, items: Sequence[JudgeInput]) -> AsyncIterator[tuple[int, Judgement]]:
        """(index, judgement) in order of completion. EngineUnavailable if a replica is lost."""

    async def check(self) -> int:
        """How many replicas could judge now. EngineUnavailable if none could."""

    async def update(self, spec: JudgeSpec) -> None:
        """Put another judge in the place of this one. What is under way is finished or asked
        again; on return every new call goes to the new judge."""

    async def close(self) -> None:
        """Stop what was started for this backend."""


class LocalBackend(Backend):
    """The replica's own code in this process, without Ray: endpoints, scripts and tests."""

    def __init__(self, replica: JudgeReplica) -> None:
        self._replica = replica
        self._under_way: Counter[JudgeReplica] = Counter()
        self.judge = replica.judge_name

    @property
    def problem(self) -> str:
        return self._replica.problem

    @property
    def place(self) -> str:
        return self._replica.place

    @property
    def distributions(self) -> str:
        return self._replica.distributions

    async def contact(self, known: Mapping[str, Any]) -> tuple[frozenset[View], Mapping[str, Any]]:
        found = await self._replica.contact(known)
        return self._replica.views, found

    async def stream(self, items: Sequence[JudgeInput]) -> AsyncGenerator[tuple[int, Judgement]]:
        replica = self._replica
        self._under_way[replica] += 1
        try:
            async with aclosing(replica.stream(list(items))) as answers:
                async for answer in answers:
                    yield answer
        finally:
            self._under_way[replica] -= 1
            if replica is not self._replica and not self._under_way[replica]:
                del self._under_way[replica]
                await replica.close()

    async def check(self) -> int:
        await self._replica.check()
        return 1

    async def update(self, spec: JudgeSpec) -> None:
        new, old = JudgeReplica(make_judge(spec)), self._replica
        await new.start()
        self._replica, self.judge = new, new.judge_name
        if not self._under_way[old]:
            await old.close()

    async def close(self) -> None:
        await self._replica.close()
