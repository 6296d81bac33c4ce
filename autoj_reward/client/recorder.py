"""From an answer to whoever waits for it: by way of the journal, and in groups."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from autoj_reward.client.slots import Slots
from autoj_reward.journal import Journal
from autoj_reward.types import JudgeInput, Judgement

Progress = Callable[[Judgement, bool], None]
"""Called once for every judge input that is answered: (judgement, read from the journal?)."""


class Recorder:
    """Gives judgements to their futures once they are on record; those of one turn of the loop go
    on record together. Each that is given gives its slot back."""

    def __init__(self, journal: Journal | None, progress: Progress | None, slots: Slots) -> None:
        self._journal, self._progress, self._slots = journal, progress, slots
        self._said: list[tuple[str, JudgeInput, Judgement]] = []
        self._futures: list[asyncio.Future[Judgement]] = []

    def add(
        self, judge: str, item: JudgeInput, said: Judgement, future: asyncio.Future[Judgement]
    ) -> None:
        if not self._said:
            asyncio.get_running_loop().call_soon(self.flush)
        self._said.append((judge, item, said))
        self._futures.append(future)

    def flush(self) -> None:
        """Record what was added since; what cannot be recorded gives its future the error."""
        said, futures = self._said, self._futures
        self._said, self._futures = [], []
        try:
            kept = [judgement for _, _, judgement in said]
            if self._journal and said:
                kept = self._journal.put_all(said)
            for judgement in kept:
                self.tell(judgement, False)
        except Exception as error:  # of the disk, or the caller's own
            for future in futures:
                if not future.done():
                    future.set_exception(error)
                    self._slots.give(1)
            return
        for future, judgement in zip(futures, kept, strict=True):
            if not future.done():
                future.set_result(judgement)
                self._slots.give(1)

    def tell(self, judgement: Judgement, reused: bool) -> None:
        if self._progress:
            self._progress(judgement, reused)
