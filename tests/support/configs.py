"""The run files of the repository, each with its config class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from autoj_reward.config import BestOfNConfig, Block, ScoreConfig
from autoj_reward.data.collect import CollectConfig
from autoj_reward.evaluate.best_of_four import BestOfFourConfig
from autoj_reward.evaluate.pairs import PairsConfig
from autoj_reward.evaluate.selection import SelectionConfig
from autoj_reward.rubrics.generate import GenerateConfig
from autoj_reward.service.serve import EdgeConfig
from autoj_reward.training.judge.recipe import JudgeDPOConfig, JudgeGRPOConfig, TrainJudgeConfig
from autoj_reward.training.scalar.data import TrainScalarConfig
from rollouts.train.learner import TrainConfig
from rollouts.train.rejection_sampling import RejectionSamplingConfig

FOLDER = Path(__file__).parents[2] / "configs"
CONFIGS = sorted(FOLDER.glob("*/*.yaml"))
ACCELERATE = [path for path in CONFIGS if path.name.startswith("accelerate_")]
KINDS: dict[str, type[Block]] = {
    "jobs/best_of_": BestOfNConfig,
    "jobs/math_": BestOfNConfig,
    "judges/": TrainJudgeConfig,
    "judges/autoj_13b_grpo": JudgeGRPOConfig,
    "judges/default_judge_grpo": JudgeGRPOConfig,
    "judges/rm_r1_7b_grpo": JudgeGRPOConfig,
    "judges/autoj_13b_dpo": JudgeDPOConfig,
    "judges/default_judge_dpo": JudgeDPOConfig,
    "judges/default_scalar": TrainScalarConfig,
    "judges/scalar": TrainScalarConfig,
    "evaluate/selection": SelectionConfig,
    "evaluate/best_of_four": BestOfFourConfig,
    "evaluate/pairs": PairsConfig,
    "jobs/score": ScoreConfig,
    "jobs/rubrics": GenerateConfig,
    "jobs/judge_endpoint": ScoreConfig,
    "trainers/grpo": TrainConfig,
    "trainers/rloo": TrainConfig,
    "trainers/ppo": TrainConfig,
    "trainers/online_dpo": TrainConfig,
    "trainers/rejection_sampling": RejectionSamplingConfig,
    "serve/": EdgeConfig,
    "experiments/learning_task": TrainConfig,
    "jobs/collect_": CollectConfig,
}


def is_of(path: Path, start: str) -> bool:
    """Return whether a config's name, with its folder, starts so."""
    return path.relative_to(FOLDER).as_posix().startswith(start)


OURS = [
    path
    for path in CONFIGS
    if path not in ACCELERATE and any(is_of(path, start) for start in KINDS)
]
"""Run files of the product's commands; those of the studies are in tests/experiments."""


def kind_of(path: Path) -> type[Block]:
    """Return the config class of a file in the repository."""
    return KINDS[max((start for start in KINDS if is_of(path, start)), key=len)]


def write_config(folder: Path, data: Any) -> Path:
    path = folder / "run.yaml"
    path.write_text(data if isinstance(data, str) else yaml.safe_dump(data), encoding="utf-8")
    return path


def contains_values(loaded: Any, expected: Any) -> bool:
    """Return whether every given value is there, at any depth."""
    if isinstance(expected, dict):
        return all(contains_values(loaded[key], value) for key, value in expected.items())
    if isinstance(expected, list):
        return len(loaded) == len(expected) and all(map(contains_values, loaded, expected))
    return bool(loaded == expected)
