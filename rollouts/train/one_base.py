"""Policy, reference and value model on one frozen base: modules of their own, the same weights.

TRL's PPO makes a reference of the policy by switching its adapter off, which fails in several
processes.
"""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

from peft import LoraConfig, PeftModel, get_peft_model, inject_adapter_in_model
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForSequenceClassification

from autoj_reward.training.common import linear_layers, lora_config
from rollouts.train.config import LearnerConfig
from rollouts.train.learner import lora

WEIGHTS = "value.safetensors"
ADAPTER = "value"


def on_one_base(base: Any, learner: LearnerConfig, kept: Path | None) -> tuple[Any, Any, Any]:
    """Policy and value model, each with an adapter, and between them the reference without one.
    kept: a folder to go on from. Blocks are recomputed in the backward pass."""
    reference, value = same_weights(base), value_on(base, learner)
    if kept:
        policy = PeftModel.from_pretrained(base, str(kept / "policy"), is_trainable=True)
        found = load_file(kept / "value" / WEIGHTS)
        value.load_state_dict(found, strict=False)
    else:
        policy = get_peft_model(base, lora(learner))
    for model in (base, value):
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    return policy, reference, value


def same_weights(module: Any) -> Any:
    """A copy of the modules around the same parameters."""
    return deepcopy(module, {id(p): p for p in module.parameters()})


def value_on(base: Any, learner: LearnerConfig) -> Any:
    """A value model whose frozen weights are the base's own, with a fresh adapter and head."""
    import torch

    config = AutoConfig.for_model(**(base.config.to_dict() | {"num_labels": 1}))
    with torch.device("meta"):
        value = AutoModelForSequenceClassification.from_config(config)
    name = value.base_model_prefix
    setattr(value, name, same_weights(getattr(base, name)))
    value.score = torch.nn.Linear(config.hidden_size, 1, bias=False)
    torch.nn.init.normal_(value.score.weight, std=(config.hidden_size + 1) ** -0.5)
    assert learner.lora_rank is not None
    adapter: LoraConfig = lora_config(
        learner.lora_rank, "SEQ_CLS", target_modules=linear_layers(value)
    )
    inject_adapter_in_model(adapter, value, ADAPTER)
    for parameter_name, parameter in value.named_parameters():
        learned = ".lora_" in parameter_name or parameter is value.score.weight
        parameter.requires_grad_(learned)
        if learned:  # updates would vanish in half precision
            parameter.data = parameter.data.float()
    return value


def save_value(value: Any, folder: Path, learner: LearnerConfig) -> None:
    """A value model whole, or with LoRA what of it has been trained."""
    if learner.lora_rank is None:
        value.save_pretrained(folder)
        return
    folder.mkdir(parents=True)
    learned = {n: p.detach().cpu() for n, p in value.named_parameters() if p.requires_grad}
    save_file(learned, folder / WEIGHTS)
