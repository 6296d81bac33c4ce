"""LLM judges as reward models.

The public names load on first use, so that importing the package stays fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autoj_reward.client.judge import AsyncJudge, Judge
    from autoj_reward.config import JudgeConfig, RewardConfig
    from autoj_reward.errors import AutojError
    from autoj_reward.trainer.reward import RewardModel
    from autoj_reward.types import (
        Candidate,
        Comparison,
        Judgement,
        Outcome,
        Pair,
        Reading,
        Selection,
        Verdict,
    )

__all__ = [
    "AsyncJudge",
    "AutojError",
    "Candidate",
    "Comparison",
    "Judge",
    "JudgeConfig",
    "Judgement",
    "Outcome",
    "Pair",
    "Reading",
    "RewardConfig",
    "RewardModel",
    "Selection",
    "Verdict",
]

_ELSEWHERE = {
    "AsyncJudge": "client.judge",
    "AutojError": "errors",
    "Judge": "client.judge",
    "JudgeConfig": "config",
    "RewardConfig": "config",
    "RewardModel": "trainer.reward",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_ELSEWHERE.get(name, 'types')}")
    globals()[name] = value = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
