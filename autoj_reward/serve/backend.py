"""How the client reaches a judge: one seam, and the backend that judges in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from autoj_reward.serve.replica import JudgeReplica
from autoj_reward.types import JudgeInput, Judgement


class Backend(Protocol):
    """Judges lists of inputs, answering each as soon as it is done."""

    judge: str
    """Fingerprint of the judge behind it."""

    def stream(self, items: Sequence[JudgeInput]) -> AsyncIterator[tuple[int, Judgement]]:
        """(index, judgement) in order of completion. EngineUnavailable if a replica is lost."""

    async def close(self) -> None:
        """Stop what was started for this backend."""


class LocalBackend:
    """The replica's own code in this process, without Ray: endpoints, scripts and tests."""

    def __init__(self, replica: JudgeReplica) -> None:
        self._replica = replica
        self.judge = replica.judge_name

    def stream(self, items: Sequence[JudgeInput]) -> AsyncIterator[tuple[int, Judgement]]:
        return self._replica.stream(list(items))

    async def close(self) -> None:
        await self._replica.close()
