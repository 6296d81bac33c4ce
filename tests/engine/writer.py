"""A model that answers every prompt with the same text, for servers that load real weights."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import torch

from tests import tiny
from tests.tokenizers import plain, qwen


def save_writer(folder: Path, *parts: str) -> Path:
    """Save a small Llama that answers every chat with these parts, one after the other, and ends.

    Each part is a token. Attention and feed-forward layers add nothing, so that the last token
    alone decides on the next.
    """
    tokenizer = qwen()
    tokenizer.add_tokens([plain(part) for part in parts])
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hello"}], add_generation_prompt=True, return_dict=True
    )["input_ids"]
    chain = [prompt[-1], *tokenizer.convert_tokens_to_ids(list(parts)), tokenizer.eos_token_id]
    model = tiny.llama(tokenizer, max_position_embeddings=4096)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.lm_head.weight.zero_()
        for before, after in pairwise(chain):
            model.lm_head.weight[after] = model.model.embed_tokens.weight[before]
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    return tiny.saved(model, tokenizer, folder)
