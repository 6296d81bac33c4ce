"""Train a judge, by the method that its run file names.

    autoj train judge --config configs/judges/default_judge.yaml [--set key=value]

After a kill, the same command resumes from the last checkpoint. On several GPUs:

    accelerate launch --config_file configs/trainers/accelerate_fsdp.yaml \\
        -m autoj_reward.cli train judge --config configs/judges/autoj_13b.yaml

The output folder gets `judge/` (full weights: name it as `judge.model`), with LoRA also `adapter/`,
checkpoints, TensorBoard logs in `logs/`, and `training.json`: data, validation, machine.
"""

from __future__ import annotations

from typing import Any

from autoj_reward.training.judge.recipe import (
    JudgeDPOConfig,
    JudgeGRPOConfig,
    JudgeTrainingConfig,
    TrainJudgeConfig,
)


def train_judge(config: JudgeTrainingConfig, command: str = "") -> dict[str, Any]:
    """Run or resume a training to its end. Return the content of `training.json`.

    Raises InputError for data that cannot be trained on, ConfigError for an output folder that
    holds a run of another config.
    """
    if isinstance(config, JudgeGRPOConfig):
        from autoj_reward.training.judge.grpo import train_on_outcomes

        return train_on_outcomes(config, command)
    if isinstance(config, JudgeDPOConfig):
        from autoj_reward.training.judge.dpo import train_on_pairs

        return train_on_pairs(config, command)
    from autoj_reward.training.judge.sft import train_on_texts

    assert isinstance(config, TrainJudgeConfig)
    return train_on_texts(config, command)
