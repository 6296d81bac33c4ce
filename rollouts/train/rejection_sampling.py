"""Rejection sampling (best-of-N distillation): sample N, keep the judge's choice, train on it.

    autoj train rejection-sampling --config configs/trainers/rejection_sampling.yaml

Every round has a folder: a best-of-N job in `best_of_n/`, its training rows `sft.jsonl` (and
`pairs.jsonl`, best against worst, for preference training), checkpoints in `sft/`, and `policy/`,
which the next round samples. Responses that were cut off at `policy.max_tokens` are judged and not
trained on. The same command after a stop goes on in the round it was in.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from autoj_reward.config import (
    BestOfNConfig,
    Block,
    JudgeConfig,
    PolicyConfig,
    ViewOrAuto,
)
from autoj_reward.errors import ConfigError, InputError
from autoj_reward.io.claims import claim
from autoj_reward.io.files import require_apart, write_jsonl
from autoj_reward.models.unused import load_run
from autoj_reward.processes import processes
from autoj_reward.training.common import half_precision, on_gpu
from rollouts.best_of_n import job as best_of_n
from rollouts.train.chosen import training_rows
from rollouts.train.config import LearnerConfig
from rollouts.train.learner import load_policy, load_tokenizer, lora, require_arguments


class SftConfig(Block):
    """Training on the chosen responses, by TRL's SFTTrainer.

    epochs: passes over a round's rows. batch_size: rows an optimizer step; device_batch_size: at a
    time. max_length: tokens of prompt and response.
    trainer: further arguments of TRL's SFTConfig, by their names there.
    """

    epochs: float = Field(1.0, gt=0)
    batch_size: int = Field(8, ge=1)
    device_batch_size: int = Field(1, ge=1)
    learning_rate: float = Field(1e-5, gt=0)
    lora_rank: int | None = Field(None, ge=1)
    max_length: int = Field(1024, ge=16)
    save_steps: int = Field(50, ge=1)
    trainer: dict[str, Any] = Field(default_factory=dict)


class RejectionSamplingConfig(Block):
    """input, policy, judge, columns, view: as in a best-of-N job. rounds: how often to sample and
    train.

    better_by: least gain of the chosen response over the query's mean, in points of the view, for
    a query to be trained on: where all responses are alike, the choice teaches nothing.
    """

    input: str
    output: Path
    policy: PolicyConfig
    judge: JudgeConfig = JudgeConfig()
    columns: dict[str, str] = Field(default_factory=dict)
    view: ViewOrAuto = "auto"
    rounds: int = Field(1, ge=1)
    better_by: float = Field(0.0, ge=0)
    sft: SftConfig = SftConfig()
    seed: int = 0


def main(config: str, sets: Sequence[str] = (), strict: bool = False) -> int:
    """Run every round; prints where the last policy is."""
    if processes() > 1:
        raise ConfigError("rejection sampling runs in one process: start it without a launcher")
    checked = load_run(RejectionSamplingConfig, config, sets, strict)
    require_apart([checked.input, checked.policy.model], folder=checked.output)
    require_arguments("sft.trainer", checked.sft.trainer, "trl:SFTConfig")
    claim(checked.output, checked, changeable={"output", "rounds"})
    policy = checked.policy.model
    for number in range(1, checked.rounds + 1):
        folder = checked.output / f"round-{number}"
        if not (folder / "policy" / "config.json").is_file():
            _round(checked, folder, policy, number)
        policy = str(folder / "policy")
    print(f"policy: {policy}")
    return 0


def _round(config: RejectionSamplingConfig, folder: Path, policy: str, number: int) -> None:
    job = BestOfNConfig(
        input=config.input,
        output=folder / "best_of_n",
        policy=config.policy.model_copy(
            update={"model": policy, "seed": config.policy.seed + number - 1}
        ),
        judge=config.judge,
        columns=config.columns,
        view=config.view,
    )
    job = best_of_n.ranked(job)
    if not (job.output / "summary.json").is_file():
        best_of_n.run(job)
    rows = training_rows(job, config.better_by, policy, number)
    write_jsonl(folder / "sft.jsonl", rows.sft)
    write_jsonl(folder / "pairs.jsonl", rows.pairs)
    cut = f"{rows.cut} choices were cut off at policy.max_tokens {config.policy.max_tokens}"
    print(f"round {number}: {len(rows.sft)} rows to train on; {cut}", file=sys.stderr)
    if not rows.sft:
        raise InputError(
            f"round {number}: no query has a finished response that is better than its mean by "
            f"{config.better_by:g} ({cut}): lower better_by, or sample more, warmer or longer"
        )
    _train(config, folder, policy, rows.sft)


def _train(
    config: RejectionSamplingConfig, folder: Path, policy: str, rows: Sequence[dict[str, Any]]
) -> None:
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    from autoj_reward.training.saving import train_on

    sft = config.sft
    learner = LearnerConfig(model=policy, revision=config.policy.revision, lora_rank=sft.lora_rank)
    path, tokenizer = load_tokenizer(learner)
    arguments = {
        "output_dir": str(folder / "sft"),
        "num_train_epochs": sft.epochs,
        "per_device_train_batch_size": sft.device_batch_size,
        "gradient_accumulation_steps": max(1, sft.batch_size // sft.device_batch_size),
        "learning_rate": sft.learning_rate,
        "max_length": sft.max_length,
        "completion_only_loss": True,
        "save_steps": sft.save_steps,
        "save_total_limit": 2,
        "logging_steps": 1,
        "report_to": ["tensorboard"],
        "use_cpu": not on_gpu(),
        **half_precision("auto"),
        "seed": config.seed,
        **sft.trainer,
    }
    trainer = SFTTrainer(
        model=load_policy(learner, path, tokenizer),
        args=SFTConfig(**arguments),
        train_dataset=Dataset.from_list(
            [{k: r[k] for k in ("prompt", "completion")} for r in rows]
        ),
        processing_class=tokenizer,
        peft_config=lora(learner),
    )
    train_on(trainer, folder / "sft")
    model = trainer.accelerator.unwrap_model(trainer.model)
    if sft.lora_rank:
        model = model.merge_and_unload()
    half = folder / ".policy"
    model.save_pretrained(half)
    tokenizer.save_pretrained(half)
    half.rename(folder / "policy")
