"""Supervised training of a policy by TRL's SFTTrainer, saved whole."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autoj_reward.training.run import Batches, on_gpu, trainer_arguments
from rollouts.train.config import LearnerConfig
from rollouts.train.learner import load_policy, lora


def train_sft(
    learner: LearnerConfig,
    path: str,
    tokenizer: Any,
    rows: Sequence[dict[str, Any]],
    config: Batches,
    checkpoints: Path,
    target: Path,
    **arguments: Any,
) -> None:
    """Train on the completions of the rows to the end, or go on from the last of the checkpoints.

    path, tokenizer: of the learner. rows: prompt and completion as TRL takes them, or their ids and
    mask. target: gets the model, an adapter merged into it, whole or not at all. arguments: further
    ones of SFTConfig.
    """
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    from autoj_reward.training.checkpoints import train_on

    common = trainer_arguments(config, checkpoints, bf16=on_gpu())
    trainer = SFTTrainer(
        model=load_policy(learner, path, tokenizer),
        args=SFTConfig(**common | {"completion_only_loss": True} | arguments),
        train_dataset=Dataset.from_list(list(rows)),
        processing_class=tokenizer,
        peft_config=lora(learner),
    )
    train_on(trainer, checkpoints)
    if not trainer.is_world_process_zero():
        return
    model = trainer.accelerator.unwrap_model(trainer.model)
    if learner.lora_rank:
        model = model.merge_and_unload()
    half = target.with_name(f".{target.name}")
    model.save_pretrained(half)
    tokenizer.save_pretrained(half)
    shutil.rmtree(target, ignore_errors=True)
    half.rename(target)
