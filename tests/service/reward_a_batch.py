"""Process of a trainer that calls a running service through the adapters and prints the rewards.

    python reward_a_batch.py [MODULE...]

AUTOJ_REWARD names the reward config, and AUTOJ_TOKEN holds the token. The modules are made
unimportable, as if they were not installed.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from importlib.abc import MetaPathFinder
from typing import Any


class Missing(MetaPathFinder):
    def __init__(self, names: list[str]) -> None:
        self.names = names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def main() -> None:
    from autoj_reward.config import RewardConfig, load_config
    from autoj_reward.trainer import openrlhf, verl
    from autoj_reward.trainer.reward import RewardModel
    from autoj_reward.trainer.trl import GRPOReward

    assert callable(openrlhf.reward_func)  # its values are torch's, which OpenRLHF brings
    with RewardModel(load_config(RewardConfig, os.environ["AUTOJ_REWARD"])) as model:
        judging = GRPOReward(model).judge(["Why?"] * 3, ["good", "poor", "lost"])
        rewards = asyncio.run(judging)
    scored = asyncio.run(verl.compute_score("source", "good", "", {"query": "Why?"}))
    print(json.dumps([*rewards, scored["score"]]))


if __name__ == "__main__":
    sys.meta_path.insert(0, Missing(sys.argv[1:]))
    main()
