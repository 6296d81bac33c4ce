"""Train a scalar reward model on the judge's pairs (paper, section 6.4), by TRL's RewardTrainer.

    autoj train scalar --config configs/judges/default_scalar.yaml [--set key=value]

Run again after a kill, it goes on from its last checkpoint. On several GPUs:

    accelerate launch --config_file configs/trainers/accelerate_fsdp.yaml \\
        -m autoj_reward.cli train scalar --config configs/judges/scalar_13b.yaml

The output folder gets `scalar/` (full weights: a sequence classifier with one label), with LoRA
also `adapter/` (adapter and reward head), checkpoints, TensorBoard logs in `logs/`, and
`training.json`: pairs, validation on held-out pairs beside the length of the response, machine.
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import Any

from autoj_reward.config import EngineConfig
from autoj_reward.models import resolve
from autoj_reward.training.fine_tuning import (
    claim_output,
    common_arguments,
    memory_load,
    save_weights,
    weights_dtype,
    with_lora,
    write_record,
)
from autoj_reward.training.run import log_to, require_fit
from autoj_reward.training.scalar.recipe import TrainScalarConfig


def train(config: TrainScalarConfig, command: str = "") -> dict[str, Any]:
    """Run a training to its end, or go on with one that was cut short; returns `training.json`.

    Raises InputError for data that cannot be trained on, ModelError for a tokenizer that does not
    fit, ConfigError for an output folder that holds a run of another config.
    """
    from datasets import Dataset
    from trl import RewardTrainer

    from autoj_reward.models.built_in import merge_scalar
    from autoj_reward.training.checkpoints import train_on
    from autoj_reward.training.scalar.pairs import load_tokenizer, read_preferences
    from autoj_reward.training.scalar.validation import EveryEpoch

    started = time.monotonic()
    require_fit(lambda: memory_load(config, 2))
    claim_output(config, config.groups.files if config.groups else ())
    log_to(config.output / "logs")
    source = resolve(EngineConfig(model=config.model, revision=config.revision))
    tokenizer = load_tokenizer(source.path, config.revision)
    pairs = read_preferences(config, tokenizer)
    for row in pairs.bad:
        print(f"left out: {row}", file=sys.stderr)
    for name, ties in pairs.ties.items():
        print(f"left out: {name}: {ties} ties", file=sys.stderr)
    steps = math.ceil(len(pairs.training) / config.batch_size)
    validation = EveryEpoch(pairs.validation, steps)
    columns = ["chosen_ids", "rejected_ids", *(["margin"] if config.margin else [])]
    trainer = RewardTrainer(
        model=_load(config, source.path, tokenizer),
        args=reward_arguments(config, steps),
        train_dataset=Dataset.from_list(
            [{name: getattr(pair, name) for name in columns} for pair in pairs.training]
        ),
        processing_class=tokenizer,
        callbacks=[validation],
    )
    validation.trainer = trainer
    train_on(trainer, config.output)
    if config.lora:
        _round_to_half(trainer.model)
    found = {**pairs.counts(), "validation": validation.read() if pairs.validation else None}

    def merge(adapter: Path, target: Path) -> None:
        merge_scalar(source.path, adapter, tokenizer, target, config.revision)

    save_weights(trainer, config, "scalar", merge)
    record = write_record(trainer, config, command, time.monotonic() - started, found)
    if trainer.is_world_process_zero():
        print(f"scalar: {config.output / 'scalar'}")
    return record


def reward_arguments(config: TrainScalarConfig, steps: int) -> Any:
    """TRL's arguments for epochs of that many steps."""
    from trl import RewardConfig

    common = common_arguments(config, steps * config.epochs)
    if config.run_epochs < config.epochs:
        # The part of the cosine that the run covers, of the whole that `epochs` lays out.
        warm = common["warmup_steps"]
        part = max(0, steps * config.run_epochs - warm) / max(1, steps * config.epochs - warm)
        common["lr_scheduler_kwargs"] = {"num_cycles": 0.5 * part}
    return RewardConfig(
        num_train_epochs=config.run_epochs,
        max_length=None,  # over-long rows are left out by name before
        center_rewards_coefficient=config.center,
        disable_dropout=not (config.lora and config.lora.dropout),
        **common,
    )


def _load(config: TrainScalarConfig, path: str, tokenizer: Any) -> Any:
    from transformers import AutoModelForSequenceClassification, set_seed

    set_seed(config.seed)  # the reward head starts at random
    model = AutoModelForSequenceClassification.from_pretrained(
        path, revision=config.revision, num_labels=1, dtype=weights_dtype(config)
    )
    if config.lora:
        model = with_lora(model, config.lora, "SEQ_CLS")
        for weights in model.parameters():
            if weights.requires_grad:  # updates would vanish in bfloat16
                weights.data = weights.data.float()
    return model


def _round_to_half(model: Any) -> None:
    """Make the trained weights what float16 can hold, so that what is saved is what is measured."""
    for weights in model.parameters():
        if weights.requires_grad:
            weights.data = weights.data.half().to(weights.dtype)
