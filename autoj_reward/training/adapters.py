"""LoRA adapters: one way to configure them, for judges, scalar models and policies."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def lora_config(
    rank: int, task: str, *, alpha: float | None = None, dropout: float = 0.0, **where: Any
) -> Any:
    """PEFT's config for one of its tasks; alpha None: twice the rank.

    where: other than every linear layer of the model: PEFT's `target_modules` and
    `layers_to_transform`.
    """
    from peft import LoraConfig

    return LoraConfig(
        r=rank,
        lora_alpha=2 * rank if alpha is None else alpha,
        lora_dropout=dropout,
        task_type=task,
        **{"target_modules": "all-linear", **where},
    )


def linear_layers(model: Any) -> list[str]:
    """The names of the linear layers in a model's transformer blocks."""
    import torch

    modules = model.named_modules()
    linear = (n for n, m in modules if isinstance(m, torch.nn.Linear) and ".layers." in n)
    return sorted({name.rpartition(".")[2] for name in linear})


def merge_adapter(
    base: str, revision: str | None, adapter: Path, tokenizer: Any, target: Path
) -> None:
    """Write a causal model with its adapter merged, in float32."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    whole = AutoModelForCausalLM.from_pretrained(base, revision=revision, dtype=torch.float32)
    whole = PeftModel.from_pretrained(whole, str(adapter)).merge_and_unload()
    whole.save_pretrained(str(target))
    tokenizer.save_pretrained(str(target))
