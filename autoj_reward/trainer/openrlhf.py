"""OpenRLHF: a reward file for `--reward.remote_url PATH/TO/this/file.py`.

Set AUTOJ_REWARD to the YAML file of a reward config (a `RewardConfig`; name a running service in
it, since several workers load this file). The other way is a running service's `/get_reward`, with
the token in its address: `--reward.remote_url http://any:TOKEN@127.0.0.1:8300/get_reward`.

OpenRLHF hands over prompt and response as one decoded text with special tokens. Scores are the
rewards moved to 0..1 by the judge's scale, as its dynamic filtering expects.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from functools import cache
from typing import Any

from autoj_reward.config import RewardConfig, load_config
from autoj_reward.errors import ConfigError
from autoj_reward.prompts.render import CONTROL
from autoj_reward.trainer.reward import RewardModel
from autoj_reward.trainer.stats import row_figures
from autoj_reward.types import Candidate


def reward_func(
    queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any], **_: Any
) -> dict[str, Any]:
    """What OpenRLHF calls, with one row or many. All values are float tensors [rows]."""
    import torch

    answer = asyncio.run(get_reward(_model(), queries, prompts))
    return {
        "rewards": torch.tensor(answer["rewards"]),
        "scores": torch.tensor(answer["scores"]),
        "extra_logs": {name: torch.tensor(row) for name, row in answer["extra_logs"].items()},
    }


async def get_reward(
    model: RewardModel, queries: Sequence[str], prompts: Sequence[str]
) -> dict[str, Any]:
    """The answer of `/get_reward`, in plain lists of one number a row.

    Every row has the same extra_logs, since OpenRLHF joins rows by the names of the first. Raises
    BudgetExceeded when too many judgements have failed; failures below that get the configured
    fallback, since None would crash the training. Raises ConfigError for a lone row where the
    config needs its group, as OpenRLHF asks since 0.9.1.
    """
    if not queries:
        return {"rewards": [], "scores": [], "extra_logs": {}}
    candidates = [split(query, prompt) for query, prompt in zip(queries, prompts, strict=True)]
    rewards = await model.rewards(candidates)
    numbers = model.numbers(rewards, candidates)
    rows = [row_figures(reward, model.format.neutral) for reward in rewards]
    return {
        "rewards": numbers,
        "scores": [model.format.share(row["judge_raw"]) for row in rows],
        "extra_logs": {name: [row[name] for row in rows] for name in rows[0]},
    }


def split(query: str, prompt: str) -> Candidate:
    """Query and response of a decoded text that opens with its prompt.

    The prompt's own template and the end-of-turn tokens are taken off. A text that does not open
    with its prompt is taken as the response.
    """
    response = query.removeprefix(prompt)
    if response == query and prompt:
        plain, text = CONTROL.sub("", prompt).strip(), CONTROL.sub("", query).strip()
        response = text.removeprefix(plain)
    return Candidate(CONTROL.sub("", prompt).strip(), CONTROL.sub("", response).strip())


@cache
def _model() -> RewardModel:
    path = os.environ.get("AUTOJ_REWARD")
    if not path:
        raise ConfigError("set AUTOJ_REWARD to the YAML file of a reward config")
    return RewardModel(load_config(RewardConfig, path))
