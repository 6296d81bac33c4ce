"""`autoj train judge` and `autoj train scalar`: models that judge."""

from __future__ import annotations

from collections.abc import Sequence

from autoj_reward.cli.flags import RUN, SET, command


@command(RUN, SET)
def judge(config: str, sets: Sequence[str]) -> int:
    """Train a judge."""
    from autoj_reward.config import load_config
    from autoj_reward.io.provenance import as_typed
    from autoj_reward.training.judge.recipe import TrainJudgeConfig
    from autoj_reward.training.judge.train import train_judge

    train_judge(load_config(TrainJudgeConfig, config, sets), as_typed())
    return 0


@command(RUN, SET)
def scalar(config: str, sets: Sequence[str]) -> int:
    """Train a scalar reward model."""
    from autoj_reward.config import load_config
    from autoj_reward.io.provenance import as_typed
    from autoj_reward.training.scalar.data import TrainScalarConfig

    checked = load_config(TrainScalarConfig, config, sets)  # before torch takes its seconds
    from autoj_reward.training.scalar.train import train_scalar

    train_scalar(checked, as_typed())
    return 0
