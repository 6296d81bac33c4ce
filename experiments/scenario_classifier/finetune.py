"""Train a language model to name the scenario, on the published prompt (paper, Appendix B).

    python -m experiments.scenario_classifier.finetune --config configs/scenario_finetune.yaml

The loss is on the name alone. Run again after a kill, it goes on from its last checkpoint. The
output folder gets `classifier/`: name it as `finetuned` of the comparison,
or serve it and ask it by `autoj_reward.scenarios.generative`. Several GPUs: start it with
`accelerate launch -m`.
"""

from __future__ import annotations

import sys
from typing import Any

from autoj_reward.capacity.memory import Training
from autoj_reward.capacity.shape import find_shape
from autoj_reward.io.claims import claim
from autoj_reward.prompts.tokens import PromptTokenizer
from autoj_reward.scenarios.registry import OTHERS
from autoj_reward.training.adapters import merge_adapter
from autoj_reward.training.fine_tuning import half_precision, on_gpu
from autoj_reward.training.run import accumulation, require_fit
from experiments.scenario_classifier.compare import load
from experiments.scenario_classifier.config import FinetuneConfig
from experiments.scenario_classifier.data import Labelled
from experiments.scenario_classifier.rivals import prompt_ids
from experiments.study import Study, command
from rollouts.train.learner import load_policy, load_tokenizer, lora

ROOM = 32
"""Tokens kept for the name."""


def study(run: Study[FinetuneConfig]) -> str:
    """Train to the end and save the model whole, an adapter merged into it."""
    config = run.config
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    from autoj_reward.training.checkpoints import train_on

    require_fit(lambda: memory_load(config))
    claim(config.output, config, changeable={"output", "save_steps"})
    rows, _, counts = load(config.data)
    print(f"{len(rows.training)} training rows; {counts}", file=sys.stderr)
    path, tokenizer = load_tokenizer(config.learner)
    examples = [example(row, PromptTokenizer(tokenizer, "none"), config) for row in rows.training]
    passes = accumulation(config.batch_size, config.device_batch_size)
    trainer = SFTTrainer(
        model=load_policy(config.learner, path, tokenizer),
        args=SFTConfig(
            output_dir=str(config.output),
            num_train_epochs=config.epochs,
            per_device_train_batch_size=config.device_batch_size,
            gradient_accumulation_steps=passes,
            learning_rate=config.learning_rate,
            lr_scheduler_type="cosine",
            adam_beta2=0.95,
            max_length=config.max_length,
            completion_only_loss=True,
            gradient_checkpointing=on_gpu(),  # on a CPU memory is not what is short
            save_steps=config.save_steps,
            save_total_limit=2,
            logging_steps=5,
            report_to=["tensorboard"],
            use_cpu=not on_gpu(),
            **half_precision(config.learner.dtype),
            seed=config.seed,
        ),
        train_dataset=Dataset.from_list(examples),
        processing_class=tokenizer,
        peft_config=lora(config.learner),
    )
    train_on(trainer, config.output)
    folder = config.output / "classifier"
    adapter = config.output / "adapter" if config.learner.lora_rank else None
    # All processes save: with FSDP each has a part of the weights.
    trainer.save_model(str(adapter or folder))
    if not trainer.is_world_process_zero():
        return ""
    if adapter:
        merge_adapter(path, config.learner.revision, adapter, tokenizer, folder)
    return f"classifier: {folder}"


def memory_load(config: FinetuneConfig) -> Training:
    """A step's load. Raises ModelError for a shape not known."""
    return Training(
        find_shape(config.learner.model),
        sequences=config.device_batch_size,
        length=config.max_length,
        lora_rank=config.learner.lora_rank,
    )


def example(row: Labelled, tokens: PromptTokenizer, config: FinetuneConfig) -> dict[str, Any]:
    """Ids of prompt, name and end, as they are served, and a mask that is 1 on the latter two."""
    prompt = prompt_ids(row.query, tokens, config.max_length - ROOM)
    end = tokens.tokenizer.eos_token_id
    # The prompt asks for `default`, the published name of `others`.
    spelled = "default" if row.scenario == OTHERS else row.scenario
    name = [*tokens.continuation(spelled), end]
    return {
        "input_ids": prompt + name,
        "completion_mask": [0] * len(prompt) + [1] * len(name),
    }


main = command(FinetuneConfig, study)

if __name__ == "__main__":
    sys.exit(main())
