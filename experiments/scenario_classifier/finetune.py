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

from autoj_reward.io.claims import claim
from autoj_reward.prompts.tokens import PromptTokenizer
from autoj_reward.scenarios.registry import OTHERS
from autoj_reward.training.run import on_gpu
from experiments.scenario_classifier.compare import load
from experiments.scenario_classifier.config import FinetuneConfig
from experiments.scenario_classifier.data import Labelled
from experiments.scenario_classifier.rivals import prompt_ids
from experiments.study import Study, command
from rollouts.train.learner import load_tokenizer
from rollouts.train.sft import train_sft

ROOM = 32
"""Tokens kept for the name."""


def study(run: Study[FinetuneConfig]) -> str:
    """Train to the end and save the model whole, an adapter merged into it."""
    config = run.config
    claim(config.output, config, changeable={"output", "save_steps"})
    rows, _, counts = load(config.data)
    print(f"{len(rows.training)} training rows; {counts}", file=sys.stderr)
    path, tokenizer = load_tokenizer(config.learner)
    examples = [example(row, PromptTokenizer(tokenizer, "none"), config) for row in rows.training]
    folder = config.output / "classifier"
    train_sft(
        config.learner,
        path,
        tokenizer,
        examples,
        config,
        config.output,
        folder,
        num_train_epochs=config.epochs,
        lr_scheduler_type="cosine",
        adam_beta2=0.95,
        max_length=config.max_length,
        gradient_checkpointing=on_gpu(),  # on a CPU memory is not what is short
        logging_steps=5,
        seed=config.seed,
    )
    return f"classifier: {folder}"


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
