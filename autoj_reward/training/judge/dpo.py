"""Train a judge on pairs of its own right and wrong outputs, by TRL's DPOTrainer: `method: dpo`.

Prompts have the token ids that the served judge gets, outputs those of what it wrote, with its stop
token where it ended by itself.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from peft.helpers import disable_input_dtype_casting
from transformers import set_seed
from trl import DPOConfig, DPOTrainer

from autoj_reward.errors import InputError
from autoj_reward.formats.tokens import PromptTokenizer
from autoj_reward.training.common import (
    adapter_config,
    common_arguments,
    dpo_load,
    refuse_bad,
    require_fit,
)
from autoj_reward.training.judge.examples import bad_by_source, schedule
from autoj_reward.training.judge.held_out import HeldOut
from autoj_reward.training.judge.outputs import OutputReader
from autoj_reward.training.judge.pairs import Written, WrittenPair, read_pairs
from autoj_reward.training.judge.questions import make_questions, report_questions
from autoj_reward.training.judge.recipe import JudgeDPOConfig
from autoj_reward.training.judge.rewards import Scorer
from autoj_reward.training.judge.run import (
    build_arguments,
    last_validation,
    require_arguments,
    start_run,
)
from autoj_reward.training.saving import train_on
from autoj_reward.types import BadRow

Row = dict[str, list[int]]
"""Token ids of a pair, by the names of TRL's columns."""


class JudgeDPOTrainer(DPOTrainer):
    """TRL's trainer on prompts and outputs that are given as token ids.

    The ids are those of the served judge. TRL would make its own from a text, in which a response
    could spell control tokens.
    """

    def _prepare_dataset(self, dataset: Dataset, *_: Any) -> Dataset:
        return dataset


def train_on_pairs(config: JudgeDPOConfig, command: str = "") -> dict[str, Any]:
    """Run or resume a training to its end. Return the content of `training.json`.

    Raises as `train_judge`, and InputError if the pairs are yet to be sampled.
    """
    require_arguments(config.trainer, DPOConfig)
    require_fit(lambda: dpo_load(config))
    files = (*config.groups.files, str(config.pairs_file.absolute()))
    run = start_run(config, command, files=files, **config.judge_keys())
    tokenizer = run.tokenizer
    stop = tokenizer.eos_token_id
    reader = OutputReader(run.judge, run.format, run.tokens, run.stop_ids)
    questions = make_questions(config, reader.prompting_judge(), run.tokens.count)
    report_questions(questions)
    pairs, bad = read_pairs(config.pairs_file, questions.training, run.format)
    rows, long_rows = make_rows(pairs, run.tokens, stop, config)
    bad = (*bad, *long_rows)
    for row in bad:
        print(f"left out: {row}", file=sys.stderr)
    refuse_bad(config, bad)
    ordered = schedule(rows, config.mix, config.epochs, config.seed)
    if config.max_steps is not None:
        ordered = ordered[: config.max_steps * config.batch_size]
    if not ordered:
        raise InputError(f"{config.pairs_file}: no pair is left to train on; see mix in the config")

    steps = math.ceil(len(ordered) / config.batch_size)
    limit = run.output_limit
    held_out = HeldOut(
        questions.validation,
        config.validation_items,
        math.ceil(steps / config.validations),
        reader,
        Scorer(run.format.scale, expected=False, longest=limit),
        limit,
        config.device_batch_size,
        config.output,
        watched=True,
    )
    arguments = make_arguments(config, steps)
    set_seed(config.seed)
    model = run.load_model()
    reference = None
    adapter = None
    if config.lora:
        adapter = adapter_config(model, config.lora, "CAUSAL_LM")
    elif not config.trainer.get("precompute_ref_log_probs"):
        # TRL would load it without the revision.
        reference = run.load_model()
    trainer = JudgeDPOTrainer(
        model=model,
        ref_model=reference,
        args=arguments,
        train_dataset=Dataset.from_list(ordered),
        processing_class=tokenizer,
        peft_config=adapter,
        callbacks=[held_out, held_out.alarms],
    )
    held_out.trainer = trainer
    # autocast narrows what LoRA reads; PEFT would widen it to the adapter's float32 before
    with disable_input_dtype_casting(trainer.model, active=trainer.args.bf16):
        train_on(trainer, config.output)
    results = {
        "rows": questions.counts(),
        "pairs": {part: len(part_rows) for part, part_rows in rows.items()},
        "left_out": {
            Path(name).name: n for name, n in bad_by_source((*questions.bad, *bad)).items()
        },
        "validation": last_validation(trainer),
        "alarms": [*questions.alarms, *held_out.alarms.raised],
    }
    return run.finish(trainer, results)


def make_rows(
    pairs: Mapping[str, Sequence[WrittenPair]],
    tokens: PromptTokenizer,
    stop: int,
    config: JudgeDPOConfig,
) -> tuple[dict[str, list[Row]], list[BadRow]]:
    """Return the token ids of the pairs by part, and those that are too long.

    stop: token that ends an output.
    """
    rows: dict[str, list[Row]] = {}
    bad = []

    def spell(output: Written) -> list[int]:
        ids = tokens.written(output.text)
        return [*ids, stop] if output.ended else ids

    for part, part_pairs in pairs.items():
        for pair in part_pairs:
            prompt = list(pair.question.ids)
            chosen = spell(pair.chosen)
            rejected = spell(pair.rejected)
            longest = len(prompt) + max(len(chosen), len(rejected))
            if longest > config.max_length:
                reason = f"a pair of {longest} tokens, max_length is {config.max_length}"
                bad.append(BadRow(str(config.pairs_file), pair.line, "", reason))
                continue
            row = {"prompt_ids": prompt, "chosen_ids": chosen, "rejected_ids": rejected}
            rows.setdefault(part, []).append(row)
    return rows, bad


def make_arguments(config: JudgeDPOConfig, steps: int) -> DPOConfig:
    """Return TRL's arguments."""
    arguments = {
        **common_arguments(config, steps),
        "num_train_epochs": 1,  # the schedule holds all epochs in their order
        "train_sampling_strategy": "sequential",
        "beta": config.beta,
        # Rows that are too long are left out whole.
        "max_length": None,
        **config.trainer,
    }
    arguments_of_trl: DPOConfig = build_arguments(DPOConfig, arguments)
    return arguments_of_trl
