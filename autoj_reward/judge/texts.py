"""Work on an input's texts that must not hold up an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from autoj_reward.types import JudgeInput

P = ParamSpec("P")
R = TypeVar("R")
LONG_CHARS = 8_192
"""Length of an input's texts, in characters, from which work on them takes a thread. Shorter ones
take less than a millisecond or two."""


class TextWork:
    """Runs work on texts: that on short ones at once, that on long ones in a thread.

    One thread does it all. It holds the interpreter's lock as long as a regular expression runs, so
    that several threads would only keep the event loop waiting for longer.
    """

    def __init__(self) -> None:
        # The thread starts with the first long text, and ends when this object is collected.
        self._thread = ThreadPoolExecutor(1, "autoj-texts")

    async def run(
        self, item: JudgeInput, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Return `work(*args, **kwargs)`, which reads the texts of this input."""
        if sum(map(len, item.untrusted)) < LONG_CHARS:
            return work(*args, **kwargs)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: work(*args, **kwargs))
