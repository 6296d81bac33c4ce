"""Train a scalar reward model on the judge's pairs (paper, section 6.4), by TRL's RewardTrainer.

    autoj train scalar --config configs/judges/default_scalar.yaml [--set key=value]

After a kill, the same command resumes from the last checkpoint. On several GPUs:

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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import TrainerCallback

from autoj_reward.config import EngineConfig
from autoj_reward.evaluate.statistics import Estimate, bootstrap, difference, share
from autoj_reward.models import resolve
from autoj_reward.models.built_in import merge_scalar
from autoj_reward.models.classifier import scores
from autoj_reward.training.common import (
    claim_output,
    common_arguments,
    log_to,
    memory_load,
    require_fit,
    weights_dtype,
    with_lora,
)
from autoj_reward.training.saving import save_weights, train_on, write_record
from autoj_reward.training.scalar.data import (
    ChosenPair,
    TrainScalarConfig,
    load_tokenizer,
    read_chosen_pairs,
)

RewardArray = NDArray[np.float64]
"""One reward a response: [responses]."""


def train_scalar(config: TrainScalarConfig, command: str = "") -> dict[str, Any]:
    """Run or resume a training to its end. Return the content of `training.json`.

    Raises InputError for data that cannot be trained on, ModelError for a tokenizer that does not
    fit, ConfigError for an output folder that holds a run of another config.
    """
    from datasets import Dataset
    from trl import RewardTrainer

    started = time.monotonic()
    require_fit(lambda: memory_load(config, 2))
    claim_output(config, config.groups.files if config.groups else ())
    log_to(config.output / "logs")
    source = resolve(EngineConfig(model=config.model, revision=config.revision))
    tokenizer = load_tokenizer(source.path, config.revision)
    pairs = read_chosen_pairs(config, tokenizer)
    for row in pairs.bad:
        print(f"left out: {row}", file=sys.stderr)
    for name, ties in pairs.ties.items():
        print(f"left out: {name}: {ties} ties", file=sys.stderr)
    steps = math.ceil(len(pairs.training) / config.batch_size)
    validation = EpochValidation(pairs.validation, steps)
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
    results = {**pairs.counts(), "validation": validation.read() if pairs.validation else None}

    def merge(adapter: Path, target: Path) -> None:
        merge_scalar(source.path, adapter, tokenizer, target, config.revision)

    save_weights(trainer, config, "scalar", merge)
    record = write_record(trainer, config, command, time.monotonic() - started, results)
    if trainer.is_world_process_zero():
        print(f"scalar: {config.output / 'scalar'}")
    return record


def reward_arguments(config: TrainScalarConfig, steps: int) -> Any:
    """Return TRL's arguments. steps: optimizer steps of an epoch."""
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
    """Round trained weights to float16, so that the saved model is the measured one."""
    for weights in model.parameters():
        if weights.requires_grad:
            weights.data = weights.data.half().to(weights.dtype)


@dataclass(frozen=True, slots=True)
class Validation:
    """Metrics on held-out pairs, with intervals by bootstrap over queries."""

    accuracy: Estimate
    """Share of pairs whose chosen response has the higher reward; equal rewards count half."""
    length_accuracy: Estimate
    """Accuracy on the same pairs if the length in characters is the reward."""
    over_length: Estimate
    """`accuracy` minus `length_accuracy`."""
    margin: Estimate
    """Mean difference of the chosen and the rejected response's rewards."""
    loss: float
    """Bradley-Terry loss, without margin and centring."""
    mean_reward: float
    """Mean reward of all responses."""
    reward_sd: float
    """Standard deviation of the rewards of all responses."""


def validate(chosen: RewardArray, rejected: RewardArray, pairs: Sequence[ChosenPair]) -> Validation:
    """Measure the rewards of the pairs' two sides, float [pairs] each."""
    queries = [pair.query for pair in pairs]
    gaps = chosen - rejected
    right = share(wins(gaps))
    longer = share(wins(np.array([pair.extra_characters for pair in pairs], dtype=float)))
    everything = np.concatenate([chosen, rejected])
    return Validation(
        accuracy=bootstrap(right, len(pairs), groups=queries),
        length_accuracy=bootstrap(longer, len(pairs), groups=queries),
        over_length=bootstrap(difference(right, longer), len(pairs), groups=queries),
        margin=bootstrap(lambda rows: float(gaps[rows].mean()), len(pairs), groups=queries),
        loss=float(np.logaddexp(0, -gaps).mean()),
        mean_reward=float(everything.mean()),
        reward_sd=float(everything.std()),
    )


def wins(gaps: RewardArray) -> RewardArray:
    """Return 1 for each positive margin, 0.5 for each margin of 0, and 0 for the others."""
    return np.where(gaps == 0, 0.5, gaps > 0)


def rewards(model: Any, rows: Sequence[Sequence[int]], pad: int, batch_size: int) -> RewardArray:
    """Return the rewards of token sequences in order. The model stays in evaluation mode."""
    model.eval()
    order = sorted(range(len(rows)), key=lambda row: len(rows[row]))
    values = np.empty(len(rows))
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        values[batch] = scores(model, [rows[row] for row in batch], pad, use_cache=False)
    return values


def rewards_of(
    model: Any, pairs: Sequence[ChosenPair], pad: int, batch_size: int
) -> tuple[RewardArray, RewardArray]:
    """Return rewards of the chosen and of the rejected responses, in the pairs' order."""
    sides = [pair.chosen_ids for pair in pairs] + [pair.rejected_ids for pair in pairs]
    values = rewards(model, sides, pad, batch_size)
    return values[: len(pairs)], values[len(pairs) :]


class EpochValidation(TrainerCallback):
    """Callback that validates after the last step of each epoch.

    It does so before the Trainer's checkpoint of that step, so that a resumed run knows the
    metrics. TRL's own evaluation averages over batches, whatever their size, and knows no queries.
    """

    def __init__(self, pairs: Sequence[ChosenPair], steps: int) -> None:
        self.pairs, self.steps = pairs, steps
        self.trainer: Any = None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.pairs and state.global_step % self.steps == 0:
            validation = self.read()
            metrics = {
                "accuracy": validation.accuracy.value,
                "accuracy_low": validation.accuracy.low,
                "accuracy_high": validation.accuracy.high,
                "loss": validation.loss,
                "margin": validation.margin.value,
            }
            # Logged in evaluation mode, TRL does not mix it with its figures of the training.
            self.trainer.log({f"eval_{k}": v for k, v in metrics.items() if v is not None})
            self.trainer.model.train()

    def read(self) -> Validation:
        """Measure the model in training on the pairs."""
        trainer = self.trainer
        pad, size = trainer.processing_class.pad_token_id, trainer.args.per_device_eval_batch_size
        with trainer.accelerator.autocast():
            return validate(*rewards_of(trainer.model, self.pairs, pad, size), self.pairs)
