"""Random Llamas of two small layers, for tests that need weights and none in particular."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def llama(tokenizer: Any, kind: Any = LlamaForCausalLM, **overrides: Any) -> Any:
    """The same model each time, with room for the tokens. overrides: of its config."""
    defaults = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    torch.manual_seed(0)
    return kind(LlamaConfig(**defaults | overrides))


def saved(model: Any, tokenizer: Any, folder: Path) -> Path:
    """The folder, with the model and its tokenizer."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
