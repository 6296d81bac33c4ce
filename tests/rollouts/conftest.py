from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="module")
def qwen(smollm2: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random policy of the architecture of the 7B configs."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    folder = tmp_path_factory.mktemp("qwen")
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(smollm2), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(folder)
    smollm2.save_pretrained(folder)
    return str(folder)
