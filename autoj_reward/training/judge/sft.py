"""Train a judge on critiques, ratings and labels: both protocols in one model, loss on the output
only (paper, section 4)."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

from autoj_reward.processes import processes
from autoj_reward.training.common import (
    LoraBlock,
    common_arguments,
    freeze_below,
    on_gpu,
    require_fit,
    with_lora,
)
from autoj_reward.training.judge.recipe import TrainJudgeConfig, step_load
from autoj_reward.training.judge.run import last_validation, start_run


def train_on_texts(config: TrainJudgeConfig, command: str = "") -> dict[str, Any]:
    """Run or resume a training to its end. Return the content of `training.json`.

    Raises InputError for data that cannot be trained on, ConfigError for an output folder that
    holds a run of another config.
    """
    from peft.helpers import disable_input_dtype_casting
    from transformers import set_seed

    from autoj_reward.training.judge.examples import bad_by_source, make_examples, schedule
    from autoj_reward.training.judge.targets import ExampleBuilder
    from autoj_reward.training.judge.trainer import Collator, JudgeTrainer
    from autoj_reward.training.saving import train_on

    require_fit(lambda: step_load(config, processes()))
    run = start_run(config, command, files=tuple(config.groups.files), adapter=config.adapter)
    builder = ExampleBuilder(run.tokens, run.format, config.losses, config.brief)
    examples = make_examples(config, builder)
    for row in examples.bad:
        print(f"left out: {row}", file=sys.stderr)
    ordered_examples = schedule(examples.training, config.mix, config.epochs, config.seed)
    if config.max_steps is not None:
        ordered_examples = ordered_examples[: config.max_steps * config.batch_size]
    arguments = training_arguments(config, len(ordered_examples), any(examples.validation.values()))

    set_seed(config.seed)
    model = run.load_model(_choose_attention(config))
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
        data_collator=Collator(run.tokenizer.pad_token_id or 0),
        processing_class=run.tokenizer,
    )
    # autocast narrows what LoRA reads; PEFT would widen it to the adapter's float32 before
    with disable_input_dtype_casting(model, active=arguments.bf16):
        train_on(trainer, config.output)
    results = {
        "examples": examples.counts(),
        "left_out": {Path(name).name: n for name, n in bad_by_source(examples.bad).items()},
        "validation": last_validation(trainer),
    }
    return run.finish(trainer, results)


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
