"""vLLM's prefix cache between two measurements."""

from __future__ import annotations

import time
from typing import Any

from autoj_reward.errors import EngineError

TRIES = 50
WAIT_S = 0.1


def empty(llm: Any) -> None:
    """Empty the cache of a vllm.LLM. EngineError if it cannot be."""
    for _ in range(TRIES):
        if llm.reset_prefix_cache():
            return
        time.sleep(WAIT_S)  # the last step's blocks are not free yet
    raise EngineError("the prefix cache cannot be emptied: the engine still has work")
