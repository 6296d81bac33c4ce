"""What the tests on a GPU share; without one they are skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoj_reward.models.device import detect_device
from tests.tiny import llama, saved
from tests.tokenizers import FAMILIES


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if detect_device().kind == "cuda":
        return
    missing = pytest.mark.skip(reason="no GPU here")
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(missing)


@pytest.fixture(scope="session")
def judge_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random Llama with a tokenizer of its own; nothing is downloaded."""
    tokenizer = FAMILIES["qwen"]()
    model = llama(
        tokenizer,
        vocab_size=64 * -(-len(tokenizer) // 64),
        hidden_size=256,
        intermediate_size=512,
        head_dim=64,
        max_position_embeddings=4096,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        pad_token_id=tokenizer.pad_token_id,
    )
    return saved(model, tokenizer, tmp_path_factory.mktemp("judge"))
