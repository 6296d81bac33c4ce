"""PPO by TRL's trainer, with checkpoints that a run can resume from.

TRL's PPO cannot load a checkpoint. Ours hold policy, value model and the number of steps done,
which says what prompts come next; the optimizer's moments start anew, and the learning rate is
constant so that nothing else does.

With LoRA the value model stands on the policy's own frozen weights: both learn by adapters, and one
copy of the base serves policy, value and reference. Each process holds it whole: TRL's PPO samples
from the bare policy, which FSDP does not gather. TRL would make the reference of the policy by
switching its adapter off, which fails in several processes.
"""

from __future__ import annotations

import math
import shutil
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from peft import LoraConfig, PeftModel, get_peft_model, inject_adapter_in_model
from safetensors.torch import load_file, save_file
from torch.utils.data import DataLoader
from transformers import AutoConfig, AutoModelForSequenceClassification, TrainerCallback

from autoj_reward.errors import ConfigError
from autoj_reward.trainer.ppo import PPOReward, prompt_table
from autoj_reward.trainer.reward import RewardModel
from autoj_reward.training.common import linear_layers, lora_config, sharded
from rollouts.train.learner import (
    Learner,
    LearnerConfig,
    TrainConfig,
    load_policy,
    lora,
    model_options,
    trainer_arguments,
)
from rollouts.train.main import is_main_process
from rollouts.train.online import JudgeLog

STATE = "ppo-"


def train_ppo(config: TrainConfig, learner: Learner, reward: RewardModel) -> None:
    """Train with TRL's PPOTrainer to the end, from the last checkpoint if there is one."""
    from trl.experimental.ppo import PPOConfig, PPOTrainer

    refuse_shards()
    tokenizer = learner.tokenizer
    rows = [
        {"input_ids": tokenizer.apply_chat_template(p, add_generation_prompt=True)["input_ids"]}
        for p in learner.prompts
    ]
    checkpoint = _find_last(config.output)
    earlier_steps = _parse_step(checkpoint) if checkpoint else 0
    if checkpoint:
        print(f"goes on from {checkpoint}", file=sys.stderr)
    if earlier_steps < config.steps:
        policy, reference, value = _load_models(config, learner, checkpoint)
        args = trainer_arguments(config) | {
            "total_episodes": config.batch_size * (config.steps - earlier_steps),
            "response_length": config.learner.max_response_tokens,
            "temperature": config.learner.temperature,
            "kl_coef": config.kl,
            "stop_token": "eos",
            "missing_eos_penalty": 1.0,
            "num_sample_generations": 0,
            # The logits of so many whole conversations are in memory at a time.
            "local_rollout_forward_batch_size": config.device_batch_size,
            "num_mini_batches": 1,
            "lr_scheduler_type": "constant",
            "save_strategy": "no",
            "seed": config.seed + earlier_steps,  # other noise than the first steps had
            **config.trainer,
        }
        trainer = PPOTrainer(
            args=PPOConfig(**args),
            processing_class=tokenizer,
            model=policy,
            ref_model=reference,
            reward_model=PPOReward(reward, tokenizer, prompt_table(rows, learner.prompts)),
            value_model=value,
            train_dataset=Dataset.from_list(rows),
        )
        JudgeLog(reward, config.output / "logs", earlier_steps).attach(trainer)
        _skip_steps(trainer, config.seed, earlier_steps)
        trainer.add_callback(_Checkpoints(config, trainer, tokenizer, earlier_steps))
        trainer.train()
    if is_main_process():
        final = config.output / f"{STATE}{config.steps}"
        shutil.copytree(final / "policy", config.output / "policy", dirs_exist_ok=True)


def refuse_shards() -> None:
    """Raise ConfigError under FSDP, where TRL's PPO fails at its first sample."""
    if sharded():
        raise ConfigError(
            "TRL's PPO does not run under FSDP: set learner.lora_rank, which trains policy and "
            "value on one frozen base, and launch with configs/trainers/accelerate_ddp.yaml"
        )


def _skip_steps(trainer: Any, seed: int, steps: int) -> None:
    """Replace the trainer's data loader by one that starts after the first `steps` steps."""
    args = trainer.args
    first, last = steps * args.batch_size, (steps + args.num_total_batches) * args.batch_size
    rows = trainer.train_dataset
    loader = DataLoader(
        rows.select(prompt_order(len(rows), seed, first, last)),
        batch_size=trainer.local_dataloader_batch_size,
        collate_fn=trainer.data_collator,
        drop_last=True,
    )
    trainer.dataloader = trainer.accelerator.prepare(loader)


