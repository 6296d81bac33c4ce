"""slime's calls as its own code makes them.

THUDM/slime, slime/rollout/rm_hub/__init__.py at 0b420f1ef4161f02d2a00d47c1318eec955a4e2e, a branch
that adds one reward of its own to what was on main in 2026 (docs/trainers/index.md says what
is of when):
`async_rm` awaits `fn(args, sample)`, `batched_async_rm` awaits `fn(args, samples)`, and
`remote_rm` posts {prompt, response, label} and takes the JSON of the answer as the reward.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from autoj_reward.errors import BudgetExceeded, ConfigError
from autoj_reward.trainer.slime import custom_rm
from tests.trainer.conftest import BY_ITEMS, ITEMS

CHATML = "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"


def make_sample(response: str, prompt: Any = CHATML, **metadata: Any) -> Any:
    return SimpleNamespace(prompt=prompt, response=response, label=None, metadata=metadata)


async def test_one_sample_and_a_group(make_model: Any) -> None:
    make_model(budget=1.0, fallback="group")
    group = [make_sample("good<|im_end|>"), make_sample("lost"), make_sample("poor")]
    assert await custom_rm(None, group) == [9.0, 5.5, 2.0]
    with pytest.raises(ConfigError, match="fallback is group"):
        await custom_rm(None, make_sample("good"))
    make_model(5.0, budget=1.0, fallback=4.5)
    assert await custom_rm(None, make_sample("good", [{"role": "user", "content": "Why?"}])) == 9.0
    assert await custom_rm(None, make_sample("slow")) == 4.5


async def test_a_spent_budget_raises_in_words(make_model: Any) -> None:
    make_model(budget=0.05)
    with pytest.raises(BudgetExceeded, match="training stops"):
        await custom_rm(None, [make_sample("lost")] * 8)


async def test_a_group_is_judged_together(make_model: Any) -> None:
    make_model(
        fmt="listwise", more={"relative": {"by": "listwise"}}, budget=1.0, fallback="neutral"
    )
    responses = ("good<|im_end|>", "poor", "good")
    rewards = await custom_rm(None, [make_sample(text) for text in responses])
    assert isinstance(rewards, list)
    good, poor, again = rewards
    assert good == again and 0 <= poor < good <= 1
    with pytest.raises(ConfigError, match=r"reward\.relative is set"):
        await custom_rm(None, make_sample("good"))


async def test_items_in_a_samples_metadata_are_its_rubric(make_model: Any) -> None:
    make_model(**BY_ITEMS)
    group = [make_sample("good<|im_end|>", rubric=ITEMS), make_sample("Light.", rubric=ITEMS)]
    assert await custom_rm(None, group) == [0.75, 0.25]
