"""What the tests on a GPU share; without one they are skipped."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from autoj_reward.models.device import device_here
from tests.tokenizers import FAMILIES


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if device_here().kind == "cuda":
        return
    missing = pytest.mark.skip(reason="no GPU here")
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(missing)


@pytest.fixture(scope="session")
def judge_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random Llama with a tokenizer of its own; nothing is downloaded."""
    folder = tmp_path_factory.mktemp("judge")
    tokenizer = FAMILIES["qwen"]()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64 * -(-len(tokenizer) // 64),
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=4096,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        pad_token_id=tokenizer.pad_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