def prompt_order(rows: int, seed: int, first: int, last: int) -> list[int]:
    """Return row numbers of a run's samples from `first` until before `last`.

    All rows come again and again, shuffled anew each time by the seed and the number of the pass.
    """
    passes = range(first // rows, math.ceil(last / rows))
    order = [row for n in passes for row in np.random.default_rng((seed, n)).permutation(rows)]
    skipped = first % rows
    return [int(row) for row in order[skipped : skipped + last - first]]


def _load_models(
    config: TrainConfig, learner: Learner, checkpoint: Path | None
) -> tuple[Any, Any, Any]:
    """Return policy, reference and value model."""
    first = load_policy(config.learner, learner.path, learner.tokenizer)
    if config.learner.lora_rank is not None:
        return on_one_base(first, config.learner, checkpoint)
    start = str(checkpoint / "policy") if checkpoint else learner.path
    policy = load_policy(config.learner, start, learner.tokenizer)
    value = AutoModelForSequenceClassification.from_pretrained(
        checkpoint / "value" if checkpoint else learner.path,
        num_labels=1,
        **model_options(config.learner),
    )
    value.config.pad_token_id = learner.tokenizer.pad_token_id
    return policy, first, value


class _Checkpoints(TrainerCallback):
    """Callback that saves every `save_steps` steps and at the end, and keeps the last two."""

    def __init__(
        self, config: TrainConfig, trainer: Any, tokenizer: Any, earlier_steps: int
    ) -> None:
        self._config, self._trainer, self._tokenizer = config, trainer, tokenizer
        self._earlier_steps = earlier_steps

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Save a checkpoint if one is due at this step."""
        step = self._earlier_steps + state.global_step
        if not state.is_world_process_zero:
            return
        if step % self._config.save_steps and step < self._config.steps:
            return
        target = self._config.output / f"{STATE}{step}"
        half = target.with_name(f".{target.name}")
        shutil.rmtree(half, ignore_errors=True)
        whole = self._trainer.accelerator.unwrap_model(self._trainer.model)
        whole.policy.save_pretrained(half / "policy")
        self._tokenizer.save_pretrained(half / "policy")
        save_value(whole.value_model, half / "value", self._config.learner)
        half.rename(target)
        for old in _list_states(self._config.output)[:-2]:
            shutil.rmtree(old)


def _list_states(output: Path) -> list[Path]:
    return sorted(output.glob(f"{STATE}*"), key=_parse_step)


def _parse_step(state: Path) -> int:
    return int(state.name.removeprefix(STATE))


def _find_last(output: Path) -> Path | None:
    return max(_list_states(output), key=_parse_step, default=None)


WEIGHTS = "value.safetensors"
ADAPTER = "value"


def on_one_base(base: Any, learner: LearnerConfig, checkpoint: Path | None) -> tuple[Any, Any, Any]:
    """Return policy, reference and value model on the same frozen base.

    The policy and the value model each have a LoRA adapter; the reference has none.
    checkpoint: the one to resume from, or None. The backward pass recomputes each block's
    activations.
    """
    reference, value = share_weights(base), build_value_model(base, learner)
    if checkpoint:
        policy = PeftModel.from_pretrained(base, str(checkpoint / "policy"), is_trainable=True)
        weights = load_file(checkpoint / "value" / WEIGHTS)
        value.load_state_dict(weights, strict=False)
    else:
        policy = get_peft_model(base, lora(learner))
    for model in (base, value):
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    return policy, reference, value


def share_weights(module: Any) -> Any:
    """Return a copy of the modules around the same parameters."""
    return deepcopy(module, {id(p): p for p in module.parameters()})


def build_value_model(base: Any, learner: LearnerConfig) -> Any:
    """Return a value model on the base's own frozen weights, with a new adapter and head."""
    import torch

    config = AutoConfig.for_model(**(base.config.to_dict() | {"num_labels": 1}))
    with torch.device("meta"):
        value = AutoModelForSequenceClassification.from_config(config)
    name = value.base_model_prefix
    setattr(value, name, share_weights(getattr(base, name)))
    value.score = torch.nn.Linear(config.hidden_size, 1, bias=False)
    torch.nn.init.normal_(value.score.weight, std=(config.hidden_size + 1) ** -0.5)
    assert learner.lora_rank is not None
    adapter: LoraConfig = lora_config(
        learner.lora_rank, "SEQ_CLS", target_modules=linear_layers(value)
    )
    inject_adapter_in_model(adapter, value, ADAPTER)
    for parameter_name, parameter in value.named_parameters():
        is_trained = ".lora_" in parameter_name or parameter is value.score.weight
        parameter.requires_grad_(is_trained)
        if is_trained:  # updates would vanish in half precision
            parameter.data = parameter.data.float()
    return value


def save_value(value: Any, folder: Path, learner: LearnerConfig) -> None:
    """Save a value model: all of it, or with LoRA the trained weights alone."""
    if learner.lora_rank is None:
        value.save_pretrained(folder)
        return
    folder.mkdir(parents=True)
    trained_weights = {n: p.detach().cpu() for n, p in value.named_parameters() if p.requires_grad}
    save_file(trained_weights, folder / WEIGHTS)
