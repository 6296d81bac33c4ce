"""Train a judge: both protocols in one model, loss on the output only (paper, section 4).

    autoj train judge --config configs/judges/default_judge.yaml [--set key=value]

After a kill, the same command resumes from the last checkpoint. On several GPUs:

    accelerate launch --config_file configs/trainers/accelerate_fsdp.yaml \\
        -m autoj_reward.cli train judge --config configs/judges/autoj_13b.yaml

The output folder gets `judge/` (full weights: name it as `judge.model`), with LoRA also `adapter/`,
checkpoints, TensorBoard logs in `logs/`, and `training.json`: data, losses, validation, machine.
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import Any

from autoj_reward.config import JudgeConfig
from autoj_reward.formats.schema import load_format
from autoj_reward.formats.tokens import PromptTokenizer
from autoj_reward.models import format_and_wrapper, resolve
from autoj_reward.training.common import (
    LoraBlock,
    claim_output,
    common_arguments,
    freeze_below,
    log_to,
    memory_load,
    on_gpu,
    require_fit,
    weights_dtype,
    with_lora,
)
from autoj_reward.training.judge.recipe import TrainJudgeConfig, sequences_of


def train_judge(config: TrainJudgeConfig, command: str = "") -> dict[str, Any]:
    """Run or resume a training to its end. Return the content of `training.json`.

    Raises InputError for data that cannot be trained on, ConfigError for an output folder that
    holds a run of another config.
    """
    from peft.helpers import disable_input_dtype_casting
    from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed

    from autoj_reward.training.judge.examples import bad_by_source, make_examples, schedule
    from autoj_reward.training.judge.targets import ExampleBuilder
    from autoj_reward.training.judge.trainer import Collator, JudgeTrainer
    from autoj_reward.training.saving import (
        merge_adapter,
        save_weights,
        train_on,
        write_record,
    )

    started = time.monotonic()
    require_fit(lambda: memory_load(config, sequences_of(config)))
    claim_output(config, config.groups.files, config.adapter)
    log_to(config.output / "logs")
    judge = JudgeConfig(
        model=config.model,
        revision=config.revision,
        format=config.format,
        wrapper=config.wrapper,
    )
    source = resolve(judge)
    fmt_name, wrapper = format_and_wrapper(judge)
    tokenizer = AutoTokenizer.from_pretrained(source.path, revision=config.revision)
    builder = ExampleBuilder(
        PromptTokenizer(tokenizer, wrapper), load_format(fmt_name), config.losses, config.brief
    )
    examples = make_examples(config, builder)
    for row in examples.bad:
        print(f"left out: {row}", file=sys.stderr)
    ordered_examples = schedule(examples.training, config.mix, config.epochs, config.seed)
    if config.max_steps is not None:
        ordered_examples = ordered_examples[: config.max_steps * config.batch_size]
    arguments = training_arguments(config, len(ordered_examples), any(examples.validation.values()))

    set_seed(config.seed)
    model = AutoModelForCausalLM.from_pretrained(
        source.path,
        revision=config.revision,
        dtype=weights_dtype(config),
        attn_implementation=_choose_attention(config),
    )
    if config.lora:
        model = _add_adapter(model, config, config.lora)
    trainer = JudgeTrainer(
        losses=config.losses,
        scale=builder.scale,
        model=model,
        args=arguments,
        train_dataset=ordered_examples,
        eval_dataset=[
            example
            for part in examples.validation.values()
            for example in part[: config.validation_items]
        ],
        data_collator=Collator(tokenizer.pad_token_id or 0),
        processing_class=tokenizer,
    )
    # autocast narrows what LoRA reads; PEFT would widen it to the adapter's float32 before
    with disable_input_dtype_casting(model, active=arguments.bf16):
        train_on(trainer, config.output)
    validation_entries = [
        entry for entry in trainer.state.log_history if any(k.startswith("eval_") for k in entry)
    ]
    validation = {
        k: v for k, v in (validation_entries or [{}])[-1].items() if k.startswith("eval_")
    }
    results = {
        "examples": examples.counts(),
        "left_out": {Path(name).name: n for name, n in bad_by_source(examples.bad).items()},
        "validation": validation,
    }

    def merge(adapter: Path, target: Path) -> None:
        merge_adapter(source.path, config.revision, adapter, tokenizer, target)

    save_weights(trainer, config, "judge", merge)
    record = write_record(trainer, config, command, time.monotonic() - started, results)
    if trainer.is_world_process_zero():
        print(f"judge: {config.output / 'judge'}")
    return record


def training_arguments(config: TrainJudgeConfig, examples: int, validate: bool) -> Any:
    """Return the Trainer's arguments. examples: number of examples in the whole schedule."""
    from transformers import TrainingArguments

    steps = math.ceil(examples / config.batch_size)
    return TrainingArguments(
        num_train_epochs=1,  # the schedule holds all epochs in their order
        train_sampling_strategy="sequential",
        eval_strategy="steps" if validate else "no",
        eval_steps=steps // config.validations + 1,  # and the Trainer's own at the last step
        remove_unused_columns=False,
        **common_arguments(config, steps),
    )


def _choose_attention(config: TrainJudgeConfig) -> str:
    from transformers.utils import is_flash_attn_2_available

    if config.attention != "auto":
        return config.attention
    flash = on_gpu() and is_flash_attn_2_available() and not config.losses.branching
    return "flash_attention_2" if flash else "sdpa"


def _add_adapter(model: Any, config: TrainJudgeConfig, lora: LoraBlock) -> Any:
    from peft import PeftModel

    if config.gradient_checkpointing:
        model.enable_input_require_grads()
    if config.adapter:
        model = PeftModel.from_pretrained(model, str(config.adapter), is_trainable=True)
        freeze_below(model, lora.first_layer)
        return model
    return with_lora(model, lora, "CAUSAL_LM")
